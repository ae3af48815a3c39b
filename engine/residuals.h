/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/residuals.h - what is left of tokens when the mean of their nearest references is taken away.
 *
 * x of a token in a layer is [K of all kv heads | V of all kv heads], its K as it was before rotary positions. The
 * first tokens of a text are references, and every `stride`-th one from there on; of any other token the `near`
 * references at or before it that are nearest to x (L2, of equals the earlier one) have the mean b. Added up over
 * tokens is the second moment of x - b, which is all that the best linear compressor of its width hangs on: nothing
 * is taken away but b when tokens are compressed, so their mean is not either.
 */
#ifndef ENG_RESIDUALS_H
#define ENG_RESIDUALS_H

#include <stdint.h>
#include <sparsekv/types.h>

#define ENG_RESIDUALS_NEAR 4u /* `near`, at most */

struct eng_residuals_shape {
	uint32_t n_layers, n_kv_heads, head_dim;
	struct skv_rope rope;
	uint32_t max_tokens;   /* of a text */
	uint32_t rows;         /* that come at once, at most */
	uint32_t first;        /* tokens of a text that are never compressed: `near`, at least */
	uint32_t stride, near; /* 0, 0: there are no references, b is 0 */
};

struct eng_residuals {
	struct eng_residuals_shape shape;
	uint32_t d;      /* elements of x */
	uint64_t tokens; /* that were added up */
	double *moment;  /* [layer][d][d]: sums of the elements' products, [i][j] for j up to i */
	double *sum;     /* [layer][d] of x */
	double *square;  /* [layer] of x, all elements */
	uint32_t at;     /* of the text at hand: the first row that comes */
	float *rope;     /* eng_rope_table */
	double *refs;    /* [layer][references][d], of the text at hand */
	double *norm;    /* [layer][references]: their squares */
	double *x, *score, *left; /* rows at hand: themselves, x·c with each reference, x - b of those that are none */
};
#define ENG_RESIDUALS_NULL ((struct eng_residuals){.moment = NULL})

/* -ENOMEM. */
int eng_residuals_init(struct eng_residuals *r, const struct eng_residuals_shape *shape);
void eng_residuals_deinit(struct eng_residuals *r);

/* Rows [at, at + rows) of a text come next, to all layers; texts begin with row 0 and come in order. */
void eng_residuals_begin(struct eng_residuals *r, uint32_t at, uint32_t rows);
/* K, with positions in it, and V of these rows in a layer: [rows][n_kv_heads][head_dim]. */
void eng_residuals_add(struct eng_residuals *r, uint32_t layer, const float *k, const float *v, uint32_t rows);

/* Sum over tokens, of all elements: squares of x - b; squares of x beside its mean. */
double eng_residuals_left(const struct eng_residuals *r, uint32_t layer);
double eng_residuals_spread(const struct eng_residuals *r, uint32_t layer);

#endif
