/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/reader.h - the file of a parked sequence, checked while it is read.
 *
 * Its parts come in order, in pieces. -EBADMSG: something is wrong with it, and `why` says what. What was passed on before is
 * then to be thrown away.
 */
#ifndef SKV_DISK_READER_H
#define SKV_DISK_READER_H

#include "daemon/disk/memory.h"

struct skv_disk_reader {
	struct skv_disk_work *work;
	struct skv_parked_header header; /* checked */
	struct skv_disk_memory memory;
	uint32_t *sums; /* [n_pages], of the file; the reader's */
	void *ctx;
	/* The next piece of the file. */
	int (*next)(struct skv_disk_reader *, size_t bytes, void **ret);
	/* So many bytes of a piece are the memory part's. NULL: they are not needed. */
	int (*memory_piece)(struct skv_disk_reader *, uint64_t at, size_t bytes);
	/* A chunk: pages as the file has them. */
	int (*chunk)(struct skv_disk_reader *, uint64_t first, uint32_t n, const void *pages);
};

/* Is it the header of a file of so many bytes (UINT64_MAX: not known) that can be read here? */
int skv_disk_reader_check(struct skv_disk_work *, const struct skv_parked_header *, uint64_t file_bytes);
/* Read all behind the header, with `memory` begun. */
int skv_disk_reader_run(struct skv_disk_reader *);

/* Are the pages of a chunk what was parked? By any thread, which has the `work` for what it says. */
int skv_disk_reader_compare(const struct skv_disk_reader *, struct skv_disk_work *, uint64_t first, uint32_t n, const void *pages);

#endif
