/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Nth call of a keeper fails, for all N, once or from then on, while its daemons are killed and restarted, or while
 * it starts. Restarts may take longer then, but nothing is lost; a keeper that cannot start says why, and leaves
 * nothing behind.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/client-test.h"
#include "tests/support/nth-case.h"
#include "tests/support/nth-engine.h"

#define PATIENCE_S 30
#define WITHOUT_MS 300 /* then the resource is available again */
#define STARTED "is started as the daemon, with "
#define READY "keeper: the daemon is ready, "

static char dir[96], socket_path[128], log_path[128];
static pid_t keeper, bystander;

/* ---- the keeper, and its log ----------------------------------------------------------------- */

static char *read_log(void)
{
	char *text = calloc(1, 1 << 20);
	int fd = open(log_path, O_RDONLY | O_CLOEXEC);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_ge(read(fd, text, (1 << 20) - 1), 0);
	close(fd);
	return text;
}

static unsigned count_log(const char *what)
{
	char *log = read_log();
	unsigned n = 0;

	for (const char *at = log; (at = strstr(at, what)); at++)
		n++;
	free(log);
	return n;
}

static pid_t last_daemon(void)
{
	char *log = read_log(), *line = log;
	int pid = 0;

	for (char *at = log; (at = strstr(at, "keeper: process ")); at++)
		line = at;
	ck_assert_msg(sscanf(line, "keeper: process %d " STARTED, &pid) == 1, "no daemon was started:\n%s", log);
	free(log);
	return pid;
}

static void keeper_lives(void)
{
	int status;

	nth_note_where();
	ck_assert_msg(waitpid(keeper, &status, WNOHANG) == 0, "the keeper has ended:\n%s", read_log());
}

/* Waits until the log has this text more than n times. */
static void expect_more(const char *what, unsigned n)
{
	const double until = fix_now() + PATIENCE_S;

	while (count_log(what) <= n) {
		keeper_lives();
		ck_assert_msg(fix_now() < until, "\"%s\" is not said any more:\n%s", what, read_log());
		usleep(2000);
	}
}

