/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/memory.h - the memory part of a file, from and to the memory of a sequence.
 *
 * It goes through in pieces, in order: their bytes are multiples of 4. What is read is checked as it comes: the checksum is known at
 * the end alone, so nothing of it is written any more after the first thing that is wrong, and the committed state, which makes
 * a sequence of it, is written when all is well.
 */
#ifndef SKV_DISK_MEMORY_H
#define SKV_DISK_MEMORY_H

#include "daemon/disk/list.h"

struct skv_disk_memory {
	struct skv_disk_work *work;
	const struct skv_parked_header *header;
	int fd; /* of the sequence, borrowed; -1: it is checked alone */
	struct skv_seqmem_layout layout;
	struct skv_seqmem seqmem;
	struct skv_disk_list list;
	uint64_t at; /* bytes of the part that are through */
	uint32_t sum;
	uint64_t n_pages;      /* among the entries that are through */
	uint32_t table, index; /* of the entry that is next */
	char wrong[SKV_DISK_TEXT_MAX]; /* the first thing that is, or "" */
};

/*
 * A sequence that is to be parked: its header, with all that the memory says, and *m, for skv_disk_memory_give(). -EBUSY: it has
 * another commit than the job says.
 */
int skv_disk_memory_describe(struct skv_disk_memory *m, struct skv_disk_work *, struct skv_parked_header *ret);
/* The next bytes of its part. */
int skv_disk_memory_give(struct skv_disk_memory *, void *to, size_t bytes);
/* After all has been copied: is its commit still the same? Then all of it is that commit's. */
int skv_disk_memory_unchanged(struct skv_disk_memory *);

/* A part that is read: of this header, which was checked, into this memory (borrowed; -1: none). */
void skv_disk_memory_begin(struct skv_disk_memory *, struct skv_disk_work *, const struct skv_parked_header *, int fd);
/* Its next bytes. */
int skv_disk_memory_take(struct skv_disk_memory *, const void *from, size_t bytes);
/* All came: -EBADMSG if it is not what was parked, or cannot be. */
int skv_disk_memory_check(struct skv_disk_memory *);
/* The memory becomes the sequence. */
int skv_disk_memory_commit(struct skv_disk_memory *);

#endif
