/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/disk/list.h - sequential reader of a job's list of page table entries or page ids, which the daemon wrote. */
#ifndef SKV_DISK_LIST_H
#define SKV_DISK_LIST_H

#include "daemon/disk/run-job.h"

#define SKV_DISK_LIST_WINDOW 4096u

struct skv_disk_list {
	struct skv_disk_work *work;
	uint64_t at, end; /* the list's numbers from index `at` to before `end` are not in the window yet */
	uint32_t i, n;    /* index of the next number in the window; number of numbers in the window */
	uint32_t window[SKV_DISK_LIST_WINDOW];
};

/* Prepares reading the list's numbers from index `first` to before `end`, one at a time, by skv_disk_list_next(). */
void skv_disk_list_begin(struct skv_disk_list *, struct skv_disk_work *, uint64_t first, uint64_t end);
int skv_disk_list_next(struct skv_disk_list *, uint32_t *ret);

/* True if the list holds page table entries, false if it holds page ids. */
static inline bool skv_disk_list_has_entries(const struct skv_disk_job *job)
{
	return job->kind == SKV_DISK_PARK || job->kind == SKV_DISK_STORE_PUT;
}

/*
 * Returns the next n page ids of the list, each below the job's max_pages; in a list of page table entries, entries
 * without a page are skipped. -EOPNOTSUPP: a job for the prefix store has an entry without a page.
 */
int skv_disk_list_pages(struct skv_disk_list *, uint32_t n, uint32_t *ret_ids);

#endif
