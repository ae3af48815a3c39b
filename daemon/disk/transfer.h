/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/transfer.h - writes or reads a file in pieces, up to SKV_DISK_FLIGHT of them concurrently.
 *
 * A transfer uses io_uring, and bypasses the page cache if the file system supports O_DIRECT. Short reads and writes
 * are continued until the piece is complete. The first error is sticky: every later call returns it.
 *
 * The transfer owns the staging buffers. For writing it hands out one at a time, which the caller fills until it is
 * written. For reading the last `held` buffers remain valid while the next one is requested.
 */
#ifndef SKV_TRANSFER_H
#define SKV_TRANSFER_H

#include "daemon/disk/work.h"

#define SKV_TRANSFER_MAX_HELD 4u

struct skv_transfer;

/*
 * `fd` (borrowed) is a regular file that has, or will have, this header, which determines the size of buffers. `held`,
 * from 1 to SKV_TRANSFER_MAX_HELD, is the number of buffers that the caller of skv_transfer_next() uses at a time.
 */
int skv_transfer_new(struct skv_disk_work *, int fd, const struct skv_parked_header *, uint32_t held, struct skv_transfer **ret);
/* Waits for operations in flight. NULL is allowed. */
void skv_transfer_free(struct skv_transfer *);

/* Returns the memory of all buffers, for a device that copies from and to them. */
void *skv_transfer_staging(const struct skv_transfer *, size_t *ret_bytes);

/* ---- writing ---- */
/* Allocates disk space for the whole file, if the file system supports that. */
int skv_transfer_allocate(struct skv_transfer *, uint64_t bytes);
/* Returns a buffer without a write in flight. */
int skv_transfer_buffer(struct skv_transfer *, void **ret);
/* Writes the first `bytes` of the buffer handed out, a multiple of SKV_PARKED_ALIGN. */
int skv_transfer_write(struct skv_transfer *, uint64_t at, size_t bytes);
/* Waits until all data is written and synchronized to the disk. */
int skv_transfer_sync(struct skv_transfer *);

/* ---- reading ---- */
/* Returns the next piece of the file, beginning with its memory part. */
int skv_transfer_next(struct skv_transfer *, void **ret);

#endif
