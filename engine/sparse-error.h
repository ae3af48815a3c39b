/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/sparse-error.h - measures the error of sparse attention in rows that attend only to attention sinks and a
 * sliding window, and how similar the error is in neighbouring rows.
 *
 * Rows are grouped into windows of gamma rows. The error of a row is compared with that of the first row of its window
 * (error-similarity.h), which must have been added before. The measured rows are spread evenly over the windows whose
 * first row misses at least one token.
 */
#ifndef ENG_SPARSE_ERROR_H
#define ENG_SPARSE_ERROR_H

#include <stdbool.h>
#include "engine/error-similarity.h"

struct eng_delta_error_shape {
	uint32_t n_layers, n_heads, n_kv_heads, head_dim;
	uint32_t max_tokens;
	uint32_t sinks, window, gamma; /* as in struct skv_prefill */
};

enum eng_delta_error_mark { ENG_DELTA_ERROR_NOT, ENG_DELTA_ERROR_FIRST, ENG_DELTA_ERROR_ROW };

struct eng_delta_error {
	struct eng_delta_error_shape shape;
	struct eng_delta_similarity *layer; /* [n_layers]: sums of the comparisons */
	/* [n_layers][dense, sparse][n_heads][head_dim]: outputs of the last row marked as a window's first */
	float *first;
	float *row;              /* as `first`, for the current row */
	float *scores;           /* [n_layers][max_tokens]: scores of one head */
};
#define ENG_DELTA_ERROR_NULL ((struct eng_delta_error){.layer = 0})

/* Returns 0 or -ENOMEM. */
int eng_delta_error_init(struct eng_delta_error *, const struct eng_delta_error_shape *);
void eng_delta_error_deinit(struct eng_delta_error *);

/*
 * Marks up to `rows` rows (0: all) of a text of n tokens for measuring, and the first rows of their windows. mark [n]
 * gets values of enum eng_delta_error_mark.
 */
void eng_delta_error_choose(const struct eng_delta_error *, uint32_t n, uint32_t rows, uint8_t *mark);

/*
 * A marked row at position p of the text, in one layer. q is [n_heads][head_dim]; k and v are
 * [n_kv_heads][stride][head_dim] and contain at least tokens 0 to p. q and k include the rotary embedding. Different
 * layers may be added in parallel; rows of a text must be added in order.
 */
struct eng_delta_error_row {
	uint32_t layer, p, mark;
	const float *q, *k, *v;
	uint32_t stride; /* number of tokens that k and v of a kv head have room for */
};
void eng_delta_error_add(struct eng_delta_error *, const struct eng_delta_error_row *);

/* ---- results --------------------------------------------------------------------------------- */

/* Returns whether a measured row missed tokens. If none did, the other results have no meaning. */
bool eng_delta_error_any(const struct eng_delta_error *);

/*
 * Returns the ratio of the error with the correction to the error without it. Both errors are sums over layers, where a
 * layer contributes its squared error relative to its squared dense outputs. Below 1 the correction helps.
 */
double eng_delta_error_left(const struct eng_delta_error *);

#endif
