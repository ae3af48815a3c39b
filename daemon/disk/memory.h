/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/memory.h - copies the memory part of a parked file from and to the memory of a sequence.
 *
 * Data passes in pieces, in order; their sizes are multiples of 4 bytes. Input is checked as it arrives. Because the
 * checksum is known only at the end, writing stops at the first invalid value, and the committed state, which makes the
 * memory a valid sequence, is written last, after all checks.
 */
#ifndef SKV_DISK_MEMORY_H
#define SKV_DISK_MEMORY_H

#include "daemon/disk/list.h"

struct skv_disk_memory {
	struct skv_disk_work *work;
	const struct skv_parked_header *header;
	int fd; /* of the sequence, borrowed; -1: only check */
	struct skv_seqmem_layout layout;
	struct skv_seqmem seqmem;
	struct skv_disk_list list;
	uint64_t at; /* bytes of the part processed so far */
	uint32_t sum;
	uint64_t n_pages;      /* pages among the entries processed so far */
	uint32_t table, index; /* position of the next entry */
	char wrong[SKV_DISK_TEXT_MAX]; /* the first error found, or "" */
};

/*
 * Prepares parking: fills in the header from the job and the sequence memory, and *m for skv_disk_memory_give().
 * -EBUSY: the commit differs from the job's.
 */
int skv_disk_memory_describe(struct skv_disk_memory *m, struct skv_disk_work *, struct skv_parked_header *ret);
/* Copies the next bytes of the part. */
int skv_disk_memory_give(struct skv_disk_memory *, void *to, size_t bytes);
/*
 * Called after all data is copied. Returns 0 if the commit is still the same: then everything copied belongs to that
 * commit.
 */
int skv_disk_memory_unchanged(struct skv_disk_memory *);

/* Prepares reading a part with this checked header into this memory (borrowed; -1: only check). */
void skv_disk_memory_begin(struct skv_disk_memory *, struct skv_disk_work *, const struct skv_parked_header *, int fd);
/* Takes the next bytes of the part. */
int skv_disk_memory_take(struct skv_disk_memory *, const void *from, size_t bytes);
/* Called after all bytes were taken. -EBADMSG: the part is damaged or inconsistent. */
int skv_disk_memory_check(struct skv_disk_memory *);
/* Writes the header of the sequence memory, which commits the sequence. */
int skv_disk_memory_commit(struct skv_disk_memory *);

#endif
