/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/engine-backends.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "engine/error.h"
#include "tests/support/random.h"

static bool there; /* the device, as places_begin() found out */

/* The module in this build folder, or in its copy on another machine. */
static void name_module(const char *variable, const char *file)
{
	const char *moved = getenv("SKV_BUILDDIR");
	char path[512];

	snprintf(path, sizeof(path), "%s/%s", moved ? moved : SKV_BUILDDIR, file);
	setenv(variable, path, 0);
}

static bool look(const char *program)
{
	pid_t pid = getenv("SKV_VALGRIND") ? -1 : fork();
	int status;

	if (pid == 0) {
		struct eng_backend *place;
		struct eng_error err;

		if (!eng_backend_open(&place, SKV_DEVICE_CUDA(0), &err))
			_exit(EXIT_SUCCESS);
		fprintf(stderr, "%s: on the host alone: %s\n", program, err.text);
		_exit(EXIT_FAILURE);
	}
	return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) &&
	       WEXITSTATUS(status) == EXIT_SUCCESS;
}

bool places_begin(const char *program)
{
	const char *required = getenv("SPARSEKV_REQUIRE_GPU");

	rnd_seed(program);
	name_module("SPARSEKV_CUDA_MODULE", "kernels/cuda/libsparsekv-cuda.so");
	name_module("SPARSEKV_ENGINE_CUDA_MODULE", "engine/cuda/libsparsekv-engine-cuda.so");
	there = look(program);
	return there || !required || strcmp(required, "1");
}

struct eng_backend *backend_device(void)
{
	static struct eng_backend *device;
	struct eng_error err;

	if (there && !device && eng_backend_open(&device, SKV_DEVICE_CUDA(0), &err))
		ck_abort_msg("%s", err.text);
	return device;
}

unsigned places_all(struct at to[3])
{
	struct eng_backend *device = backend_device();

	to[0] = (struct at){eng_backend_host(), SKV_F32};
	to[1] = (struct at){device, SKV_F32};
	to[2] = (struct at){device, SKV_BF16};
	return device ? 3 : 1;
}

void backend_ok(const struct eng_backend *place, int r)
{
	if (r < 0)
		ck_abort_msg("%s", place->ops->error());
}

void *backend_give_bytes(const struct at *at, const void *x, size_t bytes)
{
	void *there_;

	backend_ok(at->place, at->place->ops->alloc(at->place, bytes, &there_));
	if (x)
		backend_ok(at->place, at->place->ops->put(at->place, there_, x, bytes));
	return there_;
}

void *backend_give(const struct at *at, const float *x, size_t n, uint32_t dtype)
{
	uint16_t *narrow;
	void *there_;

	if (dtype == SKV_F32 || !x)
		return backend_give_bytes(at, x, n * skv_dtype_bytes(dtype));
	narrow = malloc(n * sizeof(*narrow));
	ck_assert_ptr_nonnull(narrow);
	for (size_t i = 0; i < n; i++) {
		uint32_t bits;

		memcpy(&bits, &x[i], sizeof(bits));
		ck_assert_uint_eq(bits & 0xffff, 0);
		narrow[i] = (uint16_t)(bits >> 16);
	}
	there_ = backend_give_bytes(at, narrow, n * sizeof(*narrow));
	free(narrow);
	return there_;
}

void backend_put_back(const struct at *at, void *x)
{
	at->place->ops->free(at->place, x);
}

void backend_take_bytes(const struct at *at, void *to, const void *x, size_t bytes)
{
	struct eng_backend *p = at->place;
	void *seen;

	backend_ok(p, p->ops->check(p));
	backend_ok(p, p->ops->alloc_host(p, bytes, &seen));
	backend_ok(p, p->ops->fetch(p, seen, x, bytes));
	backend_ok(p, p->ops->fetched(p));
	memcpy(to, seen, bytes);
	p->ops->free_host(p, seen);
}

float *backend_take(const struct at *at, const void *x, size_t n, uint32_t dtype)
{
	float *to = malloc((n + 1) * sizeof(*to));
	uint16_t *narrow = (uint16_t *)to;

	ck_assert_ptr_nonnull(to);
	backend_take_bytes(at, to, x, n * skv_dtype_bytes(dtype));
	for (size_t i = n; dtype == SKV_BF16 && i-- > 0;) {
		uint32_t bits;
		uint16_t high;

		memcpy(&high, narrow + i, sizeof(high));
		bits = (uint32_t)high << 16;
		memcpy(&to[i], &bits, sizeof(bits));
	}
	return to;
}

float *backend_random(size_t n, float size)
{
	float *x = malloc((n ? n : 1) * sizeof(*x));

	ck_assert_ptr_nonnull(x);
	for (size_t i = 0; i < n; i++)
		x[i] = (float)((int)rnd_below(511) - 255) / 256 * size;
	return x;
}
