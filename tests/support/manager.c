/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/manager.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/support/daemon-fixture.h"
#include "tests/support/privilege.h"
#include "tests/support/random.h"

#define KEPT_MOST 4096
#define FIRST_FD 3 /* SD_LISTEN_FDS_START */

char manager_socket[96];
static char dir[64], notify_path[96], log_path[96];
static int notify_fd = -1, listen_fd[2] = {-1, -1}; /* clients, operators */
static pid_t daemon_pid;
static pthread_t thread;

/* Protected by `lock`. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	char name[64];
	int fd;
} kept[KEPT_MOST];
static unsigned n_kept;
static bool ready;
static _Atomic bool closing;

/* ---- notifications ------------------------------------------------------------------------- */

static void keep_no_more(const char *name)
{
	for (unsigned i = 0; i < n_kept; i++)
		if (strcmp(kept[i].name, name) == 0) {
			close(kept[i].fd);
			kept[i] = kept[--n_kept];
			return;
		}
}

static void keep(const char *name, int fd)
{
	if (n_kept == KEPT_MOST)
		abort();
	kept[n_kept].fd = fd;
	snprintf(kept[n_kept++].name, sizeof(kept[0].name), "%s", name);
}

static void deal_with(char *text, int fd)
{
	const char *name = "";
	bool store = false, remove = false;

	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
		store |= !strcmp(line, "FDSTORE=1");
		remove |= !strcmp(line, "FDSTOREREMOVE=1");
		ready |= !strcmp(line, "READY=1");
		if (!strncmp(line, "FDNAME=", 7))
			name = line + 7;
	}
	if (store && fd >= 0)
		keep(name, fd);
	else if (fd >= 0)
		close(fd);
	if (remove)
		keep_no_more(name);
}

/* Receives one notification; returns false if there is none. */
static bool hear(void)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
	} control;
	char text[4096];
	struct iovec iov = {.iov_base = text, .iov_len = sizeof(text) - 1};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf, .msg_controllen = sizeof(control.buf)};
	ssize_t n = recvmsg(notify_fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	int fd = -1;

	if (n < 0)
		return false;
	text[n] = 0;
	for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h))
		if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS)
			memcpy(&fd, CMSG_DATA(h), sizeof(fd));
	deal_with(text, fd);
	return true;
}

static void hear_all(void)
{
	pthread_mutex_lock(&lock);
	while (hear())
		;
	pthread_mutex_unlock(&lock);
}

static void *listens(void *unused)
{
	(void)unused;
	while (!closing) {
		struct pollfd p = {.fd = notify_fd, .events = POLLIN};

		if (poll(&p, 1, 20) == 1)
			hear_all();
	}
	return NULL;
}

/* ---- daemons --------------------------------------------------------------------------------- */

static int bound(const char *path, int type)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

	strcpy(addr.sun_path, path);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	return fd;
}

void manager_open(void)
{
	char operators[128];

	strcpy(dir, "/tmp/skv-manager.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(notify_path, sizeof(notify_path), "%s/notify", dir);
	snprintf(manager_socket, sizeof(manager_socket), "%s/socket", dir);
	snprintf(log_path, sizeof(log_path), "%s/log", dir);
	notify_fd = bound(notify_path, SOCK_DGRAM);
	ck_assert(skv_operators_socket(manager_socket, operators, sizeof(operators)));
	for (int i = 0; i < 2; i++) {
		listen_fd[i] = bound(i ? operators : manager_socket, SOCK_SEQPACKET);
		ck_assert_int_eq(listen(listen_fd[i], 64), 0);
	}
	closing = false;
	ck_assert_int_eq(pthread_create(&thread, NULL, listens, NULL), 0);
}

/* In the child: moves descriptors to the numbers that the daemon expects, and lists their names. */
static void pass(char *names, size_t size)
{
	size_t at = (size_t)snprintf(names, size, "clients:operators");
	int copy[KEPT_MOST + 2], n = 0;

	/* first to high numbers, out of the way of the final ones */
	for (int i = 0; i < 2; i++)
		copy[n++] = fcntl(listen_fd[i], F_DUPFD_CLOEXEC, 3 * KEPT_MOST);
	for (unsigned i = 0; i < n_kept; i++) {
		copy[n++] = fcntl(kept[i].fd, F_DUPFD_CLOEXEC, 3 * KEPT_MOST);
		at += (size_t)snprintf(names + at, size - at, ":%s", kept[i].name);
	}
	for (int i = 0; i < n; i++)
		dup2(copy[i], FIRST_FD + i);
	close_range((unsigned)(FIRST_FD + n), ~0u, CLOSE_RANGE_CLOEXEC);
	snprintf(names + size - 16, 16, "%d", n);
	setenv("LISTEN_FDS", names + size - 16, 1);
	names[size - 17] = 0;
	setenv("LISTEN_FDNAMES", names, 1);
	snprintf(names, size, "%d", (int)getpid());
	setenv("LISTEN_PID", names, 1);
}

static void exec_daemon(const char *const *options)
{
	static char names[KEPT_MOST * 32], policies[512];
	const char *argv[32] = {"sparsekvd", "--config=/dev/null", policies};
	int n = 3;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600), STDERR_FILENO);
	snprintf(policies, sizeof(policies), "--policy-path=%s", fix_built("policies/.libs"));
	for (; options && *options; options++)
		argv[n++] = *options;
	pass(names, sizeof(names));
	setenv("NOTIFY_SOCKET", notify_path, 1);
	unsetenv("WATCHDOG_USEC");
	if (!has_capability(CAP_SYS_PTRACE)) /* the test counts its descriptors in /proc */
		setenv("SPARSEKV_DEBUG", "dumpable", 1);
	execv(fix_built("daemon/sparsekvd"), (char **)(uintptr_t)argv);
	_exit(127);
}

