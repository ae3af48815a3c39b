/* SPDX-License-Identifier: Apache-2.0 */
/* tests/support/daemon-fixture.c - daemons for tests. The raw client is raw-client.c. */
#include "tests/support/daemon-fixture.h"
#include "tests/support/child.h"
#include "tests/support/privilege.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

void (*fix_before_exec)(void);

#define START_SECONDS (getenv("SKV_VALGRIND") ? 60 : 30)

double fix_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

void fix_sleep_ms(unsigned ms)
{
	struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

	nanosleep(&t, NULL);
}

const char *fix_built(const char *name)
{
	static char paths[4][512];
	static unsigned next;
	const char *moved = getenv("SKV_BUILDDIR"); /* build folder, if it was copied to another machine */
	char *to = paths[next++ % 4];

	snprintf(to, sizeof(paths[0]), "%s/%s", moved ? moved : SKV_BUILDDIR, name);
	return to;
}

/* ---- descriptors ---- */

unsigned long fix_memory_mib(const struct fix *f, const char *field)
{
	char path[64], text[4096];
	const char *at;
	FILE *status;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)f->pid);
	status = fopen(path, "r");
	ck_assert_ptr_nonnull(status);
	text[fread(text, 1, sizeof(text) - 1, status)] = 0;
	fclose(status);
	at = strstr(text, field);
	ck_assert_ptr_nonnull(at);
	return strtoul(at + strlen(field) + 1, NULL, 10) / 1024;
}

unsigned fix_count_fds(pid_t pid)
{
	char path[64];
	unsigned n = 0;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/fd", pid ? (int)pid : (int)getpid());
	d = opendir(path);
	ck_assert_ptr_nonnull(d);
	for (struct dirent *e; (e = readdir(d));)
		n += e->d_name[0] != '.' && (pid || atoi(e->d_name) != dirfd(d));
	closedir(d);
	return n;
}

uint64_t fix_held_bytes(pid_t pid)
{
	static ino_t seen[16384];
	char path[64], target[64];
	uint64_t bytes = 0;
	size_t n = 0, k;
	struct stat st;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	d = opendir(path);
	ck_assert_ptr_nonnull(d);
	for (struct dirent *e; (e = readdir(d));) {
		ssize_t len = readlinkat(dirfd(d), e->d_name, target, sizeof(target));

		if (len < 7 || memcmp(target, "/memfd:", 7) != 0 || fstatat(dirfd(d), e->d_name, &st, 0) < 0)
			continue;
		for (k = 0; k < n && seen[k] != st.st_ino; k++)
			;
		if (k < n)
			continue;
		ck_assert_uint_lt(n, sizeof(seen) / sizeof(seen[0]));
		seen[n++] = st.st_ino;
		bytes += (uint64_t)st.st_blocks * 512;
	}
	closedir(d);
	return bytes;
}

unsigned fix_settled_fds(pid_t pid)
{
	unsigned n = fix_count_fds(pid), still = 0;

	while (still < 10) {
		unsigned now;

		fix_sleep_ms(5);
		now = fix_count_fds(pid);
		still = now == n ? still + 1 : 0;
		n = now;
	}
	return n;
}

unsigned fix_signal_children(pid_t pid, const char *name, int signal)
{
	char path[64], comm[32];
	unsigned n = 0;
	FILE *children, *c;
	int child;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)pid, (int)pid);
	children = fopen(path, "re");
	ck_assert_ptr_nonnull(children);
	while (fscanf(children, "%d", &child) == 1) {
		snprintf(path, sizeof(path), "/proc/%d/comm", child);
		c = fopen(path, "re");
		if (c && fgets(comm, sizeof(comm), c)) {
			comm[strcspn(comm, "\n")] = 0;
			n += (!name || !strcmp(comm, name)) && kill(child, signal) == 0;
		}
		if (c)
			fclose(c);
	}
	fclose(children);
	return n;
}

void fix_expect_fds(pid_t pid, unsigned expected)
{
	for (double end = fix_now() + 20; fix_count_fds(pid) != expected && fix_now() < end;)
		fix_sleep_ms(5);
	ck_assert_uint_eq(fix_count_fds(pid), expected);
}

/* ---- starting ---- */

