/* SPDX-License-Identifier: Apache-2.0 */
#include "common/clock.h"
#include "daemon/disk/files.h"
#include "daemon/disk/run-job.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

int skv_disk_progress(struct skv_disk_work *work, uint64_t bytes)
{
	const uint64_t now_ns = skv_now_ns();

	work->bytes += bytes;
	if (!work->said_ns)
		work->said_ns = now_ns;
	if (now_ns - work->said_ns < SKV_DISK_SAYS_NS || !work->say)
		return 0;
	work->said_ns = now_ns;
	return work->say(work);
}

int skv_disk_remove(struct skv_disk_work *work)
{
	const int r = skv_files_remove(work->fds[SKV_DISK_FD_USER], work->job->file);

	return r < 0 ? skv_disk_refuse(work, r, "the file cannot be removed: %s", strerror(-r)) : 0;
}

static int write_found(void *work, const struct skv_files_found *found, struct skv_parked_keys *keys)
{
	const struct skv_disk_work *w = work;
	const size_t bytes = keys ? skv_parked_keys_bytes(found->header.n_keys) : 0;
	const struct iovec parts[2] = {{(void *)(uintptr_t)found, sizeof(*found)}, {keys, bytes}};
	const ssize_t n = writev(w->fds[SKV_DISK_FD_OTHER], parts, 2);

	free(keys);
	return n == (ssize_t)(sizeof(*found) + bytes) ? 0 : n < 0 ? -errno : -ENOSPC;
}

int skv_disk_look(struct skv_disk_work *work)
{
	const int to = work->fds[SKV_DISK_FD_OTHER];
	/* if the job is a retry, an earlier worker may have written part of the results */
	int r = ftruncate(to, 0) < 0 || lseek(to, 0, SEEK_SET) < 0 ? -errno : 0;

	if (r == 0)
		r = skv_files_look(work->fds[SKV_DISK_FD_USER], work->job->file, write_found, work);
	return r < 0 ? skv_disk_refuse(work, r, "the user's folder cannot be searched: %s", strerror(-r)) : 0;
}