static void begin(const char *const *options)
{
	hear_all();
	pthread_mutex_lock(&lock);
	ready = false;
	daemon_pid = fork();
	if (daemon_pid == 0)
		exec_daemon(options);
	pthread_mutex_unlock(&lock);
	ck_assert_int_gt(daemon_pid, 0);
}

static bool is_ready(void)
{
	bool is;

	pthread_mutex_lock(&lock);
	is = ready;
	pthread_mutex_unlock(&lock);
	return is;
}

bool manager_try_start(const char *const *options, double seconds, int *ret_status)
{
	const double end = fix_now() + seconds;

	begin(options);
	while (!is_ready()) {
		if (manager_has_ended(ret_status))
			return false;
		if (fix_now() > end) {
			*ret_status = manager_end(SIGKILL);
			return false;
		}
		usleep(500);
	}
	return true;
}

void manager_start(const char *const *options)
{
	int status;

	ck_assert_msg(manager_try_start(options, 20, &status), "the daemon does not come up: %s", manager_log());
}

bool manager_has_ended(int *ret_status)
{
	if (waitpid(daemon_pid, ret_status, WNOHANG) == 0)
		return false;
	daemon_pid = 0;
	hear_all();
	return true;
}

int manager_end(int sig)
{
	int status;

	ck_assert_int_eq(kill(daemon_pid, sig), 0);
	ck_assert_int_eq(waitpid(daemon_pid, &status, 0), daemon_pid);
	daemon_pid = 0;
	hear_all();
	return status;
}

/*
 * Stops the daemon while requests of all clients arrive, and continues it shortly before its death: some requests are
 * then answered, some carried out but not answered, and some neither.
 */
static void pile_up(void)
{
	ck_assert_int_eq(kill(daemon_pid, SIGSTOP), 0);
	usleep(5000 + rnd_below(20000));
	ck_assert_int_eq(kill(daemon_pid, SIGCONT), 0);
	usleep(rnd_below(1500));
}

/* Lets the daemon carry out requests of all clients while their replies are lost. */
static void fall_silent(_Atomic bool *mute)
{
	*mute = true;
	usleep(5000 + rnd_below(20000));
}

int manager_end_at_work(int sig, _Atomic bool *mute, double *ret_at)
{
	int status;

	switch (rnd_below(4)) {
	case 0: break;
	case 1: pile_up(); break;
	default: fall_silent(mute); break;
	}
	*ret_at = fix_now();
	status = manager_end(sig);
	*mute = false;
	return status;
}

void manager_add(const char *name, int fd)
{
	hear_all();
	pthread_mutex_lock(&lock);
	keep(name, fd);
	pthread_mutex_unlock(&lock);
}

int manager_stored(const char *name)
{
	int fd = -1;

	hear_all();
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < n_kept; i++)
		if (strcmp(kept[i].name, name) == 0)
			fd = kept[i].fd;
	pthread_mutex_unlock(&lock);
	return fd;
}

void manager_replace(const char *name, int fd)
{
	hear_all();
	pthread_mutex_lock(&lock);
	keep_no_more(name);
	pthread_mutex_unlock(&lock);
	if (fd >= 0)
		manager_add(name, fd);
}

pid_t manager_daemon(void)
{
	return daemon_pid;
}

unsigned manager_kept(void)
{
	unsigned n = 0;

	hear_all();
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < n_kept; i++)
		n += strcmp(kept[i].name, "state") != 0;
	pthread_mutex_unlock(&lock);
	return n;
}

void manager_expect_kept(unsigned n)
{
	char names[1000] = "";
	const double end = fix_now() + 10;

	while (manager_kept() != n && fix_now() < end)
		usleep(1000);
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < n_kept && strlen(names) + 70 < sizeof(names); i++)
		snprintf(names + strlen(names), 70, " %s", kept[i].name);
	pthread_mutex_unlock(&lock);
	ck_assert_msg(manager_kept() == n, "%u are kept, expected %u:%s", manager_kept(), n, names);
}

char *manager_log_since(size_t *at)
{
	int fd = open(log_path, O_RDONLY | O_CLOEXEC);
	const off_t end = fd < 0 ? (off_t)*at : lseek(fd, 0, SEEK_END);
	const size_t bytes = (size_t)end - *at;
	char *text = calloc(1, bytes + 1);

	ck_assert_ptr_nonnull(text);
	if (fd >= 0) {
		ck_assert_int_eq(pread(fd, text, bytes, (off_t)*at), (ssize_t)bytes);
		close(fd);
	}
	*at = (size_t)end;
	return text;
}

char *manager_log(void)
{
	size_t at = 0;

	return manager_log_since(&at);
}

const char *manager_folder(void)
{
	return dir;
}

void manager_forget_log(void)
{
	ck_assert_int_eq(truncate(log_path, 0), 0);
}

void manager_close(void)
{
	char command[128];

	if (daemon_pid)
		(void)manager_end(SIGKILL);
	closing = true;
	pthread_join(thread, NULL);
	while (n_kept)
		close(kept[--n_kept].fd);
	close(notify_fd);
	close(listen_fd[0]);
	close(listen_fd[1]);
	snprintf(command, sizeof(command), "rm -rf '%s'", dir);
	ck_assert_int_eq(system(command), 0);
}
