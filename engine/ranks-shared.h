/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/ranks-shared.h - how tensor-parallel ranks of one host exchange rows in host memory: maximum and gather
 * through shared memory.
 *
 * All ranks must call the same functions in the same order with the same sizes. If a rank dies, the other ranks wait
 * for it until some process calls eng_shared_give_up().
 */
#ifndef ENG_RANKS_SHARED_H
#define ENG_RANKS_SHARED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct eng_shared;

/*
 * Allocates the shared memory for n ranks; must be called before the ranks are forked. NULL: no memory. The kernel
 * frees the memory when the last of the processes ends.
 */
struct eng_shared *eng_shared_new(uint32_t n);
void eng_shared_free(struct eng_shared *);

/*
 * Makes all functions fail, from now on and in all ranks, so that no rank waits any more. Any process may call this
 * function at any time.
 */
void eng_shared_give_up(struct eng_shared *);

/* The functions below return 0, or -ECONNABORTED after eng_shared_give_up(). */

/* data[i] becomes the maximum of data[i] over all ranks. */
int eng_shared_max(struct eng_shared *, uint32_t rank, float *data, size_t count);

/*
 * Gathers rows [n][n_ranks][bytes]: before the call a rank has only its own part of each row, afterwards it has all
 * parts. The row stride is n_ranks * bytes.
 */
int eng_shared_gather(struct eng_shared *, uint32_t rank, void *rows, size_t n, size_t bytes);

#endif
