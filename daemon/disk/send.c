/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/send.c - a parked file, as it is, into a pipe.
 *
 * What comes out of the pipe is checked where it is imported. A reader that does not read is given up.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>
#include "common/fd.h"
#include "daemon/disk/work.h"

#define AT_A_TIME (1u << 20)
#define PATIENCE_MS 10000 /* with a reader that does not read: others want to export, too */

int skv_disk_send(struct skv_disk_work *work)
{
	SKV_FD_CLEANUP int fd = openat(work->fds[SKV_DISK_FD_USER], work->job->file, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	int r = 0;

	if (fd < 0)
		return skv_disk_refuse(work, -errno, "opening %s: %s", work->job->file, strerror(errno));
	for (;;) {
		struct pollfd p = {.fd = work->fds[SKV_DISK_FD_OTHER], .events = POLLOUT};
		ssize_t n;

		if (poll(&p, 1, PATIENCE_MS) == 0)
			return skv_disk_refuse(work, -ETIMEDOUT, "nobody has read %s from its pipe for %d s", work->job->file, PATIENCE_MS / 1000);
		n = splice(fd, NULL, work->fds[SKV_DISK_FD_OTHER], NULL, AT_A_TIME, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);

		if (n == 0)
			return 0;
		if (n < 0 && errno != EINTR && errno != EAGAIN)
			return skv_disk_refuse(work, -errno, "writing %s to a pipe: %s", work->job->file, strerror(errno));
		r = skv_disk_progress(work, n > 0 ? (uint64_t)n : 0);
		if (r < 0)
			return r;
	}
}
