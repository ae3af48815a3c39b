/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparsekvd --keeper, as it runs in a container: daemons are killed and replaced at random while an engine generates,
 * and nothing is lost. The keeper accepts messages only from its own daemon, gives up if no daemon starts any more, and
 * leaves nothing behind.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "common/fd.h"
#include "daemon/restart/keeper-store.h"
#include "tests/support/child.h"
#include "tests/support/client-test.h"
#include "tests/support/privilege.h"
#include "tests/support/restart-engine.h"

#define RESTARTS 30 /* every third one is requested */

#define STARTED "is started as the daemon, with "
#define READY "keeper: the daemon is ready, "

static char dir[64], socket_path[96], program[96], log_path[96];
static pid_t keeper;

/* ---- the keeper, and its log ----------------------------------------------------------------- */

static void shell(const char *format, const char *a, const char *b)
{
	char command[512];

	snprintf(command, sizeof(command), format, a, b);
	ck_assert_int_eq(system(command), 0);
}

/* Replaces the program that is executed next by a script. */
static void replace_program(const char *script)
{
	char path[128];
	FILE *f;

	snprintf(path, sizeof(path), "%s.new", program);
	f = fopen(path, "we");
	ck_assert_ptr_nonnull(f);
	fprintf(f, "#!/bin/sh\n%s\n", script);
	ck_assert_int_eq(fclose(f), 0);
	ck_assert_int_eq(chmod(path, 0755), 0);
	ck_assert_int_eq(rename(path, program), 0);
}

static void setup(void)
{
	strcpy(dir, "/tmp/skv-keeper.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(socket_path, sizeof(socket_path), "%s/socket", dir);
	snprintf(program, sizeof(program), "%s/sparsekvd", dir);
	snprintf(log_path, sizeof(log_path), "%s/log", dir);
	shell("cp '%s' '%s'", fix_built("daemon/sparsekvd"), program);
	shell("cp '%s' '%s'", fix_built("daemon/sparsekv-probe"), dir);
	shell("cp '%s' '%s'", fix_built("daemon/sparsekv-worker"), dir);
}

static void teardown(void)
{
	shell("rm -rf '%s'%s", dir, "");
}

static void start_keeper(const char *option)
{
	char at[128], policies[512];

	snprintf(at, sizeof(at), "--socket=%s", socket_path);
	snprintf(policies, sizeof(policies), "--policy-path=%s", fix_built("policies/.libs"));
	keeper = fork();
	ck_assert_int_ge(keeper, 0);
	if (keeper > 0)
		return;
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	dup2(open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600), STDERR_FILENO);
	execl(program, program, "--keeper", "--config=/dev/null", at, policies, "--pool-bytes=64M", "--segment-bytes=1M", "--account-bytes=48M",
	      devmem_is_device() ? "--cuda=required" : "--cuda=off", "--cuda-segment-bytes=2M", option, NULL);
	_exit(127);
}

