/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/kernel-backend.h - the backends of the kernel tests: every ISA of this processor, and the device.
 *
 * The device is the first of $CUDA_VISIBLE_DEVICES. It may be missing; with SPARSEKV_REQUIRE_GPU=1 that is a failure.
 */
#ifndef SKV_KERNEL_BACKEND_H
#define SKV_KERNEL_BACKEND_H

#include <check.h>
#include "kernels/device.h"

#define CASE_BACKENDS 8u

struct test_backend {
	const char *name;
	const struct skv_kernels *kern;
	uint32_t io_dtype; /* enum skv_dtype of q, k, v and out: fp32, or 16 bits for pools of the same dtype */
	bool device;       /* workspaces start as zeros; with 16-bit pools arithmetic is that of tensor cores */
	void *stream;      /* for struct skv_workspace */
	void *(*get)(size_t bytes); /* 64-byte aligned */
	void (*put)(void *);
	void (*to)(void *dst, const void *src, size_t bytes);
	void (*from)(void *dst, const void *src, size_t bytes);
	void (*wait)(void); /* until all queued work is done */
};

/*
 * Call first in main(): sets the seed (random.h), and prints whether there is a device. CUDA does not survive a fork
 * and Check forks for each test: so a child process checks for a device, and each test begins with case_backends() or
 * case_device().
 */
enum case_device { CASE_NO_DEVICE, CASE_HAS_DEVICE, CASE_LACKS_DEVICE /* the test fails */ };
enum case_device case_begin(const char *program);
/* Calls case_begin() and makes the program's suite. If a required device is missing, the program ends. */
Suite *case_suite(const char *program);

/* Returns at most CASE_BACKENDS backends; the last element has kern = NULL. */
const struct test_backend *case_backends(void);

/* Returns the device, entered, and a stream of it. NULL: there is none. */
const struct skv_backend *case_device(void **ret_stream);

/* Fails the test with the backend's text if r < 0. */
void case_ok(const struct skv_backend *, int r);

#endif
