/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/delta-error.h - what rows of a text miss that see sinks and a window alone, and how alike that is in
 * neighbouring rows.
 *
 * Rows are in windows of gamma, whose first row represents the others: a row is compared with the last first row that
 * came (delta-similarity.h). Which rows of a text these are is chosen evenly, of those windows whose first row misses
 * something.
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
	float *first;            /* [n_layers][dense, sparse][n_heads][head_dim]: the last first row's outputs */
	float *row;              /* the same of the row at hand */
	float *scores;           /* [n_layers][max_tokens] */
};
#define ENG_DELTA_ERROR_NULL ((struct eng_delta_error){.layer = 0})

/* -ENOMEM. */
int eng_delta_error_init(struct eng_delta_error *, const struct eng_delta_error_shape *);
void eng_delta_error_deinit(struct eng_delta_error *);

/* Mark up to `rows` rows (0: all) of a text of n tokens, and the first rows of their windows. mark [n]. */
void eng_delta_error_choose(const struct eng_delta_error *, uint32_t n, uint32_t rows, uint8_t *mark);

/*
 * A marked row p of the text in one layer: q [n_heads][head_dim], k and v of each kv head [stride][head_dim], of
 * tokens 0 to p at least, positions in q and k. Layers may come at once, a text's rows in their order.
 */
struct eng_delta_error_row {
	uint32_t layer, p, mark;
	const float *q, *k, *v;
	uint32_t stride; /* tokens */
};
void eng_delta_error_add(struct eng_delta_error *, const struct eng_delta_error_row *);

/* ---- what came out --------------------------------------------------------------------------- */

/* Are there rows that missed something? Else the rest says nothing. */
bool eng_delta_error_any(const struct eng_delta_error *);

/* What the correction leaves of what is missed, all layers, each in parts of its outputs. Below 1 it helps. */
double eng_delta_error_left(const struct eng_delta_error *);

#endif
