/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/disk/list.h"

#include <errno.h>
#include <sparsekv/types.h>
#include <string.h>
#include <unistd.h>

void skv_disk_list_begin(struct skv_disk_list *l, struct skv_disk_work *work, uint64_t first, uint64_t end)
{
	l->work = work;
	l->at = first;
	l->end = end;
	l->i = l->n = 0;
}

static int next_window(struct skv_disk_list *l)
{
	uint32_t n = l->end - l->at < SKV_DISK_LIST_WINDOW ? (uint32_t)(l->end - l->at) : SKV_DISK_LIST_WINDOW;
	ssize_t got;

	if (n == 0)
		return skv_disk_refuse(l->work, -EINVAL, "the daemon's list has no more than %llu numbers, expected more",
		                       (unsigned long long)l->end);
	got = pread(l->work->fds[SKV_DISK_FD_LIST], l->window, n * sizeof(*l->window), (off_t)(l->at * sizeof(*l->window)));
	if (got != (ssize_t)(n * sizeof(*l->window)))
		return skv_disk_refuse(l->work, got < 0 ? -errno : -EIO, "the daemon's list cannot be read at number %llu: %s",
		                       (unsigned long long)l->at, got < 0 ? strerror(errno) : "it ends there");
	l->at += n;
	l->n = n;
	l->i = 0;
	return 0;
}

int skv_disk_list_next(struct skv_disk_list *l, uint32_t *ret)
{
	int r = l->i == l->n ? next_window(l) : 0;

	if (r == 0)
		*ret = l->window[l->i++];
	return r;
}

int skv_disk_list_pages(struct skv_disk_list *l, uint32_t n, uint32_t *ret_ids)
{
	const struct skv_disk_job *job = l->work->job;
	uint32_t x = 0;

	for (uint32_t i = 0; i < n;) {
		int r = skv_disk_list_next(l, &x);

		if (r < 0)
			return r;
		if (skv_disk_list_has_entries(job)) {
			if (!skv_pte_resident(x) && job->kind == SKV_DISK_STORE_PUT)
				return skv_disk_refuse(l->work, -EOPNOTSUPP, "layers without pages of their own are not stored");
			if (!skv_pte_resident(x))
				continue;
			x = skv_pte_id(x);
		}
		if (x >= job->max_pages)
			return skv_disk_refuse(l->work, -EINVAL, "the daemon's list has page %u, there are %llu", x,
			                       (unsigned long long)job->max_pages);
		ret_ids[i++] = x;
	}
	return 0;
}