static void add_option(struct fix *f, size_t *n, const char *key, const char *value)
{
	ck_assert_uint_lt(*n + 1, sizeof(f->options) / sizeof(f->options[0]));
	ck_assert_int_gt(asprintf(&f->options[(*n)++], "%s%s", key, value), 0);
}

static void prepare(struct fix *f, const char *const *options)
{
	const char *tmp = getenv("TMPDIR");
	size_t n = 0;

	memset(f, 0, sizeof(*f));
	if (!tmp || strlen(tmp) > 32)
		tmp = "/tmp";
	snprintf(f->dir, sizeof(f->dir), "%s/sparsekv-test-XXXXXX", tmp);
	ck_assert_ptr_nonnull(mkdtemp(f->dir));
	ck_assert_int_eq(chmod(f->dir, 0755), 0); /* clients run as other users, too */
	snprintf(f->socket, sizeof(f->socket), "%s/socket", f->dir);
	snprintf(f->log, sizeof(f->log), "%s/log", f->dir);
	add_option(f, &n, "--socket=", f->socket);
	add_option(f, &n, "--policy-path=", fix_built("policies/.libs"));
	add_option(f, &n, "--pool-bytes=", "64M");
	add_option(f, &n, "--segment-bytes=", "1M");
	/* off unless the test is about devices, so that a machine with a device is not used by accident */
	add_option(f, &n, "--cuda=", getenv("SKV_TEST_DEVICE") ? "required" : "off");
	add_option(f, &n, "--cuda-segment-bytes=", "2M");
	if (getenv("SKV_TEST_IPC"))
		add_option(f, &n, "--ipc=", getenv("SKV_TEST_IPC"));
	for (; options && *options; options++)
		add_option(f, &n, "", *options);
}

/* A daemon listens before it answers, and the socket of a killed daemon listens for another moment. */
static bool answers(const struct fix *f)
{
	struct skv_msg_hello hello = {.version_min = 1, .version_max = 1, .program = "fixture"};
	struct raw *r = access(f->socket, F_OK) == 0 ? raw_connect(f->socket) : NULL;
	bool said = false;

	if (r) {
		raw_send(r, SKV_MSG_HELLO, &hello, sizeof(hello), -1);
		said = raw_recv(r, START_SECONDS * 1000) == (SKV_MSG_HELLO | SKV_REPLY);
		raw_close(r);
	}
	return said;
}

void fix_wait(const struct fix *f)
{
	double end = fix_now() + START_SECONDS;

	while (!answers(f)) {
		ck_assert_msg(fix_now() < end, "no answer from the daemon in %d s", START_SECONDS);
		fix_sleep_ms(5);
	}
}

static void *serve(void *fix)
{
	struct fix *f = fix;

	f->result = skv_server_run(f->server);
	return NULL;
}

