/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/private-daemon.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define START_MS 10000 /* most milliseconds from starting the daemon to the first connection */
#define POLICY_PATH "--policy-path="

struct eng_private {
	char directory[PATH_MAX];
	char socket[PATH_MAX + 16], log[PATH_MAX + 16];
	char daemon[PATH_MAX];
	int peer; /* this program's end of the socket pair; the guardian watches the other end */
	pid_t guardian;
	pid_t program; /* the process that started the guardian; forks of it have copies of this struct */
};

/* ---- finding the daemon ---------------------------------------------------------------------- */

/* Returns whether `path` is a program that can be executed; `to` gets its real path. */
static bool is_program(const char *path, char to[PATH_MAX])
{
	return realpath(path, to) && !access(to, X_OK);
}

/* Returns whether `file` in `folder` (a path of n bytes) is a program that can be executed; `to` gets its real path. */
static bool is_there(char to[PATH_MAX], const char *folder, size_t n, const char *file)
{
	char path[PATH_MAX];

	return snprintf(path, sizeof(path), "%.*s/%s", (int)n, folder, file) < PATH_MAX && is_program(path, to);
}

static bool find_beside_library(char to[PATH_MAX])
{
	static const char *const near[] = {"../../daemon/sparsekvd", "../daemon/sparsekvd", "../sbin/sparsekvd",
	                                   "../../sbin/sparsekvd", "sparsekvd"};
	char library[PATH_MAX];
	Dl_info info;

	if (!dladdr((void *)skv_connect, &info) || !realpath(info.dli_fname, library))
		return false;
	for (size_t i = 0; i < sizeof(near) / sizeof(*near); i++)
		if (is_there(to, library, (size_t)(strrchr(library, '/') - library), near[i]))
			return true;
	return false;
}

static bool find_in_path(char to[PATH_MAX], const char *path)
{
	while (path && *path) {
		const size_t n = strcspn(path, ":");

		if (n && is_there(to, path, n, "sparsekvd"))
			return true;
		path += n + (path[n] == ':');
	}
	return false;
}

int eng_private_find(char *to, struct eng_error *err)
{
	const char *named = getenv("SPARSEKVD");

	if (named && *named) {
		if (is_program(named, to))
			return 0;
		return eng_fail(err, -ENOENT, "SPARSEKVD=%.200s: not a program that can be run", named);
	}
	if (find_beside_library(to) || find_in_path(to, getenv("PATH")) || find_in_path(to, "/usr/local/sbin:/usr/sbin"))
		return 0;
	return eng_fail(err, -ENOENT, "sparsekvd is neither beside the client library nor in PATH; SPARSEKVD can name it");
}

/* ---- its directory --------------------------------------------------------------------------- */

static int make_directory(struct eng_private *p, struct eng_error *err)
{
	const char *base = getenv("TMPDIR");

	snprintf(p->directory, sizeof(p->directory), "%.3000s/sparsekv-XXXXXX", base && *base ? base : "/tmp");
	if (strlen(p->directory) + strlen("/socket") >= sizeof(((struct sockaddr_un *)NULL)->sun_path))
		return eng_fail(err, -ENAMETOOLONG, "TMPDIR=%.200s: too long for a socket in it", base);
	if (!mkdtemp(p->directory))
		return eng_fail(err, -errno, "%s: %s", p->directory, strerror(errno));
	snprintf(p->socket, sizeof(p->socket), "%s/socket", p->directory);
	snprintf(p->log, sizeof(p->log), "%s/log", p->directory);
	return 0;
}

/* Removes what the guardian leaves behind if it did not start, or was killed. */
static void remove_directory(const struct eng_private *p)
{
	unlink(p->log);
	rmdir(p->directory);
}

/* Copies the last line of the daemon's log to `to`. */
static void last_words(const struct eng_private *p, char *to, size_t room)
{
	FILE *f = fopen(p->log, "re");
	char *line = NULL;
	size_t n = 0;

	snprintf(to, room, "it said nothing");
	while (f && getline(&line, &n, f) > 0)
		snprintf(to, room, "%.*s", (int)strcspn(line, "\n"), line);
	free(line);
	if (f)
		fclose(f);
}

/* ---- start and stop -------------------------------------------------------------------------- */

/*
 * Starts the guardian process. Its standard input is `peer`. The guardian is in a session of its own, because Ctrl-C
 * must reach only the program.
 */
static int spawn(struct eng_private *p, int peer, const char *const *argv)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	int r;

	posix_spawn_file_actions_init(&actions);
	posix_spawnattr_init(&attr);
	r = posix_spawn_file_actions_adddup2(&actions, peer, STDIN_FILENO);
	r = r ? r : posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, p->log, O_WRONLY | O_CREAT | O_APPEND, 0600);
	r = r ? r : posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
	r = r ? r : posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
	r = r ? r : posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSID);
	r = r ? r : posix_spawn(&p->guardian, p->daemon, &actions, &attr, (char **)argv, environ);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&actions);
	return -r;
}

