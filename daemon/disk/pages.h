/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/pages.h - reads and writes the pages of a job by id, in the memfd of a host pool or in segments of a
 * device.
 *
 * Pages are copied to and from staging buffers, where they are contiguous; pages that are contiguous in the pool, too,
 * are copied by one call. A memfd is accessed with pread(2) and pwrite(2), not mapped: reading a mapping would allocate
 * memory for pages of the memfd that have none.
 */
#ifndef SKV_DISK_PAGES_H
#define SKV_DISK_PAGES_H

#include "daemon/disk/run-job.h"

struct skv_disk_pages;

/* `at` is a byte offset in the memfd, or in the address range in which the segments lie side by side. */
struct skv_disk_pages_ops {
	/* read() and write() may return before their copy is done; wait() returns when all copies are done. */
	int (*read)(struct skv_disk_pages *, uint64_t at, size_t bytes, void *to);
	int (*write)(struct skv_disk_pages *, uint64_t at, size_t bytes, const void *from);
	int (*wait)(struct skv_disk_pages *);
	void (*close)(struct skv_disk_pages *);
};

struct skv_disk_pages {
	struct skv_disk_work *work;
	const struct skv_disk_pages_ops *ops;
	/* true: several threads may copy pages at once, each with a copy of this struct and a `work` of its own */
	bool any_thread;
	void *device; /* private data of pages-cuda.c */
};

/* `staging`: memory with all buffers that pages are copied to and from; must be valid until skv_disk_pages_close(). */
int skv_disk_pages_open(struct skv_disk_pages *, struct skv_disk_work *, void *staging, size_t bytes);
static inline void skv_disk_pages_close(struct skv_disk_pages *p)
{
	if (p->ops)
		p->ops->close(p);
	p->ops = NULL;
}

/* Copy n whole pages, with these ids, to or from a contiguous buffer. The copies are complete on return. */
int skv_disk_pages_read(struct skv_disk_pages *, const uint32_t *ids, uint32_t n, void *to);
int skv_disk_pages_write(struct skv_disk_pages *, const uint32_t *ids, uint32_t n, const void *from);
/* Copy a range of bytes of one page. */
int skv_disk_pages_read_some(struct skv_disk_pages *, uint32_t id, uint32_t offset, uint32_t bytes, void *to);
int skv_disk_pages_write_some(struct skv_disk_pages *, uint32_t id, uint32_t offset, uint32_t bytes, const void *from);

/* Maps the job's device segments, and sets `ops` and `device`. -EOPNOTSUPP: the daemon was built without CUDA. */
int skv_disk_pages_cuda_open(struct skv_disk_pages *, void *staging, size_t bytes);

#endif
