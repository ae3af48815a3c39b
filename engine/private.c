/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include "engine/env.h"

#define START_MS 10000 /* from exec to the first reply */
#define STOP_MS 3000   /* from SIGTERM to SIGKILL */

struct eng_private {
	char directory[PATH_MAX];
	char socket[PATH_MAX + 16];
	char daemon[PATH_MAX];
	char policies[PATH_MAX + 32]; /* "": the daemon's default */
	int peer;                     /* our end of the socket pair that the guardian watches */
	pid_t guardian;
};

/* ---- finding the daemon ---------------------------------------------------------------------- */

static bool runnable(const char *path)
{
	return !access(path, X_OK);
}

static bool join(char to[PATH_MAX], const char *folder, int n, const char *file)
{
	return snprintf(to, PATH_MAX, "%.*s/%s", n, folder, file) < PATH_MAX;
}

static bool find_in_path(char to[PATH_MAX])
{
	const char *path = getenv("PATH");

	while (path && *path) {
		int n = (int)strcspn(path, ":");

		if (n && join(to, path, n, "sparsekvd") && runnable(to))
			return true;
		path += n + (path[n] == ':');
	}
	return false;
}

static int find_daemon(struct eng_private *p, struct eng_error *err)
{
	static const char *const near[] = {"../daemon/sparsekvd", "../sbin/sparsekvd", "sparsekvd"};
	const char *named = getenv("SPARSEKVD");
	char own[PATH_MAX];

	if (named && *named) {
		if (snprintf(p->daemon, sizeof(p->daemon), "%s", named) >= (int)sizeof(p->daemon) ||
		    !runnable(named))
			return eng_fail(err, -ENOENT, "SPARSEKVD=%.200s: not a program that can be run",
			                named);
		return 0;
	}
	if (eng_env_directory(own, sizeof(own)))
		for (size_t i = 0; i < sizeof(near) / sizeof(*near); i++)
			if (join(p->daemon, own, (int)strlen(own), near[i]) && runnable(p->daemon))
				return 0;
	if (find_in_path(p->daemon))
		return 0;
	return eng_fail(err, -ENOENT,
	                "sparsekvd is neither beside this program nor in PATH; SPARSEKVD can name it");
}

/* In a build tree the policies are beside the daemon; an installed daemon has the right default. */
static void find_policies(struct eng_private *p)
{
	const char *slash = strrchr(p->daemon, '/');
	int n = slash ? (int)(slash - p->daemon) : 0;

	snprintf(p->policies, sizeof(p->policies), "%.*s/../policies/.libs", n, p->daemon);
	if (!slash || access(p->policies, R_OK | X_OK))
		p->policies[0] = '\0';
}

static int make_directory(struct eng_private *p, struct eng_error *err)
{
	const char *base = getenv("TMPDIR");
	struct sockaddr_un address;

	snprintf(p->directory, sizeof(p->directory), "%.3000s/sparsekv-XXXXXX",
	         base && *base ? base : "/tmp");
	snprintf(p->socket, sizeof(p->socket), "%s/socket", p->directory);
	if (strlen(p->socket) >= sizeof(address.sun_path))
		return eng_fail(err, -ENAMETOOLONG, "TMPDIR=%.200s: too long for a socket in it", base);
	if (!mkdtemp(p->directory))
		return eng_fail(err, -errno, "%s: %s", p->directory, strerror(errno));
	snprintf(p->socket, sizeof(p->socket), "%s/socket", p->directory);
	return 0;
}

/* ---- the guardian ---------------------------------------------------------------------------- */

/* The directory holds only plain files and the socket, made by the daemon and this program. */
static void remove_directory(const char *path)
{
	DIR *d = opendir(path);

	for (const struct dirent *e; d && (e = readdir(d));)
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			unlinkat(dirfd(d), e->d_name, 0);
	if (d)
		closedir(d);
	rmdir(path);
}

_Noreturn static void run_daemon(const struct eng_private *p, pid_t guardian)
{
	char socket[sizeof(p->socket) + 16], policies[sizeof(p->policies) + 16], pool[64], account[64];
	/* Memory is allocated as sequences grow; the limit protects the machine from mistakes. */
	unsigned long long half = (unsigned long long)sysconf(_SC_PHYS_PAGES) / 2 *
	                          (unsigned long long)sysconf(_SC_PAGESIZE);
	/* Ignores the machine's configuration file, which is for the service. */
	const char *argv[] = {p->daemon, "--config=/dev/null", "--log-level=warning", socket, pool, account,
	                      p->policies[0] ? policies : NULL, NULL};

	snprintf(socket, sizeof(socket), "--socket=%s", p->socket);
	snprintf(policies, sizeof(policies), "--policy-path=%s", p->policies);
	snprintf(pool, sizeof(pool), "--pool-bytes=%llu", half);
	snprintf(account, sizeof(account), "--account-bytes=%llu", half);
	/* The daemon serves this program alone. */
	unsetenv("NOTIFY_SOCKET");
	unsetenv("WATCHDOG_USEC");
	unsetenv("LISTEN_FDS");
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != guardian)
		_exit(1);
	execv(p->daemon, (char **)argv);
	dprintf(STDERR_FILENO, "%s: %s\n", p->daemon, strerror(errno));
	_exit(127);
}

