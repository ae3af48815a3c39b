/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/disk/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <time.h>
#include "common/fd.h"

#define LOCK_TRIES 200u /* attempts to get the lock, 5 ms apart */

/*
 * flock() locks belong to an open file description. The worker's lock gets a description of its own, so that it is
 * independent of other locks of the file and ends with this process.
 */
int skv_disk_lock(int fd)
{
	char path[32];
	int own, r = 0;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	own = open(path, O_RDONLY | O_CLOEXEC);
	if (own < 0)
		return -errno;
	while ((r = flock(own, LOCK_SH) < 0 ? -errno : 0) == -EINTR)
		;
	if (r < 0)
		skv_close_fd(own);
	return r < 0 ? r : own;
}

/* Waits because workers of a daemon that has just ended hold their locks until they exit, milliseconds later. */
int skv_disk_lock_out(int fd)
{
	const struct timespec pause = {.tv_nsec = 5000000};

	for (unsigned i = 0; flock(fd, LOCK_EX | LOCK_NB) < 0; i++) {
		if (errno != EWOULDBLOCK || i == LOCK_TRIES)
			return -errno;
		nanosleep(&pause, NULL);
	}
	return flock(fd, LOCK_UN) < 0 ? -errno : 0; /* with the lock held, this daemon's workers would wait forever */
}
