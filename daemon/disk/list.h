/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/disk/list.h - a job's list of entries or page ids, read from the beginning to the end. The daemon made it. */
#ifndef SKV_DISK_LIST_H
#define SKV_DISK_LIST_H

#include "daemon/disk/work.h"

#define SKV_DISK_LIST_WINDOW 4096u

struct skv_disk_list {
	struct skv_disk_work *work;
	uint64_t at, end; /* of the list: what is not in the window yet */
	uint32_t i, n;    /* of the window */
	uint32_t window[SKV_DISK_LIST_WINDOW];
};

/* From number `first` on, up to number `end`. */
void skv_disk_list_begin(struct skv_disk_list *, struct skv_disk_work *, uint64_t first, uint64_t end);
int skv_disk_list_next(struct skv_disk_list *, uint32_t *ret);

/* Is it of entries? Else of page ids. */
static inline bool skv_disk_list_has_entries(const struct skv_disk_job *job)
{
	return job->kind == SKV_DISK_PARK || job->kind == SKV_DISK_STORE_PUT;
}

/*
 * The next n page ids of the list: of entries those of pages, else all; they are below max_pages. -EOPNOTSUPP: an entry that is to be
 * stored is no page.
 */
int skv_disk_list_pages(struct skv_disk_list *, uint32_t n, uint32_t *ret_ids);

#endif
