/* SPDX-License-Identifier: Apache-2.0 */
/* Its constructor tries to reach the process that loads it, and lists in its summary what succeeded. */
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include "tests/support/plugins/plugin.h"

static char summary[256] = "reached:";

static void reached(const char *what, bool yes)
{
	if (yes) {
		strcat(summary, " ");
		strcat(summary, what);
	}
}

static bool opens(const char *format, int pid, int flags)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), format, pid);
	fd = open(path, flags, 0600);
	return fd >= 0 && close(fd) == 0;
}

static bool reads_memory(pid_t pid)
{
	char word[8];
	struct iovec here = {word, sizeof(word)}, there = {summary, sizeof(word)};

	return process_vm_readv(pid, &here, 1, &there, 1, 0) >= 0 || ptrace(PTRACE_SEIZE, pid, 0, 0) == 0;
}

static bool forks(void)
{
	pid_t pid = fork();

	if (pid == 0)
		_exit(0);
	return pid > 0;
}

__attribute__((constructor)) static void escape(void)
{
	pid_t daemon = getppid();

	reached("descriptors", opens("/proc/%d/fd", daemon, O_RDONLY) || opens("/proc/%d/fd/0", daemon, O_RDONLY));
	reached("memory", opens("/proc/%d/mem", daemon, O_RDONLY) || reads_memory(daemon));
	reached("daemon", kill(daemon, 0) == 0 || syscall(SYS_pidfd_open, daemon, 0) >= 0);
	reached("sockets", socket(AF_UNIX, SOCK_STREAM, 0) >= 0 || socket(AF_INET, SOCK_STREAM, 0) >= 0);
	reached("processes", forks());
	reached("writing", opens("/tmp/sparsekv-escaped-%d", daemon, O_WRONLY | O_CREAT));
	reached("files", opens("/etc/passwd", daemon, O_RDONLY));
}

static struct skv_policy policy = {GOOD_POLICY("escape")};

const struct skv_policy *sparsekv_policy(void)
{
	policy.summary = summary;
	return &policy;
}
