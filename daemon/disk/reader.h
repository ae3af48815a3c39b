/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/reader.h - reads and checks the file of a parked sequence, for resume.c and import.c.
 *
 * The parts of the file (parked.h) are read in order, in pieces. -EBADMSG: the file is invalid, with the reason in
 * `why`. The caller must then discard everything that was passed to its callbacks.
 */
#ifndef SKV_DISK_READER_H
#define SKV_DISK_READER_H

#include "daemon/disk/memory.h"

struct skv_disk_reader {
	struct skv_disk_work *work;
	struct skv_parked_header header; /* header of the file, checked by skv_disk_reader_check() */
	struct skv_disk_memory memory;
	uint32_t *sums; /* [n_pages], read from the file; owned by the reader */
	void *ctx;
	/* Reads the next piece of the file, of this size, and returns the buffer that contains it. */
	int (*next)(struct skv_disk_reader *, size_t bytes, void **ret);
	/*
	 * Called for each piece of the memory part, at byte `at` of the file, in the buffer that next() returned; or
	 * NULL
	 */
	int (*memory_piece)(struct skv_disk_reader *, uint64_t at, size_t bytes);
	/* Receives a chunk: n pages of the file, from page `first` on. */
	int (*chunk)(struct skv_disk_reader *, uint64_t first, uint32_t n, const void *pages);
};

/* Checks the header of a file of file_bytes (UINT64_MAX: unknown). */
int skv_disk_reader_check(struct skv_disk_work *, const struct skv_parked_header *, uint64_t file_bytes);
/* Reads and checks everything after the header. `memory` must have been initialized by skv_disk_memory_begin(). */
int skv_disk_reader_run(struct skv_disk_reader *);

/*
 * Compares the pages of a chunk with their checksums. Several threads may call this at once, each with a `work` of its
 * own for the error text.
 */
int skv_disk_reader_compare(const struct skv_disk_reader *, struct skv_disk_work *, uint64_t first, uint32_t n, const void *pages);

#endif
