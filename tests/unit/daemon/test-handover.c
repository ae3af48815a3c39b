/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparsekvd --handover: at random instants, while an engine generates, a new process takes over everything, or a
 * process that tries to is killed in the middle and the old daemon continues. Outputs are those of an undisturbed run,
 * and no call of the engine fails. A process that may not take over is refused.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/restart/handover.h"
#include "tests/support/child.h"
#include "tests/support/client-test.h"
#include "tests/support/privilege.h"
#include "tests/support/restart-engine.h"

/* maximum number of handovers, and of killed successors; and the minimum, if a slow machine has no time for more */
#define TIMES 20
#define LEAST 4
#define HALF_US 60000 /* by then the process has everything, and waits for permission to go on */

static struct fix f;
static char next_log[128];
static unsigned asked_again;

/* ---- processes that take over ---------------------------------------------------------------- */

static void exec_next(const char *socket, const char *option)
{
	const char *argv[24] = {"sparsekvd", "--config=/dev/null", "--handover", socket};
	int n = 4;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (size_t i = 1; f.options[i]; i++) /* the first one is --socket */
		argv[n++] = f.options[i];
	argv[n] = option;
	dup2(open(next_log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600), STDERR_FILENO);
	unsetenv("NOTIFY_SOCKET");
	unsetenv("LISTEN_FDS");
	execv(fix_built("daemon/sparsekvd"), (char **)(uintptr_t)argv);
	_exit(127);
}

static pid_t start_next(const char *socket, const char *option)
{
	pid_t pid = fork();

	ck_assert_int_ge(pid, 0);
	if (pid == 0)
		exec_next(socket, option);
	return pid;
}

static int status_of(pid_t pid)
{
	int status;

	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	return status;
}

/*
 * Returns the seconds from the start of the new process until it serves. If a process that was killed before had asked,
 * the daemon may notice its end only now and then closes our connection: then we ask again.
 */
static double hand_over(void)
{
	double begin = fix_now();
	pid_t next = start_next(f.socket, NULL);
	int status;

	while (waitpid(f.pid, &status, WNOHANG) == 0) {
		usleep(500);
		if (waitpid(next, &status, WNOHANG) == 0)
			continue;
		ck_assert_int_eq(status, EXIT_FAILURE << 8);
		ck_assert_uint_lt(asked_again++, TIMES);
		begin = fix_now();
		next = start_next(f.socket, NULL);
	}
	ck_assert_int_eq(status, 0);
	f.pid = next;
	fix_wait(&f);
	return fix_now() - begin;
}

/* In a child: takes over everything and makes a server of it, but never gets permission to go on. */
static void take_half(void)
{
	static char program[512];
	struct skv_handover h = SKV_HANDOVER_NULL;
	struct skv_server_options o = {.program = program, .service = true, .handover = &h};
	struct skv_server *server;
	int pair[2];

	dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), STDERR_FILENO);
	strcpy(program, fix_built("daemon/sparsekvd"));
	o.config.file = "/dev/null";
	o.config.options = f.options;
	if (skv_handover_take(f.socket, &h) < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) < 0)
		_exit(1);
	h.peer = pair[0]; /* not the daemon's end, which stays open */
	(void)skv_server_new(&o, &server);
	_exit(1);
}

static void kill_in_the_middle(unsigned us)
{
	pid_t pid = child_fork();
	int status;

	if (pid == 0)
		take_half();
	usleep(us);
	ck_assert_int_eq(kill(pid, SIGKILL), 0);
	status = status_of(pid);
	ck_assert(WIFSIGNALED(status));
	fix_wait(&f);
	ck_assert_int_eq(waitpid(f.pid, NULL, WNOHANG), 0);
}

/* ---- the daemon ------------------------------------------------------------------------------ */

static char *read_next_log(void)
{
	char *text = calloc(1, 1 << 20);
	int fd = open(next_log, O_RDONLY | O_CLOEXEC);

	if (fd >= 0) {
		(void)!read(fd, text, (1 << 20) - 1);
		close(fd);
	}
	return text;
}

static void next_log_says(const char *what)
{
	char *log = read_next_log();

	ck_assert_msg(strstr(log, what), "the log does not say \"%s\":\n%s", what, log);
	free(log);
}

static void start(const char *const *options)
{
	fix_start_process(&f, options);
	snprintf(next_log, sizeof(next_log), "%s/next", f.dir);
}

/* Checks that the state balances, and that no file is left but the logs. */
static void stop(void)
{
	static const char *const files[] = {"", ".lock", ".operators", ".operators.lock"};
	char path[128];

	ck_assert_int_eq(kill(f.pid, SIGTERM), 0);
	ck_assert_int_eq(status_of(f.pid), 0);
	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		snprintf(path, sizeof(path), "%s%s", f.socket, files[i]);
		ck_assert_msg(access(path, F_OK) < 0, "%s is left", path);
	}
	snprintf(path, sizeof(path), "rm -rf '%s'", f.dir);
	ck_assert_int_eq(system(path), 0);
}

static void check_logs(void)
{
	char *log = fix_log(&f), *next = read_next_log();

	restart_engine_check_log(log);
	restart_engine_check_log(next);
	free(log);
	free(next);
}

