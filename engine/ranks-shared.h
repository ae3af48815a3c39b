/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/ranks-shared.h - tensor-parallel ranks of one host that exchange data through shared memory: reductions and
 * gathers of rows in host memory.
 *
 * All ranks call the same functions in the same order with the same sizes. If a rank dies, the others wait until
 * eng_shared_give_up() is called.
 */
#ifndef ENG_RANKS_SHARED_H
#define ENG_RANKS_SHARED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct eng_shared;

/*
 * Allocates state for n ranks; call it before they are forked. NULL: no memory. The kernel frees it with the last
 * process.
 */
struct eng_shared *eng_shared_new(uint32_t n);
void eng_shared_free(struct eng_shared *);

/* Makes all functions fail, now and later, so that no rank waits any more. Any process may call it at any time. */
void eng_shared_give_up(struct eng_shared *);

/* The functions below return 0, or -ECONNABORTED. */

/* data[i] becomes the maximum over all ranks. */
int eng_shared_max(struct eng_shared *, uint32_t rank, float *data, size_t count);

/*
 * Rows [n][n_ranks][bytes]: each rank has its own part of each row, and receives the other parts. The row stride is
 * n_ranks * bytes.
 */
int eng_shared_gather(struct eng_shared *, uint32_t rank, void *rows, size_t n, size_t bytes);

#endif
