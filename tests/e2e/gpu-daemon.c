/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon on a real device: what the fake driver of test-device.c cannot show. The driver imports and writes
 * segments; memory of a killed client is freed, and memory of clients stays when the daemon is killed.
 *
 * Skipped (77) without a device, but a failure if SPARSEKV_REQUIRE_GPU=1. CUDA does not survive a fork, so each test's
 * process initializes it, and the parent never does.
 */
#include <check.h>
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "daemon/mem/driver.h"
#include "tests/support/child.h"
#include "tests/support/daemon-fixture.h"
#include "tests/support/privilege.h"
#include "tests/support/suite.h"

#define OTHER_UID 54321u
#define MB ((size_t)1 << 20)
#define SEGMENT (64 * MB)
#define PAGES (uint32_t)(SEGMENT / 4096) /* pages of raw_model() in a segment */
#define SLACK (48 * MB)                  /* memory that the driver may allocate for itself meanwhile */

static struct fix fix;
static unsigned n_devices;

/* ---- the driver, in this process ---- */

static struct {
	__typeof__(&cuMemGetInfo) get_info;
	__typeof__(&cuMemcpyDtoH) to_host;
	__typeof__(&cuIpcOpenMemHandle) ipc_open;
} cu;

#define NAME_OF(f) NAME_OF_(f)
#define NAME_OF_(f) #f

static void ok(CUresult r, const char *what)
{
	char why[SKV_CUDA_TEXT_MAX];

	ck_assert_msg(skv_cu_error(r, what, why) == 0, "%s", why);
}

static void gpu_begin(unsigned device)
{
	char why[SKV_CUDA_TEXT_MAX];
	CUcontext context;
	void *lib;

	ck_assert_msg(skv_cuda_load(why) == 0, "%s", why);
	lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	*(void **)&cu.get_info = dlsym(lib, NAME_OF(cuMemGetInfo));
	*(void **)&cu.to_host = dlsym(lib, NAME_OF(cuMemcpyDtoH));
	*(void **)&cu.ipc_open = dlsym(lib, NAME_OF(cuIpcOpenMemHandle));
	ck_assert(cu.get_info && cu.to_host && cu.ipc_open);
	ok(skv_cu.cuDevicePrimaryCtxRetain(&context, (CUdevice)device), "context");
	ok(skv_cu.cuCtxSetCurrent(context), "context");
}

static size_t free_bytes(void)
{
	size_t left, all;

	ok(cu.get_info(&left, &all), "memory");
	return left;
}

/* Waits until as much memory is free as before, except SLACK, 5 s at most. Returns the seconds. */
static double wait_free(size_t before)
{
	double begun = fix_now();

	while (free_bytes() + SLACK < before && fix_now() < begun + 5)
		fix_sleep_ms(1);
	return fix_now() - begun;
}

static CUdeviceptr map_fd(int fd, unsigned device)
{
	CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)device},
	                          .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;

	ck_assert_int_ge(fd, 0);
	ok(skv_cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
	                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
	   "import");
	ok(skv_cu.cuMemAddressReserve(&at, SEGMENT, 0, 0, 0), "addresses");
	ok(skv_cu.cuMemMap(at, SEGMENT, 0, handle, 0), "map");
	ok(skv_cu.cuMemRelease(handle), "release");
	ok(skv_cu.cuMemSetAccess(at, SEGMENT, &access, 1), "access");
	return at;
}

static void unmap(CUdeviceptr at)
{
	ok(skv_cu.cuMemUnmap(at, SEGMENT), "unmap");
	ok(skv_cu.cuMemAddressFree(at, SEGMENT), "addresses");
}

static void fill(CUdeviceptr at, unsigned char value)
{
	ok(skv_cu.cuMemsetD8(at, value, SEGMENT), "memset");
	ok(skv_cu.cuCtxSynchronize(), "memset");
}

/* Returns the number of bytes that are not `value`. */
static size_t differing(CUdeviceptr at, unsigned char value)
{
	unsigned char *copy = malloc(SEGMENT);
	size_t n = 0;

	ck_assert_ptr_nonnull(copy);
	ok(cu.to_host(copy, at, SEGMENT), "copy");
	for (size_t i = 0; i < SEGMENT; i++)
		n += copy[i] != value;
	free(copy);
	return n;
}

/* ---- the daemon ---- */

static void begin(const char *option)
{
	const char *const options[] = {"--cuda=required",    "--cuda-segment-bytes=64M", "--cuda-pool-bytes=2G",
	                               "--cuda-worker-idle=1", option, NULL};

	fix_start_process(&fix, options);
}

static void setup(void)
{
	begin(NULL);
}

static void setup_legacy(void)
{
	begin("--ipc=legacy");
}

