/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/restart/keeper.c - see keeper.h.
 *
 * The keeper accepts messages only from the daemon's own process, by the PID that the kernel passes with each datagram.
 * The keeper reaps a dead daemon only after it has read all messages of this daemon. So no other process can have the
 * PID before, and the descriptors that the daemon stored last are there when the next one starts. If the keeper has no
 * memory for a message, the message stays in the socket; when the socket's buffer is full, the daemon waits.
 *
 * The keeper executes the daemon by the path of the program. So after an upgrade has replaced the file at this path, a
 * restart of the daemon (SIGUSR2) runs the new version.
 */
#include "daemon/restart/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/fd.h"
#include "daemon/restart/keeper-store.h"
#include "daemon/sys/log.h"
#include "daemon/sys/socket.h"

#define SECOND 1000000000ull
#define FAILED_MOST 5u              /* number of failed starts in a row after which the keeper gives up */
#define START_APART (SECOND / 10)   /* least time between two starts of the daemon; doubled after each failed start */
#define START_TIME (90 * SECOND)    /* time within which a daemon must be ready after its start */
#define STOP_TIME (30 * SECOND)     /* time within which a daemon must end after SIGTERM */
#define ABORT_TIME (5 * SECOND)     /* time within which a hung daemon must end after SIGABRT */
#define WATCHDOG_TIME (30 * SECOND) /* longest time between two signs of life of a daemon */
#define WATCHDOG_USEC "30000000"
#define FDS_MOST 253 /* maximum of descriptors in a datagram: the kernel's SCM_MAX_FD */

struct keeper {
	const struct skv_config_sources *config;
	char program[4096];
	struct skv_sockets sockets;
	struct sockaddr_un notify; /* address of the socket to which daemons send notifications */
	int notify_fd, signal_fd;
	struct skv_stored store;

	pid_t daemon; /* PID of the daemon; 0: none is running */
	/* if none is running: time at which the next daemon is started, and at which the last one ended */
	uint64_t start_at, ended_at;
	uint64_t started_at, deadline; /* time at which the daemon was started, and from which it counts as hung */
	/* the daemon serves; it was asked to end; it hung and was sent SIGABRT or SIGKILL */
	bool ready, asked, aborted;
	bool stopping;
	bool unheard; /* messages are left in the socket because they could not be read: try again at once */
	unsigned failed; /* number of failed starts in a row */
	int result;
};

/* ---- messages of daemons ---- */

/*
 * Names of the keeper's listening sockets in the store. A daemon can neither store nor remove descriptors of these
 * names.
 */
static const char *const own_names[] = {"clients", "operators"};

static bool is_own(const char *name)
{
	return !strcmp(name, own_names[0]) || !strcmp(name, own_names[1]);
}

/* Stores a descriptor (consumed) that a daemon has sent. */
static void store(struct keeper *k, const char *name, int fd)
{
	int r;

	if (is_own(name)) {
		skv_log_peer(LOG_WARNING,
		             "keeper: a descriptor of the daemon is not kept as %s: this name belongs to a socket of "
		             "the keeper",
		             name);
		skv_close_fd(fd);
		return;
	}
	r = skv_stored_add(&k->store, name, fd);
	if (r < 0)
		skv_log_peer(LOG_ERR, "keeper: descriptor %s is not kept, and is lost when the daemon ends: %s", name,
		             r == -E2BIG
		                     ? "there are more names than a process can be passed; lower max-sequences or "
		                       "max-sessions"
		                     : strerror(-r));
}

static void on_ready(struct keeper *k)
{
	const uint64_t now = skv_now_ns(), since = k->ended_at ? k->ended_at : k->started_at;

	if (!k->ready)
		skv_log(LOG_NOTICE, "keeper: the daemon is ready, %.1f ms after %s; %zu descriptors are kept",
		        (double)(now - since) / 1e6, k->ended_at ? "the previous daemon ended" : "it was started",
		        k->store.n);
	k->ready = true;
	k->failed = 0;
}

