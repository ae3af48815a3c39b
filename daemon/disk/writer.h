/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/writer.h - writes a new file of a parked sequence, which has no name until all of it is on the disk.
 *
 * Memory and pages are written in pieces (skv_parked_piece()), sums and header at the end, when checksums are known. A
 * process that dies before leaves nothing, or a file named ".new-" and its process id.
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

/* Creates a file of the size that the laid out header gives. */
int skv_disk_writer_begin(struct skv_disk_writer *, struct skv_disk_work *, const struct skv_parked_header *);
/* Writes the first `bytes` of the transfer's buffer as the piece at `at`, padded with zeros. */
int skv_disk_writer_put(struct skv_disk_writer *, uint64_t at, size_t bytes);
/*
 * Writes sums and header, and gives the file its name in the user's folder. The caller has put all pieces and set the
 * checksums in the header and in `sums`. `replaces`: an existing file of this name is replaced; otherwise -EEXIST.
 */
int skv_disk_writer_end(struct skv_disk_writer *, const char *name, bool replaces);
/* Frees the writer. Removes the file unless skv_disk_writer_end() succeeded. */
void skv_disk_writer_free(struct skv_disk_writer *);

#endif