static void teardown(void)
{
	fix_stop(&fix);
}

static struct raw *client_on(unsigned device, uint32_t *ret_session)
{
	struct skv_wire_model m = raw_model("m");
	struct raw *r = raw_hello(fix.socket);

	m.device = SKV_DEVICE_CUDA(device);
	r->keep_fd = true;
	*ret_session = raw_open_model(r, &m, "full", NULL);
	return r;
}

static int64_t figure(const char *field)
{
	struct raw *r = raw_operator(fix.socket);
	json_t *answer = raw_query(r, SKV_QUERY_STATUS);
	json_t *row = json_array_get(json_object_get(answer, "devices"), 0);
	int64_t x = json_integer_value(json_object_get(row, field));

	json_decref(answer);
	raw_close(r);
	return x;
}

static void expect_figure(const char *field, int64_t expected)
{
	for (double end = fix_now() + 10; figure(field) != expected && fix_now() < end;)
		fix_sleep_ms(10);
	ck_assert_int_eq(figure(field), expected);
}

/* ---- */

START_TEST(a_segment_is_imported_and_zero)
{
	for (unsigned device = 0; device < n_devices; device++) {
		uint32_t session;
		struct raw *r = client_on(device, &session);
		double begun = fix_now(), first, second;
		CUdeviceptr at;

		raw_lease(r, session, 1);
		first = fix_now() - begun;
		gpu_begin(device);
		at = map_fd(r->segment_fd, device);
		ck_assert_uint_eq(differing(at, 0), 0);
		fill(at, 0xee);
		ck_assert_uint_eq(differing(at, 0xee), 0);
		unmap(at);
		begun = fix_now();
		raw_lease(r, session, PAGES);
		second = fix_now() - begun;
		printf("cuda:%u: a lease of a new segment: %.1f ms with a worker to start, %.2f ms without\n",
		       device, first * 1e3, second * 1e3);
		raw_close(r);
	}
}
END_TEST

START_TEST(the_daemon_takes_nothing_for_itself)
{
	uint32_t session;
	struct raw *r;
	size_t before;
	int64_t taken;

	gpu_begin(0);
	before = free_bytes();
	r = client_on(0, &session);
	raw_lease(r, session, 1);
	expect_figure("worker_pid", 0);
	taken = (int64_t)before - (int64_t)free_bytes();
	printf("one segment of 64 MiB and an idle daemon take %.0f MiB\n", (double)taken / (double)MB);
	ck_assert_int_le(taken, (int64_t)(SEGMENT + SLACK)); /* a context would be some 500 MiB */
	raw_close(r);
	ck_assert_double_lt(wait_free(before), 1);
}
END_TEST

static void visit(void *arg)
{
	uint32_t session;
	struct raw *r = client_on(0, &session);

	(void)arg;
	gpu_begin(0);
	for (int i = 0; i < 8; i++) {
		CUdeviceptr at;

		raw_lease(r, session, PAGES);
		at = map_fd(r->segment_fd, 0);
		ck_assert_msg(differing(at, 0) == 0, "segment %d is not zero", i);
		fill(at, 0xdd);
	}
}

START_TEST(another_user_sees_zeros)
{
	for (int i = 0; i < 4; i++)
		fix_in_child(can_change_user() && i % 2 ? OTHER_UID : 0, visit, NULL);
}
END_TEST

START_TEST(who_asks_for_more_than_there_is_works_on)
{
	uint32_t session;
	struct raw *r = client_on(0, &session);
	struct skv_msg_lease_get m = {.session = session, .least = 1, .most = 1};

	for (int i = 0; i < 32; i++)
		raw_lease(r, session, PAGES);
	ck_assert_int_eq(raw_refused(r, SKV_MSG_LEASE_GET, &m, sizeof(m), -1), ENOSPC);
	raw_close(r);
	expect_figure("segment_bytes", 0);
}
END_TEST

/* A client that waits for a message, takes 1 GiB, reports that, and waits to be killed. */
static pid_t start_victim(int *ret_go, int *ret_said)
{
	int go[2], said[2];
	pid_t pid;

	ck_assert_int_eq(pipe(go), 0);
	ck_assert_int_eq(pipe(said), 0);
	pid = child_fork();
	if (pid == 0) {
		uint32_t session;
		struct raw *r;
		char c;

		ck_assert_int_eq(read(go[0], &c, 1), 1);
		r = client_on(0, &session);
		gpu_begin(0);
		for (int i = 0; i < 16; i++) {
			raw_lease(r, session, PAGES);
			fill(map_fd(r->segment_fd, 0), 1);
		}
		ck_assert_int_eq(write(said[1], "", 1), 1);
		for (;;)
			pause();
	}
	close(go[0]);
	close(said[1]);
	*ret_go = go[1];
	*ret_said = said[0];
	return pid;
}