/*
 * Handles a notification of the daemon. Lines that the function does not know are for other service managers. Unlike
 * systemd without FDPOLL=0, the keeper never polls stored descriptors.
 */
static void deal_with(struct keeper *k, char *text, int *fds, unsigned n)
{
	bool stores = false, removes = false, lives = false;
	const char *name = "stored";
	char *rest = text;

	for (char *line; (line = strsep(&rest, "\n"));) {
		stores |= !strcmp(line, "FDSTORE=1");
		removes |= !strcmp(line, "FDSTOREREMOVE=1");
		if (!strncmp(line, "FDNAME=", 7))
			name = line + 7;
		if (!strcmp(line, "READY=1"))
			on_ready(k);
		lives |= !strcmp(line, "READY=1") || !strcmp(line, "WATCHDOG=1");
	}
	if (lives && !k->asked)
		k->deadline = skv_now_ns() + WATCHDOG_TIME;
	for (unsigned i = 0; stores && i < n; i++) {
		store(k, name, fds[i]);
		fds[i] = -1;
	}
	if (removes && !is_own(name))
		skv_stored_remove(&k->store, name);
}

struct heard {
	char text[4096];
	int fds[FDS_MOST];
	unsigned n;
	pid_t from;
};

/* Reads the next datagram. Returns 1, 0 if there is none, or a negative errno if the datagram cannot be read now. */
static int next(struct keeper *k, struct heard *h)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(h->fds)) + CMSG_SPACE(sizeof(struct ucred))];
	} control;
	struct iovec iov = {.iov_base = h->text, .iov_len = sizeof(h->text) - 1};
	struct msghdr m = {.msg_iov = &iov,
	                   .msg_iovlen = 1,
	                   .msg_control = control.buf,
	                   .msg_controllen = sizeof(control.buf)};
	struct ucred cred = {0};
	ssize_t bytes;

	if (skv_stored_reserve(&k->store) < 0)
		return -ENOMEM;
	bytes = recvmsg(k->notify_fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (bytes < 0)
		return errno == EAGAIN ? 0 : -errno;
	h->text[bytes] = 0;
	h->n = 0;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
		if (c->cmsg_level != SOL_SOCKET)
			continue;
		if (c->cmsg_type == SCM_CREDENTIALS)
			memcpy(&cred, CMSG_DATA(c), sizeof(cred));
		else if (c->cmsg_type == SCM_RIGHTS) {
			h->n = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
			memcpy(h->fds, CMSG_DATA(c), h->n * sizeof(int));
		}
	}
	h->from = cred.pid;
	if (m.msg_flags & MSG_CTRUNC)
		skv_log_peer(LOG_ERR,
		             "keeper: a descriptor of the daemon was not received, and is lost when the daemon ends: "
		             "raise RLIMIT_NOFILE");
	return 1;
}

/*
 * Handles all messages in the socket. Returns false if messages are left that cannot be read now. Then the daemon's
 * deadline is postponed, since one of these messages may be a sign of life.
 */
static bool hear_all(struct keeper *k)
{
	const struct timespec pause = {.tv_nsec = 1000000};
	struct heard h;
	uint64_t at_least;
	int r;

	while ((r = next(k, &h)) > 0) {
		if (k->daemon && h.from == k->daemon)
			deal_with(k, h.text, h.fds, h.n);
		else
			skv_log_peer(LOG_WARNING, "keeper: a message of process %d is ignored: the process is not the "
			                          "daemon",
			             (int)h.from);
		for (unsigned i = 0; i < h.n; i++)
			skv_close_fd(h.fds[i]);
	}
	k->unheard = r < 0;
	if (r == 0)
		return true;
	nanosleep(&pause, NULL);
	at_least = skv_now_ns() + WATCHDOG_TIME;
	if (k->daemon && !k->asked && !k->aborted && k->deadline < at_least)
		k->deadline = at_least;
	return false;
}

