/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/pages.h - the memory of pages of a job: the memfd of a pool or segments of a device, behind one table.
 *
 * Pages are copied to and from staging buffers, where they are contiguous; pages that are contiguous in memory, too,
 * are copied at once. A memfd is accessed by system calls, because reading unallocated pages of a mapping would
 * allocate them.
 */
#ifndef SKV_DISK_PAGES_H
#define SKV_DISK_PAGES_H

#include "daemon/disk/work.h"

struct skv_disk_pages;

/* `at` is an offset in the memfd, or in an address range in which segments lie side by side. */
struct skv_disk_pages_ops {
	/* Copies may be asynchronous, until wait() returns. */
	int (*read)(struct skv_disk_pages *, uint64_t at, size_t bytes, void *to);
	int (*write)(struct skv_disk_pages *, uint64_t at, size_t bytes, const void *from);
	int (*wait)(struct skv_disk_pages *);
	void (*close)(struct skv_disk_pages *);
};

struct skv_disk_pages {
	struct skv_disk_work *work;
	const struct skv_disk_pages_ops *ops;
	/* copies of this struct, each with a `work` of its own, may be used by other threads concurrently */
	bool any_thread;
	void *device; /* data of the device's functions */
};

/* `staging` must contain all buffers that pages are copied to and from, until skv_disk_pages_close(). */
int skv_disk_pages_open(struct skv_disk_pages *, struct skv_disk_work *, void *staging, size_t bytes);
static inline void skv_disk_pages_close(struct skv_disk_pages *p)
{
	if (p->ops)
		p->ops->close(p);
	p->ops = NULL;
}

/* Copy whole pages. The copies are complete when these return. */
int skv_disk_pages_read(struct skv_disk_pages *, const uint32_t *ids, uint32_t n, void *to);
int skv_disk_pages_write(struct skv_disk_pages *, const uint32_t *ids, uint32_t n, const void *from);
/* Copy a range of bytes of one page. */
int skv_disk_pages_read_some(struct skv_disk_pages *, uint32_t id, uint32_t offset, uint32_t bytes, void *to);
int skv_disk_pages_write_some(struct skv_disk_pages *, uint32_t id, uint32_t offset, uint32_t bytes, const void *from);

/* In pages-cuda.c: sets ops and `device`. -EOPNOTSUPP if built without CUDA. */
int skv_disk_pages_cuda_open(struct skv_disk_pages *, void *staging, size_t bytes);

#endif
