/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/engine-backends.h - the backends that the engine's tests compute on: the host, and a device if there is
 * one.
 *
 * With SPARSEKV_REQUIRE_GPU=1 a missing device is a failure. The device is the first of $CUDA_VISIBLE_DEVICES.
 */
#ifndef SKV_TEST_ENGINE_PLACES_H
#define SKV_TEST_ENGINE_PLACES_H

#include <stdbool.h>
#include "engine/backend.h"

/*
 * Call first in main(): sets the seed (random.h) and the paths of this build's modules, and prints a line if there is
 * no device. CUDA does not survive a fork and Check forks for each test: so a child process checks for a device, and
 * backend_device() opens it in each test. Returns false if a device is required and missing.
 */
bool places_begin(const char *program);

/* Returns the opened device; NULL: there is none. */
struct eng_backend *backend_device(void);

/* A backend, and a type of rows and matrices on it. */
struct at {
	struct eng_backend *place;
	uint32_t dtype; /* SKV_F32, SKV_BF16 */
};

/* The host, and the device with both types, if there is one. Returns their number. */
unsigned places_all(struct at to[3]);

/* Fails the test with the backend's text if r < 0. */
void backend_ok(const struct eng_backend *, int r);

/* Returns n elements there, as `dtype`; free them with backend_put_back(). x = NULL: undefined values. */
void *backend_give(const struct at *, const float *x, size_t n, uint32_t dtype);
void *backend_give_bytes(const struct at *, const void *x, size_t bytes);
void backend_put_back(const struct at *, void *);

/* Returns what is there now, as fp32; the caller frees it. */
float *backend_take(const struct at *, const void *x, size_t n, uint32_t dtype);
void backend_take_bytes(const struct at *, void *to, const void *x, size_t bytes);

/*
 * Returns n floats of about -size … size that bf16 represents exactly; the caller frees them. `size` is a power of two.
 */
float *backend_random(size_t n, float size);

#endif
