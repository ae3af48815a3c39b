/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/send.c - copies part of a parked file, for up to 100 ms, to the pipe of an export.
 *
 * The data is not verified here; the daemon that imports it does so. The reader of the pipe may be arbitrarily slow,
 * and exports of other users wait for this worker. So a job copies for a short time, and ends early if the reader does
 * not read. The daemon then waits until the pipe has room (daemon/parked/export.c) and submits a job for the next part.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/fd.h"
#include "daemon/disk/run-job.h"

#define AT_A_TIME (1u << 20)
#define TURN_NS 100000000u
#define READER_MS 10 /* how long a job waits for the pipe's reader: less than the delay until the next job */

/* Opens the job's file and seeks to its offset. Returns a descriptor, or a negative errno with a text. */
static int open_file(struct skv_disk_work *work)
{
	const struct skv_disk_job *job = work->job;
	int file = openat(work->fds[SKV_DISK_FD_USER], job->file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	struct stat st;
	int r = file < 0 || fstat(file, &st) < 0 || lseek(file, (off_t)job->offset, SEEK_SET) < 0 ? -errno : 0;

	if (r == 0) {
		work->inode = st.st_ino;
		work->changed_ns = (uint64_t)st.st_ctim.tv_sec * 1000000000u + (uint64_t)st.st_ctim.tv_nsec;
	}
	if (r == -ENOENT ||
	    (r == 0 && job->inode && (work->inode != job->inode || work->changed_ns != job->changed_ns)))
		r = skv_disk_refuse(work, -ESTALE, "the sequence was resumed or dropped while it was exported");
	else if (r < 0)
		skv_disk_refuse(work, r, "the file %s cannot be read: %s", job->file, strerror(-r));
	if (r < 0)
		skv_close_fd(file);
	return r < 0 ? r : file;
}

/* Copies until the end of the file, for up to TURN_NS, or until the pipe stays full for READER_MS. */
static int send_some(struct skv_disk_work *work, int file, int out)
{
	const uint64_t end_ns = skv_now_ns() + TURN_NS, max = work->job->max_bytes;

	for (uint64_t at = work->job->offset; at < max && skv_now_ns() < end_ns;) {
		struct pollfd p = {.fd = out, .events = POLLOUT};
		const uint64_t left = max - at;
		ssize_t n;

		if (poll(&p, 1, READER_MS) == 0)
			return 0;
		n = splice(file, NULL, out, NULL, left < AT_A_TIME ? left : AT_A_TIME,
		           SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
		if (n == 0)
			return skv_disk_refuse(work, -EIO, "the file ends after %llu bytes, expected %llu",
			                       (unsigned long long)at, (unsigned long long)max);
		if (n < 0 && errno != EINTR && errno != EAGAIN)
			return skv_disk_refuse(work, -errno, "the file cannot be written to the pipe of the export: %s",
			                       strerror(errno));
		at += n > 0 ? (uint64_t)n : 0;
		work->bytes += n > 0 ? (uint64_t)n : 0;
	}
	return 0;
}

int skv_disk_send(struct skv_disk_work *work)
{
	SKV_FD_CLEANUP int file = open_file(work);

	return file < 0 ? file : send_some(work, file, work->fds[SKV_DISK_FD_OTHER]);
}
