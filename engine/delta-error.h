/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/delta-error.h - measures the error of rows that attend only to attention sinks and a window, and how similar
 * this error is in neighbouring rows.
 *
 * Rows are grouped into windows of gamma rows. The first row of a window represents the others: each other row is
 * compared with the last first row that was added (delta-similarity.h). The measured rows are spread evenly over the
 * windows whose first row misses at least one token.
 */
#ifndef ENG_DELTA_ERROR_H
#define ENG_DELTA_ERROR_H

#include <stdbool.h>
#include "engine/delta-similarity.h"

struct eng_delta_error_shape {
	uint32_t n_layers, n_heads, n_kv_heads, head_dim;
	uint32_t max_tokens;
	uint32_t sinks, window, gamma; /* as in struct skv_prefill */
};

enum eng_delta_error_mark { ENG_DELTA_ERROR_NOT, ENG_DELTA_ERROR_FIRST, ENG_DELTA_ERROR_ROW };

struct eng_delta_error {
	struct eng_delta_error_shape shape;
	struct eng_delta_similarity *layer; /* [n_layers] */
	float *first;            /* [n_layers][dense, sparse][n_heads][head_dim]: outputs of the last first row */
	float *row;              /* the same for the current row */
	float *scores;           /* [n_layers][max_tokens] */
};
#define ENG_DELTA_ERROR_NULL ((struct eng_delta_error){.layer = 0})

/* -ENOMEM. */
int eng_delta_error_init(struct eng_delta_error *, const struct eng_delta_error_shape *);
void eng_delta_error_deinit(struct eng_delta_error *);

/* Marks up to `rows` rows (0: all) of a text of n tokens, and the first rows of their windows. mark [n]. */
void eng_delta_error_choose(const struct eng_delta_error *, uint32_t n, uint32_t rows, uint8_t *mark);

/*
 * A marked row p of the text in one layer: q [n_heads][head_dim]; k and v of each kv head [stride][head_dim], with at
 * least tokens 0 to p. q and k include rotary positions. Different layers may be added in parallel; rows of a text
 * must be added in order.
 */
struct eng_delta_error_row {
	uint32_t layer, p, mark;
	const float *q, *k, *v;
	uint32_t stride; /* tokens */
};
void eng_delta_error_add(struct eng_delta_error *, const struct eng_delta_error_row *);

/* ---- results --------------------------------------------------------------------------------- */

/* Returns whether a row missed tokens. If not, the other results have no meaning. */
bool eng_delta_error_any(const struct eng_delta_error *);

/*
 * Returns the error with the correction over the error without it, over all layers, each relative to its dense
 * outputs. Below 1 the correction helps.
 */
double eng_delta_error_left(const struct eng_delta_error *);

#endif
