/* SPDX-License-Identifier: Apache-2.0 */
#include "common/process.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

void skv_process_open_standard(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0) /* open() returns the lowest free descriptor number, which is `fd` */
			(void)!open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY);
}

void skv_process_conceal(void)
{
	const char *debug = getenv("SPARSEKV_DEBUG");

	if (debug && strstr(debug, "dumpable"))
		return;
	(void)prctl(PR_SET_DUMPABLE, 0);
	(void)setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
}

void skv_process_serve(void)
{
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN);
}