/* ---- daemons start and end ---- */

static bool set_number(const char *name, unsigned long n)
{
	char text[24];

	snprintf(text, sizeof(text), "%lu", n);
	return setenv(name, text, 1) == 0;
}

/*
 * Sets the environment variables of the daemon. If one were missing, the daemon would start with an empty state, and
 * the stored sequences would be lost.
 */
static bool set_environment(const struct keeper *k, const char *names)
{
	const unsigned long pid = (unsigned long)getpid();

	return set_number("LISTEN_FDS", k->store.n) && set_number("LISTEN_PID", pid) &&
	       setenv("LISTEN_FDNAMES", names, 1) == 0 && setenv("NOTIFY_SOCKET", k->notify.sun_path, 1) == 0 &&
	       setenv("WATCHDOG_USEC", WATCHDOG_USEC, 1) == 0 && set_number("WATCHDOG_PID", pid);
}

/*
 * Executes the daemon in the child process. If the keeper ends, the daemon gets SIGTERM: without the keeper, nothing
 * would keep what the daemon stores or start the next one, and a new keeper could not listen on the sockets. SIGTERM,
 * SIGINT and SIGHUP stay blocked, as the daemon itself blocks them, so a signal that comes before the daemon has
 * started waits.
 */
static void become_daemon(const struct keeper *k, pid_t keeper, const int *fds, const char *names)
{
	size_t n = 0, at = 0;
	sigset_t set;
	char **argv;

	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != keeper)
		_exit(EXIT_FAILURE);
	while (k->config->options && k->config->options[n])
		n++;
	argv = calloc(n + 4, sizeof(*argv));
	if (!argv)
		_exit(EXIT_FAILURE);
	argv[at++] = (char *)(uintptr_t)k->program;
	if (k->config->file) {
		argv[at++] = (char *)(uintptr_t)"--config";
		argv[at++] = (char *)(uintptr_t)k->config->file;
	}
	for (size_t i = 0; i < n; i++)
		argv[at++] = k->config->options[i];
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_SETMASK, &set, NULL);
	if (set_environment(k, names) && skv_stored_pass(fds, k->store.n) == 0)
		execv(k->program, argv);
	skv_log(LOG_ERR, "keeper: %s cannot be executed: %s", k->program, strerror(errno));
	_exit(EXIT_FAILURE);
}

static void start_failed(struct keeper *k, const char *why)
{
	k->failed++;
	skv_log(LOG_ERR, "keeper: the daemon did not start: %s", why);
	if (k->failed >= FAILED_MOST) {
		skv_log(LOG_CRIT, "keeper: %u starts in a row failed; the keeper ends, and all sequences in memory are "
		                  "given up", k->failed);
		k->result = -ECANCELED;
	}
}

static void start(struct keeper *k)
{
	const pid_t keeper = getpid();
	char *names = NULL;
	int *fds = NULL, r;

	k->started_at = skv_now_ns();
	k->deadline = k->started_at + START_TIME;
	k->ready = k->asked = k->aborted = false;
	r = skv_stored_list(&k->store, &fds, &names);
	if (r == 0)
		k->daemon = fork();
	if (r == 0 && k->daemon < 0)
		r = -errno;
	if (r == 0 && k->daemon == 0)
		become_daemon(k, keeper, fds, names);
	if (r < 0) {
		k->daemon = 0;
		skv_log_peer(LOG_ERR, "keeper: no process can be created for the daemon: %s; the keeper tries again in "
		                      "a second", strerror(-r));
		/* starting is tried again without limit, since the daemon is not at fault */
		k->start_at = k->started_at + SECOND;
	} else {
		skv_log(LOG_INFO, "keeper: process %d is started as the daemon, with %zu descriptors",
		        (int)k->daemon, k->store.n);
	}
	free(names);
	free(fds);
}

