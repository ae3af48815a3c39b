/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/kernel-backend.h"
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/support/kernel-case.h"

/* ---- the host -------------------------------------------------------------------------------- */

/* Exactly as large as requested, so that a sanitizer finds accesses past the end. */
static void *host_get(size_t bytes)
{
	void *p;
	ck_assert_int_eq(posix_memalign(&p, 64, bytes ? bytes : 1), 0);
	return p;
}

static void host_copy(void *dst, const void *src, size_t bytes)
{
	memcpy(dst, src, bytes);
}

static void host_wait(void)
{
}

/* Returns how many backends were added. */
static size_t add_host(struct test_backend *to)
{
	static const char *const isas[] = {"generic", "avx2", "avx512"};
	size_t n = 0;
	for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
		const struct skv_kernels *kern = skv_kernels_host(isas[i]);
		if (kern)
			to[n++] = (struct test_backend){.name = isas[i], .kern = kern, .io_dtype = SKV_F32,
			                                .get = host_get, .put = free, .to = host_copy,
			                                .from = host_copy, .wait = host_wait};
	}
	return n;
}

/* ---- the device ------------------------------------------------------------------------------ */

static bool there; /* the device, as case_begin() found out */
static const struct skv_backend *device;
static void *stream;

/* The module in this build folder, or in its copy on another machine. */
static void name_module(void)
{
	const char *moved = getenv("SKV_BUILDDIR");
	char path[512];

	snprintf(path, sizeof path, "%s/kernels/cuda/libsparsekv-cuda.so", moved ? moved : SKV_BUILDDIR);
	setenv("SPARSEKV_CUDA_MODULE", path, 0);
}

static bool look(const char *program)
{
	int status;
	pid_t pid = getenv("SKV_VALGRIND") ? -1 : fork();

	if (pid == 0) {
		char why[512];
		bool found = skv_backend_cuda(why, sizeof why);

		if (!found)
			fprintf(stderr, "%s: on the host alone: %s\n", program, why);
		_exit(found ? EXIT_SUCCESS : EXIT_FAILURE);
	}
	return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) &&
	       WEXITSTATUS(status) == EXIT_SUCCESS;
}

enum case_device case_begin(const char *program)
{
	const char *required = getenv("SPARSEKV_REQUIRE_GPU");

	rnd_seed(program);
	name_module();
	there = look(program);
	if (there)
		return CASE_HAS_DEVICE;
	return required && !strcmp(required, "1") ? CASE_LACKS_DEVICE : CASE_NO_DEVICE;
}

Suite *case_suite(const char *program)
{
	if (case_begin(program) == CASE_LACKS_DEVICE)
		exit(EXIT_FAILURE);
	return suite_create(program);
}

void case_ok(const struct skv_backend *b, int r)
{
	if (r < 0)
		ck_abort_msg("%s", b->error());
}

const struct skv_backend *case_device(void **ret_stream)
{
	char why[512];
	void *was;

	if (there && !device) {
		device = skv_backend_cuda(why, sizeof why);
		ck_assert_msg(device != NULL, "%s", why);
		case_ok(device, device->enter(0, &was));
		case_ok(device, device->stream_new(&stream));
	}
	*ret_stream = stream;
	return device;
}

static void *device_get(size_t bytes)
{
	void *p;
	case_ok(device, device->alloc(bytes, &p));
	return p;
}

static void device_put(void *p)
{
	case_ok(device, device->free(p));
}

static void device_wait(void)
{
	case_ok(device, device->wait(stream));
}

static void device_copy(void *dst, const void *src, size_t bytes)
{
	case_ok(device, device->copy(dst, src, bytes, stream));
	device_wait();
}

/*
 * Rows of fp32 work with every pool, rows of 16 bits with pools of the same dtype. Returns how many backends were
 * added.
 */
static size_t add_device(struct test_backend *to)
{
	static const char *const names[] = {[SKV_F32] = "cuda", [SKV_F16] = "cuda/fp16",
	                                    [SKV_BF16] = "cuda/bf16"};
	void *on;
	size_t n = 0;

	if (!case_device(&on))
		return 0;
	for (; n < sizeof names / sizeof *names; n++)
		to[n] = (struct test_backend){.name = names[n], .kern = device->kernels,
		                              .io_dtype = (uint32_t)n, .device = true, .stream = on, .get = device_get,
		                              .put = device_put, .to = device_copy, .from = device_copy,
		                              .wait = device_wait};
	return n;
}

const struct test_backend *case_backends(void)
{
	static struct test_backend list[CASE_BACKENDS + 1];
	static size_t n;
	if (!n) {
		n = add_host(list);
		n += add_device(list + n);
	}
	return list;
}
