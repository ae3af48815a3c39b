/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/pages.h - the memory of pages of a job: the memfd of a pool, or segments of a device, behind one table.
 *
 * Pages are copied to staging buffers and from them, one after the other there; those that lie side by side in memory, too, go
 * in one copy. Of a memfd by system calls: what is not there is not made by reading it.
 */
#ifndef SKV_DISK_PAGES_H
#define SKV_DISK_PAGES_H

#include "daemon/disk/work.h"

struct skv_disk_pages;

/* Bytes of the range in which segments lie side by side; of a memfd all of it is one. */
struct skv_disk_pages_ops {
	/* Copies may still run when it returns, until wait(). */
	int (*read)(struct skv_disk_pages *, uint64_t at, size_t bytes, void *to);
	int (*write)(struct skv_disk_pages *, uint64_t at, size_t bytes, const void *from);
	int (*wait)(struct skv_disk_pages *);
	void (*close)(struct skv_disk_pages *);
};

struct skv_disk_pages {
	struct skv_disk_work *work;
	const struct skv_disk_pages_ops *ops;
	bool any_thread; /* a copy of this, with a `work` of its own, serves another thread at the same time */
	void *device; /* what the device's functions have */
};

/* `staging` is all memory that pages are copied to and from, until they are closed. */
int skv_disk_pages_open(struct skv_disk_pages *, struct skv_disk_work *, void *staging, size_t bytes);
static inline void skv_disk_pages_close(struct skv_disk_pages *p)
{
	if (p->ops)
		p->ops->close(p);
	p->ops = NULL;
}

/* The copies are complete when these return. */
int skv_disk_pages_read(struct skv_disk_pages *, const uint32_t *ids, uint32_t n, void *to);
int skv_disk_pages_write(struct skv_disk_pages *, const uint32_t *ids, uint32_t n, const void *from);
/* Some bytes of one. */
int skv_disk_pages_read_some(struct skv_disk_pages *, uint32_t id, uint32_t offset, uint32_t bytes, void *to);
int skv_disk_pages_write_some(struct skv_disk_pages *, uint32_t id, uint32_t offset, uint32_t bytes, const void *from);

/* pages-cuda.c: ops and `device` are set; or the build has no CUDA, and it says so. */
int skv_disk_pages_cuda_open(struct skv_disk_pages *, void *staging, size_t bytes);

#endif