static void on_end(struct keeper *k, int status)
{
	const bool killed = WIFSIGNALED(status);
	char how[64];

	snprintf(how, sizeof(how), killed ? "signal %d" : "exit status %d",
	         killed ? WTERMSIG(status) : WEXITSTATUS(status));
	k->daemon = 0;
	k->ended_at = skv_now_ns();
	if (k->stopping) {
		k->result = status == 0 ? 0 : -ECHILD;
		skv_log(status == 0 ? LOG_NOTICE : LOG_ERR, "keeper: the daemon has ended (%s), and the keeper ends",
		        how);
		return;
	}
	if (!k->asked && !k->ready)
		start_failed(k, how);
	else if (!k->asked)
		skv_log(LOG_ERR, "keeper: the daemon has ended unexpectedly (%s); the next daemon continues with its "
		                 "state", how);
	k->start_at = k->asked ? 0 : k->started_at + (START_APART << k->failed);
}

/* Reaps all children that have ended. They include orphaned processes, since the keeper is process 1 or a subreaper. */
static void reap(struct keeper *k)
{
	for (;;) {
		siginfo_t info = {0};
		int status;

		if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0 || info.si_pid == 0)
			return;
		if (info.si_pid == k->daemon && !hear_all(k))
			return;
		if (waitpid(info.si_pid, &status, 0) == k->daemon)
			on_end(k, status);
	}
}

static void ask_to_end(struct keeper *k)
{
	if (!k->daemon || k->asked)
		return;
	k->asked = true;
	k->deadline = skv_now_ns() + STOP_TIME;
	kill(k->daemon, SIGTERM);
}

static void end_the_hung(struct keeper *k)
{
	skv_log(LOG_ERR, "keeper: the daemon hangs and is killed: %s",
	        k->asked   ? "it did not end in time after SIGTERM"
	        : k->ready ? "it gave no sign of life"
	                   : "it did not get ready in time after its start");
	/* SIGKILL the second time, because nothing else ends a stopped process */
	kill(k->daemon, k->asked || k->aborted ? SIGKILL : SIGABRT);
	k->aborted = true;
	k->deadline = skv_now_ns() + ABORT_TIME;
}

/* ---- the keeper ---- */

static void on_signal(struct keeper *k, unsigned signal)
{
	switch (signal) {
	case SIGHUP:
		if (k->daemon)
			kill(k->daemon, SIGHUP);
		break;
	case SIGUSR2:
		skv_log(LOG_NOTICE, "keeper: the daemon is restarted on SIGUSR2");
		k->failed = 0;
		k->start_at = 0;
		ask_to_end(k);
		break;
	case SIGTERM:
	case SIGINT:
		k->stopping = true;
		ask_to_end(k);
		break;
	}
}

static void read_signals(struct keeper *k)
{
	struct signalfd_siginfo info;

	while (read(k->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
		on_signal(k, info.ssi_signo);
}

/*
 * Waits for signals and messages, at most until a time. If the keeper itself was suspended for long (docker pause), the
 * daemon was suspended, too, and gets a new deadline.
 */
static void wait_until(struct keeper *k, uint64_t until)
{
	struct pollfd fds[2] = {{.fd = k->signal_fd, .events = POLLIN}, {.fd = k->notify_fd, .events = POLLIN}};
	uint64_t now = skv_now_ns();

	(void)poll(fds, 2, until > now && !k->unheard ? (int)((until - now) / 1000000 + 1) : 0);
	now = skv_now_ns();
	if (now > until + SECOND)
		k->deadline = now + WATCHDOG_TIME;
}

static void keep_running(struct keeper *k)
{
	while (k->result == 0 && !(k->stopping && !k->daemon)) {
		if (!k->daemon && skv_now_ns() >= k->start_at)
			start(k);
		wait_until(k, k->daemon ? k->deadline : k->start_at);
		hear_all(k);
		read_signals(k);
		reap(k);
		if (k->daemon && skv_now_ns() >= k->deadline)
			end_the_hung(k);
	}
}

static int open_signals(struct keeper *k)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGUSR2);
	sigaddset(&set, SIGCHLD);
	/* process 1 has no default handlers for signals, but gets those that it blocks and reads from a signalfd */
	if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
		return -errno;
	k->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return k->signal_fd < 0 ? -errno : 0;
}

