/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/prefill-case.h - prompts that are cut into calls, for tests of the sparse prefill kernels (struct
 * skv_sparse).
 *
 * The query rows of a case's sequences are their prompts. Each call brings the next rows of some of them, with
 * s->prompt_continues and s->set as they are between calls of one prompt.
 */
#ifndef SKV_SPARSE_CASE_H
#define SKV_SPARSE_CASE_H

#include "kernels/prefill.h"
#include "tests/support/kernel-case.h"
#include "tests/ref/prefill.h"

/*
 * Makes four prompts of a shape (case_of_shape()) with at most `most` tokens, starting at any position; half of the
 * cases have holes.
 */
void prompts_make(struct kernel_case *, int shape, uint32_t most);

/* Turns the query rows into prompts without dense tails, with pages for saved queries. Before case_on(). */
void prompts_init(struct kernel_case *, const struct skv_sparse *);

/* Sequence i as input of the reference; q as a backend sees it (case_q()). The caller frees `there`. */
struct ref_rows prompts_ref(const struct kernel_case *, uint32_t i, const float *q);

/* Rows per call. */
#define STEP_WHOLE 0u
#define STEP_RANDOM UINT32_MAX

struct calls {
	struct skv_kseq all[CASE_SEQS];
	uint32_t done[CASE_SEQS], set[CASE_SEQS];
	uint32_t step;
	/* the call: its sequences seq[0, batch.n) are those of the case with the numbers of[] */
	struct skv_batch batch; /* in the backend's memory */
	struct skv_kseq seq[CASE_SEQS];
	uint32_t of[CASE_SEQS];
	size_t held; /* n_held of the case when calls_begin() ran */
};

void calls_begin(struct calls *, const struct kernel_case *, uint32_t step);
/*
 * Makes the next call; returns false if there is none. Frees the case's backend memory allocated since the last call.
 */
bool calls_next(struct calls *, struct kernel_case *);

/* Workspace for the call. */
struct skv_workspace calls_work(const struct calls *, const struct kernel_case *, const struct skv_sparse *,
                                int threads);

/* Lists of the call's tiles in the backend's memory, filled with 0xff bytes; tiles_from() reads them back. */
struct skv_tile_lists tiles_for(const struct calls *, struct kernel_case *, uint32_t tile, uint32_t rows,
                                uint32_t unit);
/* Copies lists made by the test to the backend; the test keeps ids and count. */
struct skv_tile_lists tiles_to(struct kernel_case *, const struct calls *, const struct skv_tile_lists *);
/* Copies ids and count back; free them with tiles_free(). */
struct skv_tile_lists tiles_from(const struct kernel_case *, const struct calls *, const struct skv_tile_lists *);
void tiles_free(struct skv_tile_lists *);
size_t tiles_number(const struct calls *, const struct skv_tile_lists *);

#endif
