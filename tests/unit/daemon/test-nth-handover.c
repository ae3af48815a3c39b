/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Nth call fails, for all N, while a daemon hands over everything to a new process; calls of both processes count
 * together. Then either the new process serves, or the old one continues, and nothing is lost. Without a service
 * manager, a daemon may also log that it cannot continue without memory, and end with everything: only that.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/client-test.h"
#include "tests/support/nth-case.h"
#include "tests/support/nth-engine.h"

#define PATIENCE_S 30
#define STILL_MS 150 /* no call of either process for so long: nothing more will happen */

static struct fix f;
static const char *const options[] = {nth_policy_path, NULL};
static unsigned handed, went_on, ended;

static void preload(void)
{
	nth_preload(true);
}

static pid_t start_next(void)
{
	const char *argv[24] = {"sparsekvd", "--config=/dev/null", "--handover", f.socket};
	const pid_t pid = fork();
	int n = 4;

	ck_assert_int_ge(pid, 0);
	if (pid > 0)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (size_t i = 1; f.options[i]; i++) /* the first one is --socket */
		argv[n++] = f.options[i];
	dup2(open(f.log, O_WRONLY | O_APPEND | O_CLOEXEC), STDERR_FILENO);
	unsetenv("NOTIFY_SOCKET");
	unsetenv("LISTEN_FDS");
	preload();
	execv(fix_built("daemon/sparsekvd"), (char **)(uintptr_t)argv);
	_exit(127);
}

static bool has_ended(pid_t pid, int *ret_status)
{
	if (waitpid(pid, ret_status, WNOHANG) == 0)
		return false;
	/* the old daemon kills a new process that does not follow the protocol */
	ck_assert_msg(*ret_status == 0 || *ret_status == EXIT_FAILURE << 8 || (pid != f.pid && *ret_status == SIGKILL), "a daemon ended with wait status %#x", (unsigned)*ret_status);
	return true;
}

/*
 * Waits until one of the processes has ended and the other serves, or both have ended. Returns the one that serves; 0:
 * none.
 */
static pid_t hand_over(void)
{
	const pid_t next = start_next();
	const double until = fix_now() + PATIENCE_S;
	bool old = true, new = true;
	unsigned still = 0;
	int status;

	while (old && new) {
		ck_assert_msg(fix_now() < until, "neither has the one handed over, nor does it go on");
		old = !has_ended(f.pid, &status);
		new = !has_ended(next, &status);
		usleep(500);
	}
	/* until it serves, or has ended, too */
	for (uint32_t seen = 0; (old || new) && still < STILL_MS; still = seen == nth_fails->seen ? still + 1 : 0) {
		seen = nth_fails->seen;
		old = old && !has_ended(f.pid, &status);
		new = new && !has_ended(next, &status);
		usleep(1000);
	}
	nth_disarm();
	handed += new;
	went_on += old;
	ended += !old && !new;
	return new ? next : old ? f.pid : 0;
}

static void in_vain(void)
{
	char command[96];

	snprintf(command, sizeof(command), "rm -rf '%s'", f.dir);
	ck_assert_int_eq(system(command), 0);
	for (size_t i = 0; f.options[i]; i++)
		free(f.options[i]);
}

static void stop(void)
{
	char *log;
	int status;

	ck_assert_int_eq(kill(f.pid, SIGTERM), 0);
	ck_assert_int_eq(waitpid(f.pid, &status, 0), f.pid);
	log = fix_log(&f);
	ck_assert_msg(status == 0, "wait status %#x: %s", (unsigned)status, log);
	nth_check_log(log);
	free(log);
	in_vain();
}

static void hands_over(uint32_t n)
{
	fix_before_exec = preload;
	fix_start_process(&f, options);
	nth_engine_use_socket(f.socket);
	child_wait(nth_engine_start(NTH_ALL, NULL));
	nth_arm(n);
	f.pid = hand_over();
	if (f.pid == 0) {
		ck_assert(nth_fails->fired);
		in_vain();
		return;
	}
	fix_wait(&f);
	child_wait(nth_engine_start_witness());
	stop();
}

static void begin(void)
{
	fix_before_exec = NULL;
	fix_start_process(&f, options);
	nth_engine_setup(f.socket);
	nth_engine_undisturbed();
	fix_stop(&f);
}

static void tell(char *to, size_t size)
{
	snprintf(to, size, "; handed over %u times, went on %u, ended %u", handed, went_on, ended);
}

static const struct nth_scenario scenarios[] = {{"handover", hands_over}};
static const struct nth_failure failures[] = {
	{FAIL_ALLOC, "alloc", 0, false, 0},
	{FAIL_MEMORY, "memory", 0, false, 0},
	{FAIL_DESCRIPTOR, "descriptor", 0, false, 0},
	{FAIL_WRITE, "write", 0, false, 0},
	{FAIL_SEND, "send", 0, false, 0},
	{FAIL_RING, "ring: ENOMEM", ENOMEM, false, 0},
	{FAIL_OPERATION, "operation", 0, false, 0},
};

int main(void)
{
	static const struct nth_program program = {
		.name = "test-nth-handover",
		.scenarios = scenarios,
		.n_scenarios = 1,
		.failures = failures,
		.n_failures = sizeof(failures) / sizeof(failures[0]),
		.begin = begin,
		.tell = tell,
		.sample = 3,
	};

	return nth_main(&program);
}
