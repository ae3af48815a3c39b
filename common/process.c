/* SPDX-License-Identifier: Apache-2.0 */
#include "common/process.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

void skv_process_open_standard(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0) /* open() gives the lowest that is free, which is this one */
			(void)!open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY);
}

void skv_process_serve(void)
{
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN);
}
