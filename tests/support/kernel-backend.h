/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/kernel-backend.h - what the kernel tests run on: every ISA of this processor, and its device.
 *
 * A device may be missing; with SPARSEKV_REQUIRE_GPU=1 that is a failure. It is $CUDA_VISIBLE_DEVICES's
 * first.
 */
#ifndef SKV_KERNEL_BACKEND_H
#define SKV_KERNEL_BACKEND_H

#include <check.h>
#include "kernels/device.h"

#define CASE_BACKENDS 8u

struct test_backend {
	const char *name;
	const struct skv_kernels *kern;
	uint32_t io_dtype; /* enum skv_dtype of q, k, v and out; fp32, or for pools of the same dtype alone */
	bool device;       /* scratch begins as zeros; with 16-bit pools arithmetic is that of tensor cores */
	void *stream;      /* for struct skv_workspace */
	void *(*get)(size_t bytes); /* 64-byte aligned */
	void (*put)(void *);
	void (*to)(void *dst, const void *src, size_t bytes);
	void (*from)(void *dst, const void *src, size_t bytes);
	void (*wait)(void); /* until what was queued is done */
};

/*
 * First in main(): the seed (random.h), and a line on whether there is a device. CUDA does not survive a
 * fork, and Check forks for each test: so a child looks, and what the tests use begins with case_backends()
 * or case_device().
 */
enum case_device { CASE_NO_DEVICE, CASE_HAS_DEVICE, CASE_LACKS_DEVICE /* the test fails */ };
enum case_device case_begin(const char *program);
/* The same, and the program's suite; where a device must be and is not, the program ends. */
Suite *case_suite(const char *program);

/* At most CASE_BACKENDS; ends with one without kernels. */
const struct test_backend *case_backends(void);

/* The device, entered, and a stream of it. NULL: none. */
const struct skv_backend *case_device(void **ret_stream);

/* Fails the test with the backend's text if r < 0. */
void case_ok(const struct skv_backend *, int r);

#endif
