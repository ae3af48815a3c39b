/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/ranks.h - tensor-parallel ranks: a model whose attention heads are split over processes of one host.
 *
 * Each rank has some kv heads, their q heads, and their part of the KV cache. Each rank computes everything else
 * itself, from the same rows: after a layer's attention the ranks' parts are gathered, not summed, so all ranks have
 * identical bits. On the host, ranks communicate through shared memory. On devices, rank r uses the r-th device from
 * the given one, and ranks communicate through NCCL: libnccl.so.2, or the file named by $SPARSEKV_NCCL, loaded when
 * it is needed.
 *
 * The first rank is the program itself; the others are its forks, without output. When one rank ends, all end.
 */
#ifndef ENG_RANKS_H
#define ENG_RANKS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sparsekv/types.h>
#include "engine/error.h"

#define ENG_RANKS_MAX 64u

struct eng_backend;
struct eng_ranks;

/*
 * Forks the other ranks, up to ENG_RANKS_MAX in all, before any thread or device exists. It returns in each rank,
 * which then has its own number. -ENOMEM, -errno of fork(2).
 */
int eng_ranks_start(struct eng_ranks **ret, uint32_t n, struct eng_error *err);
/*
 * The first rank waits for the others, and returns their error if it has none. The others do not return. NULL:
 * returns `r`.
 */
int eng_ranks_end(struct eng_ranks *, int r, struct eng_error *err);

uint32_t eng_ranks_number(const struct eng_ranks *); /* NULL: 0 */
pid_t eng_ranks_first(const struct eng_ranks *);     /* the first rank's process; NULL: this one */

/*
 * Connects all ranks on the backend's device. -ENODEV: no NCCL; -EIO: NCCL failed. NULL, or on the host: does
 * nothing.
 */
int eng_ranks_open(struct eng_ranks *, struct eng_backend *, struct eng_error *err);
void eng_ranks_close(struct eng_ranks *);

/* Reduces the model's shape to the rank's part. -EINVAL: its kv heads cannot be divided evenly. NULL: unchanged. */
int eng_ranks_split(struct eng_ranks *, struct skv_model *shape, struct eng_error *err);

/* The rank's part of a row of row_bytes: its offset and its size. NULL: the whole row. */
struct eng_part {
	size_t at, bytes;
};
struct eng_part eng_ranks_part(const struct eng_ranks *, size_t row_bytes);

/*
 * Completes rows of which each rank has its own part. On devices it is queued; `scratch` has room for the same number
 * of bytes. NULL: does nothing. Returns 0, or a negative errno: other ranks have ended, or NCCL failed.
 */
int eng_ranks_gather(struct eng_ranks *, void *rows, uint32_t n, size_t row_bytes, void *scratch);

/*
 * Replaces ids that all ranks have chosen with the first rank's, because devices may round differently. NULL, or on
 * the host: does nothing.
 */
int eng_ranks_agree(struct eng_ranks *, int32_t *id, uint32_t n);

#endif
