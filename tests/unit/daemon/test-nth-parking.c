/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Nth call fails, for all N, in a daemon that parks sequences, or in its disk workers: on files, rings, memory and
 * descriptors. tests/support/nth-parked.h says what must hold then.
 */
#include <errno.h>

#include "tests/support/nth-parked.h"
#include "tests/support/nth-world.h"

static void begin(void)
{
	static const char *const options[] = {"--pool-bytes=16M", "--segment-bytes=1M", "--account-bytes=12M", "--cuda=off", NULL};

	nth_parked_begin(options);
}

static const struct nth_scenario scenarios[] = {{"sequences travel", nth_parked_travels}, {"the next daemon starts", nth_parked_next_daemon}};

#define WORKER FAIL_DISK_WORKER
static const struct nth_failure failures[] = {
	{FAIL_TRANSFER, "worker: transfer: EIO", EIO, false, WORKER},
	{FAIL_TRANSFER, "worker: transfer: ENOSPC", ENOSPC, false, WORKER},
	{FAIL_TRANSFER, "worker: transfer: EINVAL", EINVAL, false, WORKER},
	{FAIL_TRANSFER, "worker: transfer, onwards", EIO, true, WORKER},
	{FAIL_SHORT, "worker: short", 0, false, WORKER},
	{FAIL_SHORT, "worker: short, onwards", 0, true, WORKER},
	{FAIL_SHORT, "worker: a byte", 1, false, WORKER},
	{FAIL_OPERATION, "worker: operation", 0, false, WORKER},
	{FAIL_OPERATION, "worker: operation: ENOSPC, onwards", ENOSPC, true, WORKER},
	{FAIL_FILE, "worker: file: EIO", EIO, false, WORKER},
	{FAIL_FILE, "worker: file: EOPNOTSUPP", EOPNOTSUPP, false, WORKER},
	{FAIL_FILE, "worker: file, onwards", EIO, true, WORKER},
	{FAIL_ALLOC, "worker: alloc", 0, false, WORKER},
	{FAIL_ALLOC, "worker: alloc, onwards", 0, true, WORKER},
	{FAIL_MEMORY, "worker: memory", 0, false, WORKER},
	{FAIL_DESCRIPTOR, "worker: descriptor", 0, false, WORKER},
	{FAIL_WRITE, "worker: write", 0, false, WORKER},
	{FAIL_SEND, "worker: send", 0, false, WORKER},
	{FAIL_RECEIVE, "worker: receive", 0, false, WORKER},
	{FAIL_RING, "worker: ring: EAGAIN", EAGAIN, false, WORKER},
	{FAIL_RING, "worker: ring: ENOMEM", ENOMEM, false, WORKER},
	{FAIL_RING, "worker: ring: ENOMEM, onwards", ENOMEM, true, WORKER},
	{FAIL_ALLOC, "alloc", 0, false, FAIL_DAEMON},
	{FAIL_ALLOC, "alloc, onwards", 0, true, FAIL_DAEMON},
	{FAIL_MEMORY, "memory", 0, false, FAIL_DAEMON},
	{FAIL_DESCRIPTOR, "descriptor", 0, false, FAIL_DAEMON},
	{FAIL_DESCRIPTOR, "descriptor, onwards", 0, true, FAIL_DAEMON},
	{FAIL_FILE, "file: EIO", EIO, false, FAIL_DAEMON},
	{FAIL_FILE, "file: ENOMEM", ENOMEM, false, FAIL_DAEMON},
	{FAIL_FILE, "file, onwards", EIO, true, FAIL_DAEMON},
	{FAIL_WRITE, "write", 0, false, FAIL_DAEMON},
	{FAIL_RING, "ring: ENOMEM", ENOMEM, false, FAIL_DAEMON},
	{FAIL_OPERATION, "operation", 0, false, FAIL_DAEMON},
};

int main(void)
{
	static const struct nth_program program = {
		.name = "test-nth-parking",
		.scenarios = scenarios,
		.n_scenarios = sizeof(scenarios) / sizeof(scenarios[0]),
		.failures = failures,
		.n_failures = sizeof(failures) / sizeof(failures[0]),
		.begin = begin,
		.check = nth_world_check,
		.end = nth_world_end,
		.tell = nth_world_tell,
		.sample = 2,
		.one_of = 8,
	};

	return nth_main(&program);
}
