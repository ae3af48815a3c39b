/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Nth call of the daemon fails, for all N: allocations, memory and descriptors, writes, sends, ring submissions,
 * and operations of the ring; once, or from then on. N grows until a whole scenario passes without the failure.
 *
 * After each failure the daemon is alive and its state balances, or it has ended with an error and the next daemon has
 * everything. Calls of a victim fail with an error and a text, and succeed when they are retried; a bystander loses
 * nothing, and its steps are undisturbed.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/client-test.h"
#include "tests/support/manager.h"
#include "tests/support/nth-engine.h"
#include "tests/support/nth-world.h"

static const char *const options[] = {"--pool-bytes=16M", "--segment-bytes=1M", "--account-bytes=12M", "--cuda=off", NULL};

static void begin(void)
{
	nth_world_begin(options);
}

static void victim_works(uint32_t n)
{
	nth_arm(n);
	nth_world_must_succeed(nth_engine_start(NTH_ALL, NULL));
	ck_assert_msg(nth_failure.onwards || !nth_engine_result().gave_up, "%s", nth_engine_result().first);
}

static void victim_dies(uint32_t n)
{
	pid_t pid;
	int status;

	nth_arm(n);
	pid = nth_engine_start(NTH_AND_DIES, NULL);
	status = nth_world_wait(pid);
	ck_assert_msg(status == SIGKILL || (status == 0 && nth_failure.onwards), "wait status %#x: %s", (unsigned)status, child_problem());
	for (int i = 0; i < 100; i++) { /* wait until the daemon has freed what the victim had */
		nth_world_follow_daemon();
		usleep(200);
	}
}

static void next_one_starts(uint32_t n)
{
	nth_world_must_succeed(nth_engine_start(NTH_ALL, NULL));
	nth_world_next_daemon(n);
}

static void control(const char *what)
{
	char command[700];
	pid_t pid = child_fork();

	if (pid == 0) {
		snprintf(command, sizeof(command), "%s --socket %s --timeout 10 %s >/dev/null 2>&1", fix_built("daemon/ctl/sparsekvctl"), manager_socket, what);
		_exit(system(command) == -1);
	}
	nth_world_must_succeed(pid);
}

static void operator_asks(uint32_t n)
{
	char text[256];

	nth_arm(n);
	control("status");
	control("seq list");
	control("policy list");
	snprintf(text, sizeof(text), "policy load %s/full.so", nth_folder);
	control(text);
	for (int i = 1; i >= 0; i--) {
		snprintf(text, sizeof(text), "policy swap '%s' --model bystander --wait 1", nth_engine_specs[i]);
		control(text);
	}
	control("metrics");
	if (manager_daemon())
		kill(manager_daemon(), SIGHUP);
	nth_world_bystander_goes_on();
}

static const struct nth_scenario scenarios[] = {
	{"a victim works", victim_works}, {"a victim dies", victim_dies}, {"the next daemon starts", next_one_starts}, {"an operator asks", operator_asks},
};

static const struct nth_failure failures[] = {
	{FAIL_ALLOC, "alloc", 0, false, 0},
	{FAIL_ALLOC, "alloc, onwards", 0, true, 0},
	{FAIL_MEMORY, "memory", 0, false, 0},
	{FAIL_MEMORY, "memory, onwards", 0, true, 0},
	{FAIL_DESCRIPTOR, "descriptor", 0, false, 0},
	{FAIL_DESCRIPTOR, "descriptor, onwards", 0, true, 0},
	{FAIL_WRITE, "write", 0, false, 0},
	{FAIL_WRITE, "write, onwards", 0, true, 0},
	{FAIL_SEND, "send", 0, false, 0},
	{FAIL_RING, "ring: EAGAIN", EAGAIN, false, 0},
	{FAIL_RING, "ring: EBUSY", EBUSY, false, 0},
	{FAIL_RING, "ring: EINTR", EINTR, false, 0},
	{FAIL_RING, "ring: ENOMEM", ENOMEM, false, 0},
	{FAIL_RING, "ring: ENOMEM, onwards", ENOMEM, true, 0},
	{FAIL_OPERATION, "operation", 0, false, 0},
};

int main(void)
{
	static const struct nth_program program = {
		.name = "test-nth-failure",
		.scenarios = scenarios,
		.n_scenarios = sizeof(scenarios) / sizeof(scenarios[0]),
		.failures = failures,
		.n_failures = sizeof(failures) / sizeof(failures[0]),
		.begin = begin,
		.check = nth_world_check,
		.end = nth_world_end,
		.tell = nth_world_tell,
		.sample = 2,
		.one_of = 3,
	};

	return nth_main(&program);
}
