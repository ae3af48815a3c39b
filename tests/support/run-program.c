/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/run-program.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/support/folder.h"

static const char *path_in(char to[512], const char *variable, const char *built, const char *name)
{
	const char *moved = getenv(variable);

	snprintf(to, 512, "%s/%s", moved ? moved : built, name);
	return to;
}

const char *run_built(const char *name)
{
	static char path[512];

	return path_in(path, "SKV_BUILDDIR", SKV_BUILDDIR, name);
}

const char *run_source(const char *name)
{
	static char path[512];

	return path_in(path, "SKV_SRCDIR", SKV_SRCDIR, name);
}

pid_t run_start(const char *folder, const char *const *argv)
{
	const char *program = run_built(argv[0]);
	pid_t pid;

	fflush(NULL);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		int out = open(fx_path(folder, "out"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
		int err = open(fx_path(folder, "err"), O_WRONLY | O_CREAT | O_TRUNC, 0600);

		dup2(out, STDOUT_FILENO);
		dup2(err, STDERR_FILENO);
		close_range(3, ~0u, 0);
		/* Other tests may run at the same time: waiting threads must not spin. */
		setenv("OMP_WAIT_POLICY", "passive", 0);
		execv(program, (char *const *)argv);
		dprintf(STDERR_FILENO, "%s cannot be run\n", program);
		_exit(126);
	}
	return pid;
}

/* Polls, since valgrind 3.19 does not know pidfds. */
int run_wait(pid_t pid, int seconds)
{
	pid_t ended;
	int status;

	for (int ms = 0; (ended = waitpid(pid, &status, WNOHANG)) == 0; ms += 5) {
		if (ms >= 1000 * seconds) {
			kill(pid, SIGKILL);
			ck_abort_msg("a program had not ended after %d s", seconds);
		}
		usleep(5000);
	}
	ck_assert_int_eq(ended, pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int run(const char *folder, const char *const *argv, int seconds)
{
	return run_wait(run_start(folder, argv), seconds);
}

char *run_out(const char *folder)
{
	return fx_read(fx_path(folder, "out"), NULL);
}

char *run_err(const char *folder)
{
	return fx_read(fx_path(folder, "err"), NULL);
}