/*
 * Opens the socket for notifications of the daemon. It is in the folder of the operators' socket, which containers of
 * engines do not see. Since the keeper has the lock of the operators' socket, an old socket of this name is not in use.
 * Only processes of the keeper's user can send to the socket.
 */
static int open_notify(struct keeper *k)
{
	const int on = 1;
	mode_t mask;
	int r;

	k->notify.sun_family = AF_UNIX;
	r = snprintf(k->notify.sun_path, sizeof(k->notify.sun_path), "%s.notify", k->sockets.operators.path);
	if (r >= (int)sizeof(k->notify.sun_path)) {
		k->notify.sun_path[0] = 0;
		return -ENAMETOOLONG;
	}
	k->notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (k->notify_fd < 0)
		return -errno;
	(void)unlink(k->notify.sun_path);
	mask = umask(0177);
	r = bind(k->notify_fd, (struct sockaddr *)&k->notify, sizeof(k->notify)) < 0 ? -errno : 0;
	umask(mask);
	if (r == 0 && setsockopt(k->notify_fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) < 0)
		r = -errno;
	return r;
}

static int open_sockets(struct keeper *k, const struct skv_config *c)
{
	int fds[2], r = skv_sockets_open(c, &k->sockets, fds);

	if (r < 0)
		return r;
	for (unsigned i = 0; i < 2 && r == 0; i++)
		r = skv_stored_add(&k->store, own_names[i], fds[i]);
	return r < 0 ? r : open_notify(k);
}

/*
 * Gets the path of this program; after an upgrade the path has another file. Opens descriptors 0 to 2 if they are
 * closed, since the descriptors that are passed to a daemon start at 3.
 */
static int open_program(struct keeper *k)
{
	ssize_t n = readlink("/proc/self/exe", k->program, sizeof(k->program) - 1);
	int fd;

	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	skv_close_fd(fd);
	return n < 0 || fd < 0 ? -errno : 0;
}

static int keeper_open(struct keeper *k)
{
	struct skv_config config;
	char err[SKV_CONFIG_ERR];
	int r = skv_config_load(k->config, &config, err);

	skv_log_open(r < 0 ? LOG_INFO : config.log_level);
	if (r < 0) {
		skv_log(LOG_ERR, "settings: %s", err);
		return r;
	}
	(void)skv_fd_raise_limit();
	/* become the parent of the children of a killed daemon, as process 1 does */
	(void)prctl(PR_SET_CHILD_SUBREAPER, 1);
	r = open_program(k);
	if (r == 0)
		r = open_signals(k);
	if (r == 0)
		r = open_sockets(k, &config);
	if (r < 0)
		skv_log(LOG_ERR, "keeper: cannot start: %s", strerror(-r));
	return r;
}

int skv_run_keeper(const struct skv_config_sources *config)
{
	struct keeper *k = calloc(1, sizeof(*k));
	int r;

	if (!k) {
		skv_log(LOG_ERR, "keeper: out of memory");
		return -ENOMEM;
	}
	k->config = config;
	k->sockets = (struct skv_sockets)SKV_SOCKETS_NULL;
	k->signal_fd = k->notify_fd = -1;
	r = keeper_open(k);
	if (r == 0) {
		keep_running(k);
		r = k->result;
	}
	skv_stored_clear(&k->store);
	if (k->notify.sun_path[0])
		(void)unlink(k->notify.sun_path);
	skv_sockets_remove(&k->sockets);
	skv_close_fd(k->signal_fd);
	skv_close_fd(k->notify_fd);
	free(k);
	return r;
}
