/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/memory.h - copies the memory part of a parked file from and to the memory of a sequence.
 *
 * The part is copied in pieces, in order; the size of a piece is a multiple of 4 bytes. What is read from a file is
 * checked as it arrives. The part's checksum can be compared only at its end. So writing to the sequence stops at the
 * first invalid value, and the header of the sequence memory, whose commit word makes it a valid sequence, is written
 * last, after all checks.
 */
#ifndef SKV_DISK_MEMORY_H
#define SKV_DISK_MEMORY_H

#include "daemon/disk/list.h"

struct skv_disk_memory {
	struct skv_disk_work *work;
	const struct skv_parked_header *header;
	int fd; /* memfd of the sequence, borrowed; -1: the part is only checked, not written to memory */
	struct skv_seqmem_layout layout;
	struct skv_seqmem seqmem;
	struct skv_disk_list list;
	uint64_t at; /* number of bytes of the part processed so far */
	uint32_t sum; /* crc32c of these bytes */
	uint64_t n_pages;      /* number of entries with a page among the entries processed so far */
	uint32_t table, index; /* page table, and index in it, of the next entry */
	char wrong[SKV_DISK_TEXT_MAX]; /* the first error found, or "" */
};

/*
 * Prepares parking a sequence: fills in the file's header from the job and the sequence memory, and initializes *m for
 * skv_disk_memory_give(). -EBUSY: the sequence's commit word differs from the job's.
 */
int skv_disk_memory_describe(struct skv_disk_memory *m, struct skv_disk_work *, struct skv_parked_header *ret);
/* Copies the next bytes of the part from the sequence to a buffer. */
int skv_disk_memory_give(struct skv_disk_memory *, void *to, size_t bytes);
/*
 * Called after all data of the sequence is copied. Returns 0 if the sequence's commit word is still the same, so that
 * all copied data belongs to that commit; -EBUSY otherwise.
 */
int skv_disk_memory_unchanged(struct skv_disk_memory *);

/*
 * Prepares copying the part of a file with this checked header to the memory `fd` (borrowed); -1: it is only checked.
 */
void skv_disk_memory_begin(struct skv_disk_memory *, struct skv_disk_work *, const struct skv_parked_header *, int fd);
/* Checks the next bytes of the part and copies them from a buffer to the sequence. */
int skv_disk_memory_take(struct skv_disk_memory *, const void *from, size_t bytes);
/* Checks the whole part after its last byte was taken. -EBADMSG: the part is damaged or inconsistent. */
int skv_disk_memory_check(struct skv_disk_memory *);
/* Writes the header of the sequence memory, whose commit word makes it a valid sequence. */
int skv_disk_memory_commit(struct skv_disk_memory *);

#endif
