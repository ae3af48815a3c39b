/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/restart/guardian.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define STOP_MS 3000 /* milliseconds between SIGTERM and SIGKILL to the daemon */

/*
 * Executes the daemon in the child process. Variables of a service manager are removed, since the daemon is no service.
 */
static void become_daemon(pid_t guardian, char **argv)
{
	const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

	unsetenv("NOTIFY_SOCKET");
	unsetenv("WATCHDOG_USEC");
	unsetenv("LISTEN_FDS");
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() == guardian && null >= 0 && dup2(null, STDIN_FILENO) == STDIN_FILENO)
		execv(argv[0], argv);
	fprintf(stderr, "sparsekvd: %s cannot be executed: %s\n", argv[0], strerror(errno));
	_exit(EXIT_FAILURE);
}

static void end_daemon(pid_t daemon, int pidfd)
{
	struct pollfd gone = {.fd = pidfd, .events = POLLIN};

	kill(daemon, SIGTERM);
	if (TEMP_FAILURE_RETRY(poll(&gone, 1, STOP_MS)) <= 0)
		kill(daemon, SIGKILL);
	(void)TEMP_FAILURE_RETRY(waitpid(daemon, NULL, 0));
}

/* Removes the daemon's directory, which has only plain files and sockets. */
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

int skv_run_guardian(const char *directory, char **argv)
{
	const pid_t self = getpid();
	char program[PATH_MAX];
	const ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 1);
	struct pollfd fds[2] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = -1, .events = POLLIN}};
	pid_t daemon;

	program[n < 0 ? 0 : n] = '\0';
	argv[0] = program;
	daemon = fork();
	if (daemon == 0)
		become_daemon(self, argv);
	if (daemon < 0) {
		fprintf(stderr, "sparsekvd: no process can be created: %s\n", strerror(errno));
		return EXIT_FAILURE;
	}
	fds[1].fd = pidfd_open(daemon, 0);
	(void)TEMP_FAILURE_RETRY(poll(fds, 2, -1));
	if (!fds[0].revents) {
		shutdown(STDIN_FILENO, SHUT_WR);
		(void)TEMP_FAILURE_RETRY(poll(fds, 1, -1));
	}
	end_daemon(daemon, fds[1].fd);
	remove_directory(directory);
	return EXIT_SUCCESS;
}