static char *read_log(void)
{
	char *text = calloc(1, 1 << 20);
	int fd = open(log_path, O_RDONLY | O_CLOEXEC);

	if (fd >= 0)
		(void)!read(fd, text, (1 << 20) - 1);
	skv_close_fd(fd);
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

/* Waits until the log has this text more than n times. */
static void expect_more(const char *what, unsigned n)
{
	const double end = fix_now() + 20;

	while (count_log(what) <= n) {
		char *log = fix_now() < end ? NULL : read_log();

		ck_assert_msg(!log, "the log does not say \"%s\" more than %u times: %s", what, n, log);
		usleep(500);
	}
}

/* Returns the daemon that was started last, and how many descriptors it was passed. */
static pid_t last_daemon(unsigned *ret_n)
{
	char *log = read_log(), *line = log;
	int pid = 0;
	unsigned n = 0;

	for (char *at = log; (at = strstr(at, "keeper: process ")); at++)
		line = at;
	ck_assert_int_eq(sscanf(line, "keeper: process %d " STARTED "%u", &pid, &n), 2);
	free(log);
	if (ret_n)
		*ret_n = n;
	return pid;
}

static void kill_daemon(void)
{
	const unsigned n = count_log(READY);

	ck_assert_int_eq(kill(last_daemon(NULL), SIGKILL), 0);
	expect_more(READY, n);
}

static int keeper_ends(void)
{
	int status;

	ck_assert_int_eq(waitpid(keeper, &status, 0), keeper);
	ck_assert(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* Checks that neither a process nor a socket is left. */
static void nothing_is_left(void)
{
	DIR *d = opendir(dir);

	ck_assert(kill(last_daemon(NULL), 0) < 0 && errno == ESRCH);
	for (struct dirent *e; (e = readdir(d));)
		ck_assert_msg(e->d_name[0] == '.' || !strcmp(e->d_name, "log") || !strncmp(e->d_name, "sparsekv", 8), "%s is left", e->d_name);
	closedir(d);
}

static void stop_keeper(void)
{
	ck_assert_int_eq(kill(keeper, SIGTERM), 0);
	ck_assert_int_eq(keeper_ends(), 0);
	nothing_is_left();
}

/* ---- nothing is lost ------------------------------------------------------------------------- */

/* Sometimes the next daemon is killed, too, while it starts. */
static void restart(int i)
{
	const unsigned ready = count_log(READY), started = count_log(STARTED);

	usleep(rnd_below(80000));
	ck_assert_int_eq(i % 3 == 2 ? kill(keeper, SIGUSR2) : kill(last_daemon(NULL), SIGKILL), 0);
	expect_more(STARTED, started);
	if (rnd_below(5) == 0) {
		usleep(rnd_below(20000));
		(void)kill(last_daemon(NULL), SIGKILL);
		expect_more(STARTED, started + 1);
	}
	expect_more(READY, ready);
}

/*
 * Returns the longest time, in ms, from the end of a daemon until the next one is ready. Starts that were delayed after
 * a failed start do not count.
 */
static double longest_time(void)
{
	char *log = read_log(), *rest = log;
	double longest = 0, ms;
	bool waited = false;

	for (char *line, *at, after[8]; (line = strsep(&rest, "\n"));) {
		waited |= strstr(line, "did not start") != NULL;
		at = strstr(line, READY);
		if (!at)
			continue;
		if (!waited && sscanf(at, READY "%lf ms after the %7s", &ms, after) == 2 && ms > longest)
			longest = ms;
		waited = false;
	}
	free(log);
	return longest;
}

START_TEST(nothing_is_lost)
{
	char *log;
	pid_t pid;

	restart_engine_setup(socket_path);
	start_keeper(NULL);
	expect_more(READY, 0);
	restart_engine_undisturbed();
	pid = restart_engine_start();
	for (int i = 0; i < RESTARTS; i++)
		restart(i);
	while (!restart_engine_has_ended(pid))
		usleep(1000);
	ck_assert_uint_eq(restart_engine_tokens(), RESTART_ENGINE_TOKENS);
	printf("%u daemons, at most %.0f ms from the end of one to the next that serves\n", count_log(STARTED), longest_time());
	fflush(stdout);
	stop_keeper();
	log = read_log();
	restart_engine_check_log(log);
	free(log);
}
END_TEST

/*
 * After a SIGHUP the daemon is the same; after its end the file that replaced its program runs, with all descriptors.
 */
START_TEST(upgraded)
{
	char script[256], real[128];

	start_keeper(NULL);
	expect_more(READY, 0);
	raw_leave_sequence(socket_path, "first");
	snprintf(real, sizeof(real), "%s.2", program);
	shell("cp '%s' '%s'", program, real);
	snprintf(script, sizeof(script), "echo the second version >&2; exec '%s' \"$@\"", real);
	replace_program(script);
	kill(keeper, SIGHUP); /* the daemon reloads, and stays the same */
	expect_more("reloaded", 0);
	ck_assert_uint_eq(count_log("second version"), 0);
	kill(keeper, SIGUSR2);
	expect_more(READY, 1);
	ck_assert_uint_eq(count_log("second version"), 1);
	ck_assert_int_eq(raw_count_sequences(socket_path), 1);
	stop_keeper();
}
END_TEST

/* ---- failed starts --------------------------------------------------------------------------- */

START_TEST(gives_up)
{
	start_keeper(NULL);
	expect_more(READY, 0);
	replace_program("exit 7");
	ck_assert_int_eq(kill(last_daemon(NULL), SIGKILL), 0);
	ck_assert_int_eq(keeper_ends(), 1);
	ck_assert_uint_eq(count_log("did not start: exit status 7"), 5);
	ck_assert_uint_eq(count_log("5 starts in a row failed"), 1);
	nothing_is_left();
}
END_TEST

/* Three starts fail each time; but once a daemon has served, the count starts anew. */
START_TEST(tries_again)
{
	char script[512];

	start_keeper(NULL);
	expect_more(READY, 0);
	snprintf(script, sizeof(script), "f='%s.tries'; n=$(cat $f || echo 0); echo $((n + 1)) >$f; [ $((n %% 4)) = 3 ] || exit 7; exec '%s' \"$@\"",
	         program, fix_built("daemon/sparsekvd"));
	replace_program(script);
	for (int i = 0; i < 3; i++)
		kill_daemon();
	ck_assert_uint_eq(count_log("did not start: exit status 7"), 9);
	stop_keeper();
}
END_TEST

START_TEST(wrong_option)
{
	start_keeper("--max-pools=many");
	ck_assert_int_eq(keeper_ends(), 1);
	ck_assert_uint_eq(count_log("max-pools"), 1);
	ck_assert_uint_eq(count_log(STARTED), 0);
}
END_TEST

/* ---- messages of other processes ------------------------------------------------------------- */

static void say(const char *text, int fd)
{
	ck_assert_int_gt(sd_pid_notify_with_fds(0, 0, text, &fd, fd >= 0), 0);
}

static void other_process(void *unused)
{
	char path[128];

	(void)unused;
	snprintf(path, sizeof(path), "%s.operators.notify", socket_path);
	setenv("NOTIFY_SOCKET", path, 1);
	say("FDSTOREREMOVE=1\nFDNAME=state", -1);
	say("FDSTORE=1\nFDNAME=state", STDIN_FILENO);
	say("FDSTORE=1\nFDNAME=s0077", STDIN_FILENO);
	say("READY=1", -1);
}

/*
 * The listening sockets belong to the keeper: not even the daemon may remove or add one. Only root may send messages in
 * the name of another process.
 */
START_TEST(own_sockets)
{
	const int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	char path[128];
	unsigned n;

	if (!has_capability(CAP_SYS_ADMIN)) {
		puts("not tested: what the daemon says of the keeper's sockets: no CAP_SYS_ADMIN");
		return;
	}
	start_keeper(NULL);
	expect_more(READY, 0);
	snprintf(path, sizeof(path), "%s.operators.notify", socket_path);
	setenv("NOTIFY_SOCKET", path, 1);
	ck_assert_int_gt(sd_pid_notify_with_fds(last_daemon(NULL), 0, "FDSTORE=1\nFDNAME=operators", &fd, 1), 0);
	ck_assert_int_gt(sd_pid_notify_with_fds(last_daemon(NULL), 0, "FDSTOREREMOVE=1\nFDNAME=clients", NULL, 0), 0);
	unsetenv("NOTIFY_SOCKET");
	expect_more("is not kept as operators", 0);
	kill_daemon();
	ck_assert_int_eq(raw_count_sequences(socket_path), 0);
	last_daemon(&n);
	ck_assert_uint_le(n, 3 + 1); /* two sockets, the state, and perhaps a client's process */
	stop_keeper();
	close(fd);
}
END_TEST

/*
 * As processes that end, since the next daemon waits for a client that lives: it may connect again if the daemon was
 * killed before it saw the end of the connection.
 */
static void leaves(void *unused)
{
	(void)unused;
	raw_leave_sequence(socket_path, "first");
}

static void counts_one(void *unused)
{
	(void)unused;
	ck_assert_int_eq(raw_count_sequences(socket_path), 1);
}

START_TEST(others_are_ignored)
{
	unsigned n;

	start_keeper(NULL);
	expect_more(READY, 0);
	fix_in_child(0, leaves, NULL);
	fix_in_child(0, other_process, NULL);
	expect_more("is ignored: the process is not the daemon", 3);
	ck_assert_uint_eq(count_log(READY), 1);
	for (int i = 0; i < 20; i++) {
		kill_daemon();
		fix_in_child(0, counts_one, NULL);
		last_daemon(&n);
		if (n == 5)
			break;
	}
	ck_assert_uint_eq(n, 5); /* two sockets, the state, the pool, the sequence */
	stop_keeper();
}
END_TEST

/* ---- stored descriptors ----------------------------------------------------------------------- */

static int null_fd(void)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	ck_assert_int_ge(fd, 3);
	return fd;
}

/* Executes a program with all names, which has as many descriptors. */
static void check_passed(struct skv_stored *s)
{
	char *names, count[16];
	int *fds;
	pid_t pid;

	ck_assert_int_eq(skv_stored_list(s, &fds, &names), 0);
	for (size_t i = 1; i < s->n; i++)
		ck_assert_int_lt(fds[i - 1], fds[i]);
	pid = child_fork();
	if (pid == 0) {
		snprintf(count, sizeof(count), "%zu", s->n);
		setenv("LISTEN_FDNAMES", names, 1);
		ck_assert_int_eq(skv_stored_pass(fds, s->n), 0);
		execl("/bin/sh", "sh", "-c", "[ -e /proc/$$/fd/$(($0 + 2)) ] && [ ! -e /proc/$$/fd/$(($0 + 3)) ]", count, NULL);
		ck_abort_msg("%zu bytes of names: %s", strlen(names), strerror(errno));
	}
	child_wait(pid);
	free(fds);
	free(names);
}

START_TEST(stored)
{
	struct skv_stored *s = calloc(1, sizeof(*s));
	const int fd = skv_memfd_new("x", 4096);
	unsigned n = 0;
	char name[32];
	int r = 0;

	skv_fd_raise_limit();
	ck_assert_int_eq(skv_stored_add(s, "state", dup(fd)), 0);
	ck_assert_int_eq(skv_stored_add(s, "state", dup(fd)), 0); /* a second time */
	ck_assert_uint_eq(s->n, 1);
	ck_assert_int_eq(skv_stored_add(s, "state", skv_memfd_new("y", 4096)), 0);
	ck_assert_uint_eq(s->n, 2);
	ck_assert_int_eq(skv_stored_add(s, "a:b", dup(fd)), -EINVAL);
	ck_assert_int_eq(skv_stored_add(s, "", dup(fd)), -EINVAL);
	check_passed(s);
	skv_stored_remove(s, "state");
	ck_assert_uint_eq(s->n + s->name_bytes, 0);
	for (; r == 0; n++) {
		snprintf(name, sizeof(name), "seq-%08x", n);
		r = skv_stored_add(s, name, null_fd());
	}
	ck_assert_int_eq(r, -E2BIG);
	ck_assert_uint_eq(s->n, n - 1);
	ck_assert_uint_gt(s->n, 10000);
	skv_stored_remove(s, "seq-00000000");
	ck_assert_int_eq(skv_stored_add(s, name, null_fd()), 0); /* there is room for one again */
	check_passed(s);
	printf("%zu descriptors, %zu bytes of names\n", s->n, s->name_bytes);
	fflush(stdout);
	skv_stored_clear(s);
	ck_assert_uint_eq(s->n + s->name_bytes, 0);
	close(fd);
	free(s);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-keeper");

	add_case(s, "restart", 240, setup, teardown, nothing_is_lost, upgraded, own_sockets, others_are_ignored, NULL);
	add_case(s, "start", 60, setup, teardown, gives_up, tries_again, wrong_option, NULL);
	add_case(s, "store", 60, NULL, NULL, stored, NULL);
	return run_suite(s);
}
