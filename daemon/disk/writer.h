/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/writer.h - a new file of a parked sequence: without a name until all of it is on the disk.
 *
 * Memory and pages are written in pieces (skv_parked_piece()), header and sums at the end, when checksums are known. A process
 * that dies before leaves nothing, or a file ".new-" and its number.
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
	bool linked; /* it is ".new-" and the process's number */
};

/* A file as large as the header, which is laid out, says. */
int skv_disk_writer_begin(struct skv_disk_writer *, struct skv_disk_work *, const struct skv_parked_header *);
/* Of the transfer's buffer so many bytes are the piece at `at`; zeros follow. */
int skv_disk_writer_put(struct skv_disk_writer *, uint64_t at, size_t bytes);
/*
 * All pieces were put, and checksums are in the header and `sums`: the file gets its name in the user's folder. If
 * `replaces`, one of this name is gone then; else that is -EEXIST.
 */
int skv_disk_writer_end(struct skv_disk_writer *, const char *name, bool replaces);
/* Without an end nothing of it stays. */
void skv_disk_writer_free(struct skv_disk_writer *);

#endif
