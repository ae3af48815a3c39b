/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/transfer.h - a file that is written or read in pieces, SKV_DISK_FLIGHT of which are on their way at a time.
 *
 * Through a ring of its own, past the page cache where the file system can do that. A piece is done when all of it is: a short
 * read or write goes on where it ended, or is an error. The first error stays, and every later call returns it.
 *
 * Staging buffers are the transfer's. One is handed out at a time, and is the caller's until it is written. Of those that are
 * read the last `held` are, while the next one is asked for.
 */
#ifndef SKV_TRANSFER_H
#define SKV_TRANSFER_H

#include "daemon/disk/work.h"

#define SKV_TRANSFER_MAX_HELD 4u

struct skv_transfer;

/*
 * `fd` (borrowed) is a regular file that has this header, or will have it: a buffer is as large as its largest piece. `held`, from
 * 1 to SKV_TRANSFER_MAX_HELD, is what the caller of skv_transfer_next() uses at a time.
 */
int skv_transfer_new(struct skv_disk_work *, int fd, const struct skv_parked_header *, uint32_t held, struct skv_transfer **ret);
/* Waits for what is on its way. NULL is fine. */
void skv_transfer_free(struct skv_transfer *);

/* All of its buffers, for a device that copies from and to them. */
void *skv_transfer_staging(const struct skv_transfer *, size_t *ret_bytes);

/* ---- writing ---- */
/* Disk space for the whole file, where the file system can promise it. */
int skv_transfer_allocate(struct skv_transfer *, uint64_t bytes);
/* A buffer that nothing is on its way from. */
int skv_transfer_buffer(struct skv_transfer *, void **ret);
/* Write the first `bytes` of the buffer that was handed out, a multiple of SKV_PARKED_ALIGN. */
int skv_transfer_write(struct skv_transfer *, uint64_t at, size_t bytes);
/* Wait until all is written, and is on the disk. */
int skv_transfer_sync(struct skv_transfer *);

/* ---- reading ---- */
/* The next piece of the file, from its memory part on. */
int skv_transfer_next(struct skv_transfer *, void **ret);

#endif
