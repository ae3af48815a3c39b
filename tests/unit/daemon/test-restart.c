/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon is killed and stopped at random, and restarted by a service manager that stores its descriptors, while an
 * engine generates; sometimes the engine is killed, too. Each engine attaches the named sequence that the last one
 * left, and its outputs are those of an undisturbed run, bit for bit. At the end the state balances, and no unneeded
 * descriptor is stored.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/fd.h"
#include "tests/support/child.h"
#include "tests/support/client-test.h"
#include "tests/support/manager.h"
#include "tests/support/restart-engine.h"

#define RESTARTS 60

static const char *options[] = {"--pool-bytes=64M", "--segment-bytes=1M", "--account-bytes=48M", "--cuda=off", "--cuda-segment-bytes=2M", NULL};

static void setup(void)
{
	restart_engine_setup(manager_socket);
	if (devmem_is_device())
		options[3] = "--cuda=required";
	manager_open();
	manager_start(options);
}

static void check_log(void)
{
	char *log = manager_log();

	restart_engine_check_log(log);
	free(log);
}

START_TEST(nothing_is_lost)
{
	struct restart_engine_steps calm, steps;
	unsigned restarts = 0;
	double down, longest = 0;
	pid_t pid;

	setup();
	restart_engine_undisturbed();
	pid = restart_engine_start();
	while (!restart_engine_has_ended(pid)) {
		usleep(rnd_below(80000));
		if (restarts == RESTARTS)
			continue;
		down = fix_now();
		if (restarts % 3 == 2) {
			ck_assert_int_eq(manager_end(SIGTERM), 0);
		} else {
			(void)manager_end(SIGKILL);
		}
		if (rnd_below(5) == 0 && !restart_engine_has_ended(pid)) {
			ck_assert_int_eq(kill(pid, SIGKILL), 0);
			ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
			pid = restart_engine_start();
		}
		manager_start(options);
		down = fix_now() - down;
		longest = down > longest ? down : longest;
		restarts++;
	}
	calm = restart_engine_steps(false);
	steps = restart_engine_steps(true);
	printf("%u restarts, the longest took %.0f ms; longest step without any %.1f ms, with them %.1f ms, %u longer than 40 ms; "
	       "an engine's first step %.1f and %.1f ms\n",
	       restarts, longest * 1e3, calm.longest * 1e3, steps.longest * 1e3, steps.paused, calm.first * 1e3, steps.first * 1e3);
	fflush(stdout);
	/*
	 * the library reconnects in the background, and steps do not wait for that; a busy machine may delay one now
	 * and then
	 */
	if (!slowed())
		ck_assert_uint_le(steps.paused, restarts / 4);
	ck_assert_uint_eq(restart_engine_tokens(), RESTART_ENGINE_TOKENS);
	ck_assert_uint_ge(restarts, 5);
	check_log();
	if (!devmem_is_device()) /* a device's segments are stored one by one */
		manager_expect_kept(2); /* the pool and the sequence */
	ck_assert_int_eq(manager_end(SIGTERM), 0);
	check_log();
	manager_close();
}
END_TEST

/* The library has retried after five seconds: the daemon finds both requests at its socket. */
START_TEST(a_late_start)
{
	const double end = fix_now() + 60;
	uint32_t tokens;
	pid_t pid;

	setup();
	restart_engine_undisturbed();
	pid = restart_engine_start();
	while (restart_engine_tokens() < 200)
		usleep(1000);
	(void)manager_end(SIGKILL);
	usleep(5700000);
	manager_start(options);
	for (tokens = restart_engine_tokens(); restart_engine_tokens() < tokens + 200 && fix_now() < end; usleep(1000))
		ck_assert(!restart_engine_has_ended(pid));
	ck_assert_uint_ge(restart_engine_tokens(), tokens + 200);
	ck_assert_int_eq(kill(pid, SIGKILL), 0);
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
	ck_assert_int_eq(manager_end(SIGTERM), 0);
	check_log();
	manager_close();
}
END_TEST

/* ---- what cannot be taken over --------------------------------------------------------------- */

