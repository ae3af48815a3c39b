/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/disk/list.h - sequential reader of a job's list of page table entries or page ids, which the daemon wrote. */
#ifndef SKV_DISK_LIST_H
#define SKV_DISK_LIST_H

#include "daemon/disk/work.h"

#define SKV_DISK_LIST_WINDOW 4096u

struct skv_disk_list {
	struct skv_disk_work *work;
	uint64_t at, end; /* range of the list that is not in the window yet */
	uint32_t i, n;    /* position in the window, numbers in the window */
	uint32_t window[SKV_DISK_LIST_WINDOW];
};

/* Reads numbers `first` up to, but without, `end`. */
void skv_disk_list_begin(struct skv_disk_list *, struct skv_disk_work *, uint64_t first, uint64_t end);
int skv_disk_list_next(struct skv_disk_list *, uint32_t *ret);

/* True if the list holds page table entries, false if it holds page ids. */
static inline bool skv_disk_list_has_entries(const struct skv_disk_job *job)
{
	return job->kind == SKV_DISK_PARK || job->kind == SKV_DISK_STORE_PUT;
}

/*
 * Returns the next n page ids of the list; from a list of entries, those of entries with a page. All are below
 * max_pages. -EOPNOTSUPP: an entry without a page in a job for the prefix store.
 */
int skv_disk_list_pages(struct skv_disk_list *, uint32_t n, uint32_t *ret_ids);

#endif