START_TEST(memory_of_a_killed_client_comes_back)
{
	int go, said;
	pid_t victim = start_victim(&go, &said); /* before this process initializes CUDA */
	size_t before;
	double seconds;
	char c = 0;

	gpu_begin(0);
	before = free_bytes();
	ck_assert_int_eq(write(go, &c, 1), 1);
	ck_assert_int_eq(read(said, &c, 1), 1);
	expect_figure("worker_pid", 0);
	ck_assert_uint_ge(before, free_bytes() + 16 * SEGMENT);
	ck_assert_int_eq(kill(victim, SIGKILL), 0);
	seconds = wait_free(before);
	printf("a killed client's 1 GiB is back after %.0f ms\n", seconds * 1e3);
	ck_assert_double_lt(seconds, 1);
	ck_assert_int_eq(waitpid(victim, NULL, 0), victim);
	expect_figure("segment_bytes", 0);
	close(go);
	close(said);
}
END_TEST

START_TEST(memory_outlives_the_daemon)
{
	uint32_t session;
	struct raw *r = client_on(0, &session);
	CUdeviceptr at, again;

	raw_lease(r, session, PAGES);
	gpu_begin(0);
	at = map_fd(r->segment_fd, 0);
	fill(at, 0x11);
	fix_kill(&fix);
	ck_assert_uint_eq(differing(at, 0x11), 0);
	fill(at, 0x22);
	again = map_fd(r->segment_fd, 0); /* the descriptor is still valid */
	ck_assert_uint_eq(differing(again, 0x22), 0);
	unmap(again);
	unmap(at);
	raw_close(r);
	begin(NULL); /* for the teardown */
}
END_TEST

START_TEST(a_worker_that_was_killed_is_replaced)
{
	uint32_t session;
	struct raw *r = client_on(0, &session);

	raw_lease(r, session, 1);
	ck_assert_int_eq(kill((pid_t)figure("worker_pid"), SIGKILL), 0);
	raw_lease(r, session, PAGES);
	ck_assert_int_eq(figure("workers_started"), 2);
	raw_close(r);
}
END_TEST

START_TEST(a_legacy_segment_is_opened_and_zero)
{
	uint32_t session;
	struct raw *r = client_on(0, &session);
	CUipcMemHandle handle;
	CUdeviceptr at;

	raw_lease(r, session, PAGES);
	ck_assert_uint_eq(r->segment.segment.handle, SKV_HANDLE_CUDA_IPC);
	memcpy(&handle, r->segment.ipc_handle, sizeof(handle));
	gpu_begin(0);
	ok(cu.ipc_open(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), "cuIpcOpenMemHandle");
	ck_assert_uint_eq(differing(at, 0), 0);
	fill(at, 0x33);
	ck_assert_uint_eq(differing(at, 0x33), 0);
	/* when the worker ends its memory is gone, for the daemon and thus for its clients */
	ck_assert_int_eq(kill((pid_t)figure("worker_pid"), SIGKILL), 0);
	raw_expect_end(r);
	raw_close(r);
	r = client_on(0, &session);
	raw_lease(r, session, PAGES);
	raw_close(r);
}
END_TEST

/* Counts devices in a child process; 0: none. */
static unsigned count_devices(void)
{
	int status;
	pid_t pid = child_fork();

	if (pid == 0) {
		char why[SKV_CUDA_TEXT_MAX];
		int n = 0;

		if (skv_cuda_load(why) == 0)
			skv_cu.cuDeviceGetCount(&n);
		else
			fprintf(stderr, "%s\n", why);
		_exit(n);
	}
	return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? (unsigned)WEXITSTATUS(status) : 0;
}

int main(void)
{
	const char *required = getenv("SPARSEKV_REQUIRE_GPU");
	Suite *s;

	n_devices = count_devices();
	if (!n_devices) {
		fprintf(stderr, "gpu-daemon: there is no device\n");
		return required && !strcmp(required, "1") ? EXIT_FAILURE : 77;
	}
	s = begin_suite("gpu-daemon");
	add_case(s, "vmm", 120, setup, teardown, a_segment_is_imported_and_zero,
	         the_daemon_takes_nothing_for_itself, another_user_sees_zeros,
	         who_asks_for_more_than_there_is_works_on, memory_of_a_killed_client_comes_back,
	         memory_outlives_the_daemon, a_worker_that_was_killed_is_replaced, NULL);
	add_case(s, "legacy", 120, setup_legacy, teardown, a_legacy_segment_is_opened_and_zero, NULL);
	return run_suite(s);
}