static void expect_log(const char *what)
{
	char *log = manager_log();

	ck_assert_msg(strstr(log, what), "the log does not say \"%s\"", what);
	free(log);
}

/* A worker of the dead daemon is still at work on its memory: the next one does not start, and loses nothing. */
START_TEST(a_worker_is_left)
{
	char path[32];
	int status, worker;

	manager_open();
	manager_start(options);
	raw_leave_sequence(manager_socket, "first");
	(void)manager_end(SIGKILL);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", manager_stored("state"));
	worker = open(path, O_RDONLY | O_CLOEXEC);
	ck_assert_int_eq(flock(worker, LOCK_SH), 0);
	ck_assert(!manager_try_start(options, 30, &status));
	expect_log("a worker of the previous daemon is still at work");
	close(worker);
	manager_start(options);
	ck_assert_int_eq(raw_count_sequences(manager_socket), 1);
	ck_assert_int_eq(manager_end(SIGTERM), 0);
	manager_close();
}
END_TEST

/* Then the daemon starts with an empty state, and nothing of the old one is stored. */
START_TEST(no_state)
{
	manager_open();
	manager_start(options);
	raw_leave_sequence(manager_socket, "first");
	ck_assert_int_eq(raw_count_sequences(manager_socket), 1);
	(void)manager_end(SIGKILL);
	manager_replace("state", _i == 0 ? skv_memfd_new("state", 65536) : _i == 1 ? skv_memfd_new("state", 16) : -1);
	manager_start(options);
	expect_log("cannot be taken over, so all sequences are lost");
	ck_assert_int_eq(raw_count_sequences(manager_socket), 0);
	manager_expect_kept(0);
	raw_leave_sequence(manager_socket, "second");
	(void)manager_end(SIGKILL);
	manager_start(options);
	ck_assert_int_eq(raw_count_sequences(manager_socket), 1);
	ck_assert_int_eq(manager_end(SIGTERM), 0);
	manager_close();
}
END_TEST

/*
 * Other descriptors from the manager are logged, closed, and removed from its store: files of other names, second ones
 * of a name in use, and sockets without a client. The daemon continues with its own.
 */
START_TEST(foreign)
{
	manager_open();
	manager_start(options);
	raw_leave_sequence(manager_socket, "first");
	manager_expect_kept(2); /* the sequence and its page, and no longer what its client had */
	(void)manager_end(SIGKILL);
	manager_add("x", open("/dev/null", O_RDWR | O_CLOEXEC));
	manager_add("stored", skv_memfd_new("x", 4096));
	manager_add("clients", socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
	manager_add("state", skv_memfd_new("x", 4096));
	manager_add("sZZZZ", skv_memfd_new("x", 4096));
	manager_start(options);
	expect_log("\"x\", which is closed and no longer stored: it is");
	expect_log("\"stored\", which is closed");
	expect_log("\"clients\", which is closed");
	expect_log("the descriptor that was stored as state is closed and no longer stored");
	expect_log("the descriptor that was stored as sZZZZ is closed and no longer stored");
	ck_assert_int_eq(raw_count_sequences(manager_socket), 1);
	manager_expect_kept(2);
	(void)manager_end(SIGKILL); /* the manager still has the state */
	manager_start(options);
	ck_assert_int_eq(raw_count_sequences(manager_socket), 1);
	ck_assert_int_eq(manager_end(SIGTERM), 0);
	manager_close();
}
END_TEST

/* A file under one of the daemon's names, without the state, is useless. */
START_TEST(of_another_name)
{
	manager_open();
	manager_replace("sZZZZ", skv_memfd_new("x", 4096));
	manager_start(options);
	expect_log("no state was kept");
	manager_expect_kept(0);
	ck_assert_int_eq(manager_end(SIGTERM), 0);
	manager_close();
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-restart");
	TCase *c;

	rnd_seed("test-restart");
	add_case(s, "restart", 240, NULL, NULL, nothing_is_lost, a_late_start, a_worker_is_left, foreign, of_another_name, NULL);
	c = tcase_create("states");
	tcase_add_loop_test(c, no_state, 0, 3);
	suite_add_tcase(s, c);
	return run_suite(s);
}
