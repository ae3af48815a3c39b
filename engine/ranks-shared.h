/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/ranks-shared.h - tensor-parallel ranks of one host that meet in shared memory: reductions and exchanges of rows in
 * host memory.
 *
 * All ranks call the same functions in the same order with the same sizes. A rank that dies is missed by the others until somebody
 * says so: eng_shared_give_up().
 */
#ifndef ENG_RANKS_SHARED_H
#define ENG_RANKS_SHARED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct eng_shared;

/* For n ranks, before they are forked; NULL: no memory. Freed with the last process that has it. */
struct eng_shared *eng_shared_new(uint32_t n);
void eng_shared_free(struct eng_shared *);

/* Nobody waits any more, now or later: all functions fail. For anybody, at any time. */
void eng_shared_give_up(struct eng_shared *);

/* The functions below return 0, or -ECONNABORTED. */

/* data[i] of all ranks becomes the largest of any. */
int eng_shared_max(struct eng_shared *, uint32_t rank, float *data, size_t count);

/*
 * Rows [n][n_ranks][bytes]: each rank has its own part of each row, and gets the others'. n_ranks * bytes is that of a row from one to the
 * next.
 */
int eng_shared_gather(struct eng_shared *, uint32_t rank, void *rows, size_t n, size_t bytes);

#endif