START_TEST(nothing_is_lost)
{
	struct restart_engine_steps calm, steps;
	double longest = 0;
	bool ended = false;
	int i;
	pid_t pid;

	start(NULL);
	restart_engine_setup(f.socket);
	restart_engine_undisturbed();
	pid = restart_engine_start();
	for (i = 0; i < 2 * TIMES && !ended; i++) {
		usleep(rnd_below(80000));
		if (i % 2) {
			const double took = hand_over();

			longest = took > longest ? took : longest;
		} else {
			kill_in_the_middle(i % 4 ? rnd_below(HALF_US) : HALF_US);
		}
		ended = restart_engine_has_ended(pid);
	}
	ck_assert_int_ge(i, 2 * LEAST);
	while (!ended && !restart_engine_has_ended(pid))
		usleep(1000);
	calm = restart_engine_steps(false);
	steps = restart_engine_steps(true);
	printf("%d times handed over, each in %.0f ms at most from the start of the new process until it serves; longest step without any %.1f ms, "
	       "with them %.1f ms, %u longer than 40 ms; asked again %u times\n",
	       i / 2, longest * 1e3, calm.longest * 1e3, steps.longest * 1e3, steps.paused, asked_again);
	fflush(stdout);
	ck_assert_uint_eq(restart_engine_tokens(), RESTART_ENGINE_TOKENS);
	ck_assert_int_eq(raw_count_sequences(f.socket), 1);
	check_logs();
	next_log_says("this daemon goes on");
	stop();
}
END_TEST

/* ---- failed handovers ------------------------------------------------------------------------ */

/* A process fails to take over, and says why; the sequence is still there. */
static void in_vain(pid_t pid, const char *why)
{
	ck_assert_int_eq(status_of(pid), EXIT_FAILURE << 8);
	next_log_says(why);
	fix_wait(&f);
	ck_assert_int_eq(waitpid(f.pid, NULL, WNOHANG), 0);
	ck_assert_int_eq(raw_count_sequences(f.socket), 1);
}

START_TEST(cannot_start)
{
	start(NULL);
	raw_leave_sequence(f.socket, "first");
	in_vain(start_next(f.socket, "--cuda=required"), "there is no device");
	in_vain(start_next(f.socket, "--max-pools=many"), "max-pools");
	in_vain(start_next("/nonexistent/socket", NULL), "/nonexistent/socket: cannot be taken over: No such file");
	(void)hand_over();
	ck_assert_int_eq(raw_count_sequences(f.socket), 1);
	in_vain(start_next(f.socket, "--cuda=required"), "there is no device");
	stop();
}
END_TEST

/* A process that sends something unexpected may have the state mapped, so the daemon cannot rely on it. */
START_TEST(says_something_else)
{
	struct skv_handover h = SKV_HANDOVER_NULL;
	int status;
	pid_t pid;

	start(NULL);
	raw_leave_sequence(f.socket, "first");
	pid = child_fork();
	if (pid == 0) {
		ck_assert_int_eq(skv_handover_take(f.socket, &h), 0);
		ck_assert_int_eq(send(h.peer, "?", 1, 0), 1);
		for (;;)
			pause();
	}
	status = status_of(pid);
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	fix_wait(&f);
	fix_expect_log(&f, "this daemon goes on");
	ck_assert_int_eq(raw_count_sequences(f.socket), 1);
	stop();
}
END_TEST

START_TEST(old_one_dies)
{
	pid_t next;

	start(NULL);
	ck_assert_int_eq(kill(f.pid, SIGSTOP), 0);
	next = start_next(f.socket, NULL);
	fix_sleep_ms(100);
	ck_assert_int_eq(kill(f.pid, SIGKILL), 0);
	ck_assert_int_eq(status_of(next), EXIT_FAILURE << 8);
	next_log_says("the daemon has ended");
	ck_assert_int_eq(status_of(f.pid), SIGKILL);
}
END_TEST

static void have_a_manager(void)
{
	setenv("NOTIFY_SOCKET", "/nonexistent/notify", 1);
}

START_TEST(under_a_manager)
{
	fix_before_exec = have_a_manager;
	start(NULL);
	fix_before_exec = NULL;
	raw_leave_sequence(f.socket, "first");
	in_vain(start_next(f.socket, NULL), "this daemon has a service manager");
	stop();
}
END_TEST

static void take_over(void *unused)
{
	struct skv_handover h = SKV_HANDOVER_NULL;

	(void)unused;
	ck_assert_int_lt(skv_handover_take(f.socket, &h), 0);
}

/* On the clients' socket; and as another user than the daemon's. */
START_TEST(not_an_operator)
{
	const char *const options[] = {can_change_user() ? "--operator-group=daemon" : NULL, NULL};
	char socket[128], link[140];
	struct skv_handover h = SKV_HANDOVER_NULL;

	start(options);
	snprintf(socket, sizeof(socket), "%s/other", f.dir);
	snprintf(link, sizeof(link), "%s.operators", socket);
	ck_assert_int_eq(symlink(f.socket, link), 0);
	ck_assert_int_lt(skv_handover_take(socket, &h), 0);
	if (can_change_user())
		fix_in_child(1, take_over, NULL);
	fix_wait(&f);
	ck_assert_int_eq(waitpid(f.pid, NULL, WNOHANG), 0);
	stop();
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-handover");

	add_case(s, "handover", 240, NULL, NULL, nothing_is_lost, NULL);
	add_case(s, "in vain", 60, NULL, NULL, cannot_start, says_something_else, old_one_dies, under_a_manager, not_an_operator, NULL);
	return run_suite(s);
}
