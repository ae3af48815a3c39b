/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/engine-backends.h - the places that the engine's tests compute at: the host, and a device where there
 * is one.
 *
 * With SPARSEKV_REQUIRE_GPU=1 a device that is missing is a failure. The device is $CUDA_VISIBLE_DEVICES's
 * first.
 */
#ifndef SKV_TEST_ENGINE_PLACES_H
#define SKV_TEST_ENGINE_PLACES_H

#include <stdbool.h>
#include "engine/backend.h"

/*
 * First in main(): the seed (random.h), where the modules of this build are, and a line when there is no
 * device. CUDA does not survive a fork, and Check forks for each test: so a child looks, and backend_device()
 * opens it anew in each test. False: there is none, but one is required.
 */
bool places_begin(const char *program);

/* The device, opened; NULL: there is none. */
struct eng_backend *backend_device(void);

/* A place and a type of rows and matrices there. */
struct at {
	struct eng_backend *place;
	uint32_t dtype; /* SKV_F32, SKV_BF16 */
};

/* The host, and the device with both types, as many as there are. Returns how many. */
unsigned places_all(struct at to[3]);

/* Fails the test with the place's text if r < 0. */
void backend_ok(const struct eng_backend *, int r);

/* n elements there, as `dtype`; to be freed with backend_put_back(). x = NULL: undefined ones. */
void *backend_give(const struct at *, const float *x, size_t n, uint32_t dtype);
void *backend_give_bytes(const struct at *, const void *x, size_t bytes);
void backend_put_back(const struct at *, void *);

/* What is there now, as fp32; to be freed. */
float *backend_take(const struct at *, const void *x, size_t n, uint32_t dtype);
void backend_take_bytes(const struct at *, void *to, const void *x, size_t bytes);

/* n floats of about -size … size that bf16 has exactly; to be freed. `size` is a power of two. */
float *backend_random(size_t n, float size);

#endif