static void start_keeper(void)
{
	char at[160];

	close(open(log_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
	snprintf(at, sizeof(at), "--socket=%s", socket_path);
	keeper = fork();
	ck_assert_int_ge(keeper, 0);
	if (keeper > 0)
		return;
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	dup2(open(log_path, O_WRONLY | O_APPEND | O_CLOEXEC), STDERR_FILENO);
	nth_preload(true);
	execl(fix_built("daemon/sparsekvd"), "sparsekvd", "--keeper", "--config=/dev/null", at, nth_policy_path, "--pool-bytes=16M", "--segment-bytes=1M",
	      "--account-bytes=12M", "--cuda=off", NULL);
	_exit(127);
}

static int keeper_ends(void)
{
	int status;

	ck_assert_int_eq(waitpid(keeper, &status, 0), keeper);
	ck_assert(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void stop_keeper(void)
{
	ck_assert_int_eq(kill(keeper, SIGTERM), 0);
	ck_assert_msg(keeper_ends() == 0, "%s", read_log());
}

static void no_socket_is_left(void)
{
	DIR *d = opendir(dir);

	for (struct dirent *e; (e = readdir(d));)
		ck_assert_msg(e->d_name[0] == '.' || !strcmp(e->d_name, "log") || strstr(e->d_name, ".lock"), "%s is left", e->d_name);
	closedir(d);
}

/* ---- engines --------------------------------------------------------------------------------- */

static void must_succeed(pid_t pid)
{
	const double until = fix_now() + PATIENCE_S;
	int status;

	while (waitpid(pid, &status, WNOHANG) == 0) {
		keeper_lives();
		ck_assert_msg(fix_now() < until, "an engine does not end:\n%s", read_log());
		usleep(500);
	}
	ck_assert_msg(status == 0, "wait status %#x: %s; the log says:\n%s", (unsigned)status, child_problem(), read_log());
}

static void bystander_goes_on(void)
{
	const uint32_t n = nth_engine_bystander_steps();
	const double until = fix_now() + PATIENCE_S;

	while (nth_engine_bystander_steps() < n + 2) {
		ck_assert_msg(waitpid(bystander, NULL, WNOHANG) == 0, "the bystander: %s; the log says:\n%s", child_problem(), read_log());
		keeper_lives();
		ck_assert_msg(fix_now() < until, "the bystander does not go on:\n%s", read_log());
		usleep(500);
	}
}

static void check_log(void)
{
	char *log = read_log();

	nth_check_log(log);
	ck_assert_msg(!strstr(log, "is not kept") && !strstr(log, "given up"), "%s", log);
	free(log);
}

/* ---- scenarios ------------------------------------------------------------------------------- */

static void restart(pid_t whom, int signal)
{
	const unsigned ready = count_log(READY);

	ck_assert_int_eq(kill(whom, signal), 0);
	if (nth_failure.onwards) {
		usleep(WITHOUT_MS * 1000);
		nth_disarm();
	}
	expect_more(READY, ready);
}

static void daemons_end(uint32_t n)
{
	nth_arm(n);
	restart(last_daemon(), SIGKILL);
	must_succeed(nth_engine_start(NTH_ALL, NULL));
	restart(keeper, SIGUSR2);
	nth_disarm();
	bystander_goes_on();
	must_succeed(nth_engine_start_witness());
	check_log();
}

static void one_starts(uint32_t n)
{
	const double until = fix_now() + PATIENCE_S;
	bool ended = false;
	int status;

	nth_engine_tell_bystander_to_end();
	if (bystander)
		child_wait(bystander);
	bystander = 0;
	stop_keeper();
	nth_arm(n);
	start_keeper();
	while (!ended && count_log(READY) == 0) {
		ended = waitpid(keeper, &status, WNOHANG) == keeper;
		ck_assert_msg(fix_now() < until, "the keeper neither starts nor ends:\n%s", read_log());
		if (nth_failure.onwards && nth_fails->fired) {
			usleep(WITHOUT_MS * 1000);
			nth_disarm();
		}
		usleep(2000);
	}
	nth_disarm();
	if (ended) {
		ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_FAILURE && nth_fails->fired, "wait status %#x", (unsigned)status);
		ck_assert_msg(count_log("keeper: ") + count_log("error") + count_log("sparsekvd: ") > 0, "the keeper ended without a word");
		no_socket_is_left();
		start_keeper();
		while (count_log(READY) == 0)
			usleep(2000);
	}
	must_succeed(nth_engine_start(NTH_ALL, NULL));
	must_succeed(nth_engine_start_witness());
}

static void begin(void)
{
	snprintf(dir, sizeof(dir), "%s/run", nth_folder);
	ck_assert_int_eq(mkdir(dir, 0700), 0);
	snprintf(socket_path, sizeof(socket_path), "%s/socket", dir);
	snprintf(log_path, sizeof(log_path), "%s/log", dir);
	nth_engine_setup(socket_path);
	start_keeper();
	expect_more(READY, 0);
	nth_engine_undisturbed();
	bystander = nth_engine_start_bystander();
}

static void end(void)
{
	nth_engine_tell_bystander_to_end();
	if (bystander)
		child_wait(bystander);
	stop_keeper();
	no_socket_is_left();
}

static const struct nth_scenario scenarios[] = {{"daemons end", daemons_end}, {"a keeper starts", one_starts}};

static const struct nth_failure failures[] = {
	{FAIL_ALLOC, "alloc", 0, false, FAIL_KEEPER},
	{FAIL_ALLOC, "alloc, onwards", 0, true, FAIL_KEEPER},
	{FAIL_MEMORY, "memory", 0, false, FAIL_KEEPER},
	{FAIL_MEMORY, "memory, onwards", 0, true, FAIL_KEEPER},
	{FAIL_DESCRIPTOR, "descriptor", 0, false, FAIL_KEEPER},
	{FAIL_DESCRIPTOR, "descriptor, onwards", 0, true, FAIL_KEEPER},
	{FAIL_FILE, "file", EIO, false, FAIL_KEEPER},
	{FAIL_RECEIVE, "receive", 0, false, FAIL_KEEPER},
	{FAIL_RECEIVE, "receive, onwards", 0, true, FAIL_KEEPER},
};

int main(void)
{
	static const struct nth_program program = {
		.name = "test-nth-keeper",
		.scenarios = scenarios,
		.n_scenarios = sizeof(scenarios) / sizeof(scenarios[0]),
		.failures = failures,
		.n_failures = sizeof(failures) / sizeof(failures[0]),
		.begin = begin,
		.end = end,
		.sample = 2,
		.one_of = 3,
	};

	return nth_main(&program);
}