static int start(struct eng_private *p, const char *const *argv, struct eng_error *err)
{
	int pair[2], r = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0 ? -errno : 0;

	if (r)
		return eng_fail(err, r, "socketpair: %s", strerror(-r));
	r = spawn(p, pair[1], argv);
	close(pair[1]);
	p->peer = pair[0];
	if (r)
		close(pair[0]);
	return r ? eng_fail(err, r, "%.200s: %s", p->daemon, strerror(-r)) : 0;
}

/*
 * Starts the guardian. The pool's limit protects the machine from mistakes; memory is only allocated as sequences grow.
 */
static int start_guardian(struct eng_private *p, uint64_t pool_bytes, const char *const *more, struct eng_error *err)
{
	const uint64_t half = (uint64_t)sysconf(_SC_PHYS_PAGES) / 2 * (uint64_t)sysconf(_SC_PAGESIZE);
	char guard[PATH_MAX + 16], socket[sizeof(p->socket) + 16], policies[PATH_MAX + 64], pool[64], account[64];
	/* The configuration file is not read, because it is for the system service. */
	const char *const own[] = {p->daemon, guard, "--config=/dev/null", "--log-level=warning", socket, pool, account};
	const char **argv;
	size_t n = 0, at = sizeof(own) / sizeof(*own);
	int r;

	pool_bytes = pool_bytes ? pool_bytes : half;
	snprintf(guard, sizeof(guard), "--private=%s", p->directory);
	snprintf(socket, sizeof(socket), "--socket=%s", p->socket);
	snprintf(pool, sizeof(pool), "--pool-bytes=%" PRIu64, pool_bytes);
	/* A private daemon has only one account, whose quota must not be reached before the limit of the pool. */
	snprintf(account, sizeof(account), "--account-bytes=%" PRIu64, pool_bytes + pool_bytes / 4);
	while (more && more[n])
		n++;
	argv = calloc(at + 1 + n + 1, sizeof(*argv));
	if (!argv)
		return eng_fail(err, -ENOMEM, "no memory for a private daemon");
	memcpy(argv, own, sizeof(own));
	/*
	 * In a build tree the policies are in a folder beside the daemon's; an installed daemon finds them by its
	 * default.
	 */
	snprintf(policies, sizeof(policies), POLICY_PATH "%s", p->daemon);
	snprintf(strrchr(policies, '/'), sizeof("/../policies/.libs"), "/../policies/.libs");
	if (!access(policies + strlen(POLICY_PATH), R_OK | X_OK))
		argv[at++] = policies;
	if (n)
		memcpy(argv + at, more, n * sizeof(*argv));
	r = start(p, argv, err);
	free(argv);
	return r;
}

static int wait_ready(struct eng_private *p, struct skv_client **ret_client, struct eng_error *err)
{
	struct pollfd gone = {.fd = p->peer, .events = POLLIN};
	char words[300];

	for (int ms = 0; ms < START_MS; ms += 5) {
		int r = skv_connect(ret_client, p->socket);

		/* -EACCES: the socket is bound, but its mode is not set yet */
		if (r != -ENOENT && r != -ECONNREFUSED && r != -EACCES)
			return r < 0 ? eng_fail(err, r, "%s", skv_last_error()) : 0;
		if (poll(&gone, 1, 5) > 0) {
			last_words(p, words, sizeof(words));
			return eng_fail(err, -ECHILD, "the private daemon %.150s ended at once: %s", p->daemon, words);
		}
	}
	last_words(p, words, sizeof(words));
	return eng_fail(err, -ECHILD, "the private daemon %.150s does not listen after %d s: %s", p->daemon,
	                START_MS / 1000, words);
}

int eng_private_start(uint64_t pool_bytes, const char *const *more, struct eng_private **ret,
                      struct skv_client **ret_client, struct eng_error *err)
{
	struct eng_private *p = calloc(1, sizeof(*p));
	int r = p ? eng_private_find(p->daemon, err) : eng_fail(err, -ENOMEM, "no memory for a private daemon");

	if (p)
		p->program = getpid();

	r = r ? r : make_directory(p, err);
	if (r) {
		free(p);
		return r;
	}
	r = start_guardian(p, pool_bytes, more, err);
	if (r) {
		remove_directory(p);
		free(p);
		return r;
	}
	r = wait_ready(p, ret_client, err);
	if (r)
		eng_private_stop(p);
	else
		*ret = p;
	return r;
}

void eng_private_stop(struct eng_private *p)
{
	if (!p)
		return;
	if (p->program == getpid())
		(void)shutdown(p->peer, SHUT_RDWR); /* forks may have copies of the descriptor, which close() leaves open */
	close(p->peer);
	/* waitpid() fails in a fork of the program: the guardian is no child of the fork, and the directory is still used */
	if (TEMP_FAILURE_RETRY(waitpid(p->guardian, NULL, 0)) == p->guardian)
		remove_directory(p);
	free(p);
}

const char *eng_private_socket(const struct eng_private *p)
{
	return p->socket;
}
