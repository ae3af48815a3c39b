/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/send.c - a parked file, as it is, into a pipe: a turn's worth.
 *
 * What comes out of the pipe is checked where it is imported. Its reader may be slow for ever, and other users want to export, too. So a
 * turn is short, and a reader that does not read ends it; the daemon waits for that reader (daemon/import.c), and asks for the next turn.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>
#include "daemon/disk/work.h"
#include "daemon/sys/clock.h"

#define AT_A_TIME (1u << 20)
#define TURN_NS 100000000u
#define READER_MS 10 /* that a reader may take to read some more: less than it takes to come again */

int skv_disk_send(struct skv_disk_work *work)
{
	const int file = work->fds[SKV_DISK_FD_FILE], out = work->fds[SKV_DISK_FD_OTHER];
	const uint64_t end_ns = skv_now_ns() + TURN_NS, max = work->job->max_bytes;
	off_t at = lseek(file, 0, SEEK_CUR);

	if (at < 0)
		return skv_disk_refuse(work, -errno, "its file has no offset: %s", strerror(errno));
	while ((uint64_t)at < max && skv_now_ns() < end_ns) {
		struct pollfd p = {.fd = out, .events = POLLOUT};
		const uint64_t left = max - (uint64_t)at;
		ssize_t n;

		if (poll(&p, 1, READER_MS) == 0)
			return 0;
		n = splice(file, NULL, out, NULL, left < AT_A_TIME ? left : AT_A_TIME, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
		if (n == 0)
			return skv_disk_refuse(work, -EIO, "its file ends after %llu bytes, expected %llu", (unsigned long long)at, (unsigned long long)max);
		if (n < 0 && errno != EINTR && errno != EAGAIN)
			return skv_disk_refuse(work, -errno, "writing it to a pipe: %s", strerror(errno));
		at += n > 0 ? n : 0;
		work->bytes += n > 0 ? (uint64_t)n : 0;
	}
	return 0;
}
