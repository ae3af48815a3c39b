/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/transfer.h - writes or reads a file in pieces, up to SKV_DISK_FLIGHT of them concurrently.
 *
 * A transfer uses io_uring, and bypasses the page cache if the file system supports O_DIRECT. Short reads and writes
 * are continued until the piece is complete. The first error is sticky: every later call returns it.
 *
 * The transfer owns the staging buffers. A caller that writes gets one buffer at a time from skv_transfer_buffer(),
 * fills it, and has it written. For a caller that reads, the last `held` buffers that skv_transfer_next() returned are
 * valid.
 */
#ifndef SKV_TRANSFER_H
#define SKV_TRANSFER_H

#include "daemon/disk/run-job.h"

#define SKV_TRANSFER_MAX_HELD 4u

struct skv_transfer;

/*
 * `fd` (borrowed) is a regular file that has, or will have, this header; the header's chunk size is that of the
 * buffers. `held`, from 1 to SKV_TRANSFER_MAX_HELD, is how many buffers the caller of skv_transfer_next() uses at a
 * time.
 */
int skv_transfer_new(struct skv_disk_work *, int fd, const struct skv_parked_header *, uint32_t held, struct skv_transfer **ret);
/* Waits for operations in flight and frees the transfer. NULL is allowed. */
void skv_transfer_free(struct skv_transfer *);

/* Returns the memory that contains all buffers, to be registered with a device that copies from and to them. */
void *skv_transfer_staging(const struct skv_transfer *, size_t *ret_bytes);

/* ---- writing ---- */
/* Allocates disk space for the whole file, if the file system supports that. */
int skv_transfer_allocate(struct skv_transfer *, uint64_t bytes);
/*
 * Returns the next buffer to fill, once its earlier write is done: the same one until skv_transfer_write() is called.
 */
int skv_transfer_buffer(struct skv_transfer *, void **ret);
/* Begins writing the first `bytes`, a multiple of SKV_PARKED_ALIGN, of that buffer to byte `at` of the file. */
int skv_transfer_write(struct skv_transfer *, uint64_t at, size_t bytes);
/* Waits until all data is written and synchronized to the disk. */
int skv_transfer_sync(struct skv_transfer *);

/* ---- reading ---- */
/*
 * Returns the next piece of the file (skv_parked_piece()); the first call returns the first piece of the memory part.
 */
int skv_transfer_next(struct skv_transfer *, void **ret);

#endif
