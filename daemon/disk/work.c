/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/disk/work.h"
#include "daemon/sys/clock.h"

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
