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

#define KEPT_MOST 4096
#define FIRST_FD 3 /* SD_LISTEN_FDS_START */

char manager_socket[96];
static char dir[64], notify_path[96], log_path[96];
static int notify_fd = -1, listen_fd = -1;
static pid_t daemon_pid;
static pthread_t thread;

/* Under the lock. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	char name[64];
	int fd;
} kept[KEPT_MOST];
static unsigned n_kept;
static bool ready;
static _Atomic bool closing;

/* ---- what it hears --------------------------------------------------------------------------- */

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

/* One notification; false: there is none. */
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
	strcpy(dir, "/tmp/skv-manager.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(notify_path, sizeof(notify_path), "%s/notify", dir);
	snprintf(manager_socket, sizeof(manager_socket), "%s/socket", dir);
	snprintf(log_path, sizeof(log_path), "%s/log", dir);
	notify_fd = bound(notify_path, SOCK_DGRAM);
	listen_fd = bound(manager_socket, SOCK_SEQPACKET);
	ck_assert_int_eq(listen(listen_fd, 64), 0);
	closing = false;
	ck_assert_int_eq(pthread_create(&thread, NULL, listens, NULL), 0);
}

/* The child: its descriptors, and their names. */
static void pass(char *names, size_t size)
{
	size_t at = (size_t)snprintf(names, size, "clients");
	int copy[KEPT_MOST + 1], n = 0;

	/* out of the way of the numbers that they are to have */
	copy[n++] = fcntl(listen_fd, F_DUPFD_CLOEXEC, 3 * KEPT_MOST);
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
	execv(fix_built("daemon/sparsekvd"), (char **)(uintptr_t)argv);
	_exit(127);
}

void manager_start(const char *const *options)
{
	const double end = fix_now() + 20;

	hear_all();
	pthread_mutex_lock(&lock);
	ready = false;
	daemon_pid = fork();
	if (daemon_pid == 0)
		exec_daemon(options);
	pthread_mutex_unlock(&lock);
	ck_assert_int_gt(daemon_pid, 0);
	for (bool is = false; !is;) {
		ck_assert_msg(fix_now() < end && waitpid(daemon_pid, NULL, WNOHANG) == 0, "the daemon does not come up: %s", manager_log());
		usleep(500);
		pthread_mutex_lock(&lock);
		is = ready;
		pthread_mutex_unlock(&lock);
	}
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

void manager_replace(const char *name, int fd)
{
	hear_all();
	pthread_mutex_lock(&lock);
	keep_no_more(name);
	if (fd >= 0)
		keep(name, fd);
	pthread_mutex_unlock(&lock);
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

char *manager_log(void)
{
	char *text = calloc(1, 1 << 20);
	int fd = open(log_path, O_RDONLY | O_CLOEXEC);

	(void)!read(fd, text, (1 << 20) - 1);
	close(fd);
	return text;
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
	close(listen_fd);
	snprintf(command, sizeof(command), "rm -rf '%s'", dir);
	ck_assert_int_eq(system(command), 0);
}