static void end_daemon(pid_t daemon, int daemon_fd)
{
	struct pollfd gone = {.fd = daemon_fd, .events = POLLIN};

	kill(daemon, SIGTERM);
	if (poll(&gone, 1, STOP_MS) <= 0)
		kill(daemon, SIGKILL);
	waitpid(daemon, NULL, 0);
}

/*
 * Runs in the guardian process. `peer` hangs up when the program has ended. If the daemon ends first, the guardian
 * hangs up on the program.
 */
_Noreturn static void guard(const struct eng_private *p, int peer)
{
	char log[sizeof(p->directory) + 8];
	struct pollfd fds[2];
	pid_t self, daemon;
	int null, out;

	/* A session of its own: the terminal's Ctrl-C must reach only the program. */
	setsid();
	self = getpid();
	snprintf(log, sizeof(log), "%s/log", p->directory);
	null = open("/dev/null", O_RDONLY);
	out = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
	if (null < 0 || out < 0 || dup2(null, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0 ||
	    dup2(peer, 3) < 0)
		_exit(1);
	fcntl(3, F_SETFD, FD_CLOEXEC);
	close_range(4, ~0u, 0);

	daemon = fork();
	if (daemon == 0)
		run_daemon(p, self);
	fds[0] = (struct pollfd){.fd = 3, .events = POLLIN};
	fds[1] = (struct pollfd){.fd = daemon > 0 ? pidfd_open(daemon, 0) : -1, .events = POLLIN};
	while (poll(fds, 2, -1) < 0 && errno == EINTR)
		;
	if (daemon > 0 && !fds[0].revents) {
		/* The daemon ended by itself: tell the program, and keep the log until the program has read it. */
		shutdown(3, SHUT_WR);
		poll(fds, 1, -1);
	}
	if (daemon > 0)
		end_daemon(daemon, fds[1].fd);
	remove_directory(p->directory);
	_exit(0);
}

/* ---- start and stop -------------------------------------------------------------------------- */

static int start_guardian(struct eng_private *p, struct eng_error *err)
{
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		return eng_fail(err, -errno, "socketpair: %s", strerror(errno));
	p->guardian = fork();
	if (p->guardian == 0) {
		close(pair[0]);
		guard(p, pair[1]);
	}
	close(pair[1]);
	if (p->guardian < 0) {
		close(pair[0]);
		return eng_fail(err, -errno, "fork: %s", strerror(errno));
	}
	p->peer = pair[0];
	return 0;
}

/* Copies the last line of the daemon's log to `to`. */
static void last_words(const struct eng_private *p, char *to, size_t room)
{
	char path[sizeof(p->directory) + 8], *line = NULL;
	size_t n = 0;
	FILE *f;

	snprintf(to, room, "it said nothing");
	snprintf(path, sizeof(path), "%s/log", p->directory);
	f = fopen(path, "re");
	while (f && getline(&line, &n, f) > 0)
		snprintf(to, room, "%.*s", (int)strcspn(line, "\n"), line);
	free(line);
	if (f)
		fclose(f);
}

static int wait_ready(struct eng_private *p, struct skv_client **ret_client, struct eng_error *err)
{
	struct pollfd gone = {.fd = p->peer, .events = POLLIN};
	char words[300];
	int r = -ETIMEDOUT;

	for (int ms = 0; ms < START_MS; ms += 5) {
		r = skv_connect(ret_client, p->socket);
		if (r != -ENOENT && r != -ECONNREFUSED && r != -EACCES) /* -EACCES: bound, but not yet accessible */
			return r < 0 ? eng_fail(err, r, "%s", skv_last_error()) : 0;
		if (poll(&gone, 1, 5) > 0) {
			last_words(p, words, sizeof(words));
			return eng_fail(err, -ECHILD, "the private daemon %.150s ended at once: %s",
			                p->daemon, words);
		}
	}
	last_words(p, words, sizeof(words));
	return eng_fail(err, r, "the private daemon %.150s does not listen after %d s: %s", p->daemon,
	                START_MS / 1000, words);
}

int eng_private_start(struct eng_private **ret, struct skv_client **ret_client, struct eng_error *err)
{
	struct eng_private *p = calloc(1, sizeof(*p));
	int r;

	if (!p)
		return eng_fail(err, -ENOMEM, "no memory for a private daemon");
	r = find_daemon(p, err);
	if (!r) {
		find_policies(p);
		r = make_directory(p, err);
	}
	if (r) {
		free(p);
		return r;
	}
	r = start_guardian(p, err);
	if (r) {
		remove_directory(p->directory);
		free(p);
		return r;
	}
	r = wait_ready(p, ret_client, err);
	if (r) {
		eng_private_stop(p);
		return r;
	}
	*ret = p;
	return 0;
}

void eng_private_stop(struct eng_private *p)
{
	if (!p)
		return;
	close(p->peer);
	while (waitpid(p->guardian, NULL, 0) < 0 && errno == EINTR)
		;
	free(p);
}

const char *eng_private_socket(const struct eng_private *p)
{
	return p->socket;
}
