/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Nth call of the CUDA driver fails, for all N, in a daemon with device memory, in its device worker or in its disk
 * worker, while engines run, sequences are parked and resumed, and the next daemon starts; and other calls of the
 * device worker fail. The driver and the engines' device are fake.
 */
#include <errno.h>
#include <stdlib.h>

#include "tests/support/client-test.h"
#include "tests/support/nth-engine.h"
#include "tests/support/nth-parked.h"
#include "tests/support/nth-world.h"

enum { OUT_OF_MEMORY = 2, ILLEGAL_ADDRESS = 700, UNKNOWN = 999 }; /* CUresult values of the driver */

static void begin(void)
{
	static const char *const options[] = {
		"--pool-bytes=16M", "--segment-bytes=1M", "--account-bytes=12M", "--cuda=auto", "--cuda-segment-bytes=2M", "--cuda-pool-bytes=32M", NULL,
	};

	ck_assert_int_eq(setenv("SKV_TEST_DEVICE", "1", 1), 0);
	ck_assert_int_eq(setenv("FAKE_CUDA_DIR", nth_folder, 1), 0);
	ck_assert_int_eq(setenv("LD_LIBRARY_PATH", fix_built("tests/fake-cuda"), 1), 0);
	ck_assert_int_eq(setenv("SPARSEKV_CUDA_MODULE", fix_built("tests/support/.libs/fake-backend.so"), 1), 0);
	nth_parked_begin(options);
}

/* The daemon is new and has not used the device for the victim's model; the bystander's sequence exists. */
static void victim_works(uint32_t n)
{
	nth_arm(n);
	nth_world_must_succeed(nth_engine_start(NTH_ALL, NULL));
	ck_assert_msg(nth_failure.onwards || !nth_engine_result().gave_up, "%s", nth_engine_result().first);
}

static const struct nth_scenario scenarios[] = {
	{"a victim works", victim_works}, {"sequences travel", nth_parked_travels}, {"the next daemon starts", nth_parked_next_daemon},
};

static const struct nth_failure failures[] = {
	{FAIL_DRIVER, "driver: no memory", OUT_OF_MEMORY, false, FAIL_DAEMON},
	{FAIL_DRIVER, "driver: unknown", UNKNOWN, false, FAIL_DAEMON},
	{FAIL_DRIVER, "driver: no memory, onwards", OUT_OF_MEMORY, true, FAIL_DAEMON},
	{FAIL_DRIVER, "disk worker: driver: no memory", OUT_OF_MEMORY, false, FAIL_DISK_WORKER},
	{FAIL_DRIVER, "disk worker: driver: fault", ILLEGAL_ADDRESS, false, FAIL_DISK_WORKER},
	{FAIL_DRIVER, "disk worker: driver: unknown, onwards", UNKNOWN, true, FAIL_DISK_WORKER},
	{FAIL_DRIVER, "device worker: driver: no memory", OUT_OF_MEMORY, false, FAIL_DEVICE_WORKER},
	{FAIL_DRIVER, "device worker: driver: fault", ILLEGAL_ADDRESS, false, FAIL_DEVICE_WORKER},
	{FAIL_DRIVER, "device worker: driver: unknown, onwards", UNKNOWN, true, FAIL_DEVICE_WORKER},
	{FAIL_SEND, "device worker: send", 0, false, FAIL_DEVICE_WORKER},
	{FAIL_RECEIVE, "device worker: receive", 0, false, FAIL_DEVICE_WORKER},
	{FAIL_ALLOC, "device worker: alloc", 0, false, FAIL_DEVICE_WORKER},
	{FAIL_ALLOC, "disk worker: alloc", 0, false, FAIL_DISK_WORKER},
	{FAIL_ALLOC, "alloc", 0, false, FAIL_DAEMON},
	{FAIL_DESCRIPTOR, "descriptor", 0, false, FAIL_DAEMON},
	{FAIL_OPERATION, "operation", 0, false, FAIL_DAEMON},
};

int main(void)
{
	static const struct nth_program program = {
		.name = "test-nth-device",
		.scenarios = scenarios,
		.n_scenarios = sizeof(scenarios) / sizeof(scenarios[0]),
		.failures = failures,
		.n_failures = sizeof(failures) / sizeof(failures[0]),
		.begin = begin,
		.check = nth_world_check,
		.end = nth_world_end,
		.tell = nth_world_tell,
		.sample = 2,
		.one_of = 4,
	};

	return nth_main(&program);
}
