/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/privilege.h"
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

bool has_capability(int capability)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

	return syscall(SYS_capget, &header, data) == 0 && data[CAP_TO_INDEX(capability)].effective & CAP_TO_MASK(capability);
}

bool can_change_user(void)
{
	return has_capability(CAP_SETUID) && has_capability(CAP_SETGID);
}

bool can_mount(const char *what)
{
	pid_t pid = fork();
	int status = 0;

	if (pid == 0) {
		if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
			_exit(errno);
		_exit(0);
	}
	if (pid > 0 && waitpid(pid, &status, 0) == pid && status == 0)
		return true;
	printf("%s: not tested, since no file system can be mounted here (%s)\n", what,
	       pid < 0 || !WIFEXITED(status) ? "no process" : strerror(WEXITSTATUS(status)));
	return false;
}