static void exec_daemon(const struct fix *f)
{
	const char *argv[24] = {"sparsekvd", "--config=/dev/null"};
	int fd = open(f->log, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	for (size_t i = 0; f->options[i]; i++)
		argv[2 + i] = f->options[i];
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(fd, STDERR_FILENO);
	close_range(3, ~0u, CLOSE_RANGE_CLOEXEC); /* the daemon inherits no descriptors of the test */
	/* the daemon is no service of a service manager */
	unsetenv("NOTIFY_SOCKET");
	unsetenv("LISTEN_FDS");
	if (!has_capability(CAP_SYS_PTRACE)) { /* the test counts its descriptors in /proc */
		const char *debug = getenv("SPARSEKV_DEBUG");
		char both[64];

		snprintf(both, sizeof(both), "%s dumpable", debug ? debug : "");
		setenv("SPARSEKV_DEBUG", both, 1);
	}
	if (fix_before_exec)
		fix_before_exec();
	execv(fix_built("daemon/sparsekvd"), (char **)argv);
	_exit(127);
}

void fix_start_process(struct fix *f, const char *const *options)
{
	prepare(f, options);
	f->pid = fork();
	ck_assert_int_ge(f->pid, 0);
	if (f->pid == 0)
		exec_daemon(f);
	fix_wait(f);
}

/*
 * Valgrind runs one thread of a process at a time and does not know that io_uring_enter(2) blocks: a daemon in a thread
 * would block the test forever. Under valgrind the daemon is therefore a forked copy of the process, which valgrind
 * follows; errors that valgrind finds become its exit status. A valgrind without pidfd_open(2) (3.19) cannot run a
 * daemon at all: then the test starts the built program, which runs without valgrind.
 */
static bool valgrind_knows_pidfds(void)
{
	int fd = pidfd_open(getpid(), 0);

	return fd >= 0 && close(fd) == 0;
}

static void fork_daemon(struct fix *f, struct skv_server_options *o)
{
	f->pid = fork();
	ck_assert_int_ge(f->pid, 0);
	if (f->pid)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	unsetenv("NOTIFY_SOCKET");
	o->service = true; /* handles SIGTERM */
	if (skv_server_new(o, &f->server) < 0)
		_exit(2);
	serve(f);
	skv_server_free(f->server);
	_exit(f->result ? 1 : 0);
}

void fix_start_thread(struct fix *f, const char *const *options)
{
	static char program[512];
	struct skv_server_options o = {.program = program};

	if (getenv("SKV_VALGRIND") && !valgrind_knows_pidfds()) {
		fix_start_process(f, options);
		return;
	}
	prepare(f, options);
	strcpy(program, fix_built("daemon/sparsekvd"));
	o.config.file = "/dev/null";
	o.config.options = f->options;
	f->pid = getpid();
	if (getenv("SKV_VALGRIND")) {
		fork_daemon(f, &o);
	} else {
		ck_assert_int_eq(skv_server_new(&o, &f->server), 0);
		ck_assert_int_eq(pthread_create(&f->thread, NULL, serve, f), 0);
	}
	fix_wait(f);
}

/* ---- stopping ---- */

static void remove_dir(const char *path)
{
	DIR *d = opendir(path);

	ck_assert_ptr_nonnull(d);
	for (struct dirent *e; (e = readdir(d));)
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			unlinkat(dirfd(d), e->d_name, 0);
	closedir(d);
	ck_assert_int_eq(rmdir(path), 0);
}

void fix_stop(struct fix *f)
{
	int status;

	if (f->server) {
		skv_server_stop(f->server);
		ck_assert_int_eq(pthread_join(f->thread, NULL), 0);
		ck_assert_int_eq(f->result, 0);
		f->server = skv_server_free(f->server);
	} else {
		ck_assert_int_eq(kill(f->pid, SIGTERM), 0);
		ck_assert_int_eq(waitpid(f->pid, &status, 0), f->pid);
		if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
			char *log = fix_log(f);

			ck_abort_msg("sparsekvd ended with wait status %#x:\n%s", (unsigned)status, log);
		}
	}
	ck_assert_int_ne(access(f->socket, F_OK), 0);
	remove_dir(f->dir);
	for (size_t i = 0; f->options[i]; i++)
		free(f->options[i]);
}

void fix_kill(struct fix *f)
{
	ck_assert_int_eq(kill(f->pid, SIGKILL), 0);
	ck_assert_int_eq(waitpid(f->pid, NULL, 0), f->pid);
	remove_dir(f->dir);
	for (size_t i = 0; f->options[i]; i++)
		free(f->options[i]);
}

char *fix_log(const struct fix *f)
{
	FILE *file = fopen(f->log, "re");
	char *text = NULL;
	size_t cap = 0;

	if (!file || getdelim(&text, &cap, 0, file) < 0) {
		free(text);
		text = strdup("");
	}
	if (file)
		fclose(file);
	return text;
}

void fix_expect_log(const struct fix *f, const char *what)
{
	double end = fix_now() + 20;

	for (;;) {
		char *log = fix_log(f);
		bool found = strstr(log, what);

		if (!found && fix_now() > end)
			ck_abort_msg("the log does not say \"%s\":\n%s", what, log);
		free(log);
		if (found)
			return;
		fix_sleep_ms(5);
	}
}

/* ---- other processes ---- */

void fix_in_child(uid_t uid, void (*body)(void *), void *arg)
{
	pid_t pid = child_fork();

	if (pid == 0) {
		if (uid && (setgid((gid_t)uid) < 0 || setuid(uid) < 0))
			_exit(2);
		body(arg);
		_exit(0);
	}
	child_wait(pid);
}
