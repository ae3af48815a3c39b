/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/writer.h - writes a new file of a parked sequence, which gets its name when all of it is on the disk.
 *
 * The memory part and the pages are written in pieces (skv_parked_piece()); the checksums and the header are written at
 * the end, when all checksums are known. A process that dies before the file has its name leaves no file, or a file
 * named ".new-" and the process id.
 */
#ifndef SKV_DISK_WRITER_H
#define SKV_DISK_WRITER_H

#include "daemon/disk/transfer.h"

struct skv_disk_writer {
	struct skv_disk_work *work;
	struct skv_parked_header header;
	struct skv_transfer *transfer;
	uint32_t *sums; /* [n_pages] */
	int fd;
	bool linked; /* the file has the name ".new-" and the process id */
};

/* Creates the file and allocates disk space for all of it. skv_parked_lay_out() has filled in the header's sizes. */
int skv_disk_writer_begin(struct skv_disk_writer *, struct skv_disk_work *, const struct skv_parked_header *);
/*
 * Writes the first `bytes` of the transfer's current buffer, padded with zeros, as the piece at byte `at` of the file.
 */
int skv_disk_writer_put(struct skv_disk_writer *, uint64_t at, size_t bytes);
/*
 * Writes checksums and header, and gives the file its name in the user's folder. Before, the caller writes all other
 * pieces, and sets `sums` and the header's memory_sum and sums_sum. `replaces`: an existing file of this name is
 * replaced; without `replaces`, the result is then -EEXIST.
 */
int skv_disk_writer_end(struct skv_disk_writer *, const char *name, bool replaces);
/* Frees the writer. Removes the file unless skv_disk_writer_end() succeeded. */
void skv_disk_writer_free(struct skv_disk_writer *);

#endif
