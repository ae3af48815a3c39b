/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/ranks.h - tensor-parallel ranks: a model whose attention heads are split over processes of one host.
 *
 * Each rank has some of the kv heads, the q heads of these kv heads, and their part of the KV cache. Everything but
 * attention is computed by each rank for itself, from the same rows. After a layer's attention the outputs of the ranks
 * are concatenated (gathered), not summed, so the rows are identical in all ranks, bit by bit. On the host, ranks
 * communicate through shared memory. On devices, rank r uses the r-th device from the given one, and ranks communicate
 * through NCCL: libnccl.so.2, or the file named by $SPARSEKV_NCCL, loaded when it is needed.
 *
 * The first rank is the program itself; the other ranks are processes that it forks, which print nothing but errors.
 * When the process of one rank ends, all ranks end.
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
 * Forks n - 1 processes, so that there are n ranks (at most ENG_RANKS_MAX). Must be called before the program has
 * threads or an open device. Returns in each rank, with that rank's number in *ret. Returns 0, -ENOMEM, or the negative
 * errno of fork(2).
 */
int eng_ranks_start(struct eng_ranks **ret, uint32_t n, struct eng_error *err);
/*
 * Ends a rank whose result is `r`. In the first rank, waits for the other ranks and returns `r`, or their error if `r`
 * is 0. In the other ranks, ends the process. If the ranks are NULL, returns `r`.
 */
int eng_ranks_end(struct eng_ranks *, int r, struct eng_error *err);

uint32_t eng_ranks_number(const struct eng_ranks *); /* Returns this process's rank number; 0 if the ranks are NULL. */
/* Returns the process id of the first rank; of this process if the ranks are NULL. */
pid_t eng_ranks_first(const struct eng_ranks *);

/*
 * Connects the devices of all ranks by NCCL. Returns 0, -ENODEV if there is no NCCL, or -EIO if NCCL failed. Does
 * nothing if the ranks are NULL or the backend is the host.
 */
int eng_ranks_open(struct eng_ranks *, struct eng_backend *, struct eng_error *err);
void eng_ranks_close(struct eng_ranks *);

/*
 * Changes the model's shape to this rank's share of the heads. Returns -EINVAL if the kv heads cannot be divided
 * evenly. If the ranks are NULL, the shape does not change.
 */
int eng_ranks_split(struct eng_ranks *, struct skv_model *shape, struct eng_error *err);

/* The offset and the size of this rank's part in a row of row_bytes; the whole row if the ranks are NULL. */
struct eng_part {
	size_t at, bytes;
};
struct eng_part eng_ranks_part(const struct eng_ranks *, size_t row_bytes);

/*
 * Gathers rows: before the call each rank has only its own part of each row, afterwards all ranks have all parts. On
 * devices the work is queued, and `scratch` must have room for n * row_bytes bytes. Does nothing if the ranks are NULL.
 * Returns 0, or a negative errno if another rank has ended or NCCL failed.
 */
int eng_ranks_gather(struct eng_ranks *, void *rows, uint32_t n, size_t row_bytes, void *scratch);

/*
 * Replaces the token ids that each rank has chosen with those of the first rank, because logits of different devices
 * may be rounded differently. Does nothing if the ranks are NULL or run on the host.
 */
int eng_ranks_agree(struct eng_ranks *, int32_t *id, uint32_t n);

#endif
