/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/ranks.h - a model whose attention heads are split over processes of one host: tensor-parallel ranks.
 *
 * Each rank has some kv heads, their q heads, and their part of the KV cache. Everything else each computes for itself, from the
 * same rows, so that all have the same bits: after a layer's attention the ranks' parts are gathered, not summed. In host memory
 * ranks meet in shared memory, on devices, rank r on the r-th from the one that is named, through NCCL: libnccl.so.2, or the file
 * that $SPARSEKV_NCCL names, loaded when it is needed.
 *
 * The first rank is the program that was started; the others are its forks, without output. When one ends, all do.
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

/* Fork the others, up to ENG_RANKS_MAX in all, before any thread or device: each returns, with its own number. -ENOMEM, -errno of fork(2). */
int eng_ranks_start(struct eng_ranks **ret, uint32_t n, struct eng_error *err);
/* The first rank waits for the others; their errors are its own, if it has none. They do not return. NULL: `r`. */
int eng_ranks_end(struct eng_ranks *, int r, struct eng_error *err);

uint32_t eng_ranks_number(const struct eng_ranks *); /* NULL: 0 */
pid_t eng_ranks_first(const struct eng_ranks *);     /* the first rank's process; NULL: this one */

/* All ranks: meet on the backend's device. -ENODEV: no NCCL; -EIO: it failed. NULL and the host: nothing. */
int eng_ranks_open(struct eng_ranks *, struct eng_backend *, struct eng_error *err);
void eng_ranks_close(struct eng_ranks *);

/* Makes the model's shape that of the rank. -EINVAL: its kv heads cannot be divided so. NULL: as it is. */
int eng_ranks_split(struct eng_ranks *, struct skv_model *shape, struct eng_error *err);

/* The part of a row that is the rank's: byte it begins at, and its bytes, of so many. NULL: all. */
struct eng_part {
	size_t at, bytes;
};
struct eng_part eng_ranks_part(const struct eng_ranks *, size_t row_bytes);

/*
 * Rows of which each rank has its part get the others'. In memory of the backend, queued there; `scratch` has room for as much. NULL:
 * nothing. 0, or negative errno: other ranks have ended.
 */
int eng_ranks_gather(struct eng_ranks *, void *rows, uint32_t n, size_t row_bytes, void *scratch);

/* Ids that all ranks have chosen become the first rank's: devices may round in their own way. NULL, the host: nothing. */
int eng_ranks_agree(struct eng_ranks *, int32_t *id, uint32_t n);

#endif
