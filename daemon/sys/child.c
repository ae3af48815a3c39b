/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/sys/child.c - starts programs of sparsekv as child processes; see child.h. */
#include "daemon/sys/child.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/fd.h"

/* Sets which descriptors the child gets. Returns a positive errno if there is no memory. */
static int add_actions(posix_spawn_file_actions_t *actions, const int *fds, unsigned n, int output)
{
	int r = posix_spawn_file_actions_addopen(actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);

	if (r == 0 && output >= 0)
		r = posix_spawn_file_actions_adddup2(actions, output, STDOUT_FILENO);
	if (r == 0 && output >= 0)
		r = posix_spawn_file_actions_adddup2(actions, output, STDERR_FILENO);
	for (unsigned i = 0; i < n && r == 0; i++)
		r = posix_spawn_file_actions_adddup2(actions, fds[i], SKV_CHILD_FIRST_FD + (int)i);
	/* all others are closed, since libraries such as CUDA's driver open descriptors that are not close-on-exec */
	return r ? r : posix_spawn_file_actions_addclosefrom_np(actions, SKV_CHILD_FIRST_FD + (int)n);
}

static int spawn(const char *program, char *const *argv, char *const *envp, const int *fds, unsigned n,
                 int output, pid_t *ret_pid)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	sigset_t none, all;
	int r;

	sigemptyset(&none);
	sigfillset(&all);
	posix_spawn_file_actions_init(&actions);
	posix_spawnattr_init(&attr);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setsigdefault(&attr, &all);
	r = add_actions(&actions, fds, n, output);
	if (r == 0)
		r = posix_spawn(ret_pid, program, &actions, &attr, argv, envp);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&actions);
	return -r;
}

int skv_child_start(const char *program, char *const *argv, char *const *envp, const int *fds, unsigned n,
                    int output, pid_t *ret_pid, int *ret_pidfd)
{
	int high[SKV_CHILD_MAX_FDS], pidfd, r = 0;
	unsigned got = 0;
	pid_t pid;

	/*
	 * dup2() of a descriptor onto itself would leave it close-on-exec, so the sources get numbers above the targets
	 */
	while (r == 0 && got < n) {
		high[got] = fcntl(fds[got], F_DUPFD_CLOEXEC, SKV_CHILD_FIRST_FD + (int)SKV_CHILD_MAX_FDS);
		if (high[got] < 0)
			r = -errno;
		else
			got++;
	}
	if (r == 0)
		r = spawn(program, argv, envp, high, n, output, &pid);
	while (got > 0)
		skv_close_fd(high[--got]);
	if (r < 0)
		return r;
	pidfd = pidfd_open(pid, 0); /* the child has not been reaped, so no other process has its pid */
	if (pidfd < 0) {
		r = -errno;
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		return r;
	}
	*ret_pid = pid;
	*ret_pidfd = pidfd;
	return 0;
}

char *skv_child_find(const char *program, const char *name)
{
	char self[PATH_MAX], *found = NULL;
	const char *slash = realpath(program, self) ? strrchr(self, '/') : NULL;

	if (slash && asprintf(&found, "%.*s/%s", (int)(slash - self), self, name) < 0)
		return NULL; /* not the installed program, which may be of another version */
	if (found && access(found, X_OK) == 0)
		return found;
	free(found);
	return asprintf(&found, SKV_LIBEXECDIR "/%s", name) < 0 ? NULL : found;
}
