/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/prefill-case.h - prompts that are cut into calls, for tests of the kernels in struct skv_sparse's
 * company.
 *
 * The query rows of a case's sequences are their prompts. Each call brings the next rows of some of them, with
 * s->later and s->set as they are between calls of one prompt.
 */
#ifndef SKV_SPARSE_CASE_H
#define SKV_SPARSE_CASE_H

#include "kernels/prefill.h"
#include "tests/support/kernel-case.h"
#include "tests/ref/prefill.h"

/* Four prompts that begin anywhere, of a shape (case_of_shape), `most` tokens at most; half of the cases have holes. */
void prompts_make(struct kernel_case *, int shape, uint32_t most);

/* Make the rows prompts, without dense tails, and room for what is kept. Before case_on(). */
void prompts_init(struct kernel_case *, const struct skv_sparse *);

/* Sequence i as the reference takes it; q as a backend sees it (case_q). `there` is the caller's to free. */
struct ref_rows prompts_ref(const struct kernel_case *, uint32_t i, const float *q);

/* How many rows a call brings. */
#define STEP_WHOLE 0u
#define STEP_RANDOM UINT32_MAX

struct calls {
	struct skv_kseq all[CASE_SEQS];
	uint32_t done[CASE_SEQS], set[CASE_SEQS];
	uint32_t step;
	/* the call: sequences of[0, batch.n) of the case, which are seq[] */
	struct skv_batch batch; /* in the backend's memory */
	struct skv_kseq seq[CASE_SEQS];
	uint32_t of[CASE_SEQS];
	size_t held; /* what the case held when it began */
};

void calls_begin(struct calls *, const struct kernel_case *, uint32_t step);
/* The next call. False: there is none. Gives back what the case has been given since the last one. */
bool calls_next(struct calls *, struct kernel_case *);

/* Scratch for the call. */
struct skv_workspace calls_work(const struct calls *, const struct kernel_case *, const struct skv_sparse *,
                                int threads);

/* Lists of the call's tiles, 0xff bytes, of the backend's memory: to be read back with tiles_from(). */
struct skv_tile_lists tiles_for(const struct calls *, struct kernel_case *, uint32_t tile, uint32_t rows,
                                uint32_t unit);
/* Or lists that a test makes: ids and count are the test's, and stay. */
struct skv_tile_lists tiles_to(struct kernel_case *, const struct calls *, const struct skv_tile_lists *);
/* Copies of ids and count, the caller's to free. */
struct skv_tile_lists tiles_from(const struct kernel_case *, const struct calls *, const struct skv_tile_lists *);
void tiles_free(struct skv_tile_lists *);
size_t tiles_number(const struct calls *, const struct skv_tile_lists *);

#endif
