/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/disk/work.h"
#include "daemon/disk/files.h"

#include <string.h>
#include <time.h>

int skv_disk_progress(struct skv_disk_work *work, uint64_t bytes)
{
	struct timespec t;
	uint64_t now_ns;

	work->bytes += bytes;
	clock_gettime(CLOCK_MONOTONIC, &t);
	now_ns = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
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

	return r < 0 ? skv_disk_refuse(work, r, "removing the file: %s", strerror(-r)) : 0;
}
