/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/residuals.h - accumulates second moments of the difference between a token's K and V and the mean of its
 * nearest reference tokens.
 *
 * The vector x of a token in a layer is [K of all kv heads | V of all kv heads], with K before the rotary embedding.
 * The first tokens of a text are reference tokens, and so is every `stride`-th token after them. For any other token, b
 * is the mean of the `near` earlier reference tokens whose x is nearest in L2 distance; of equally near ones the
 * earlier one counts. The second moment of the residuals x - b is accumulated over all other tokens, because the best
 * linear compressor of a given width depends only on this moment. The mean of the residuals is not subtracted, because
 * compression (DeltaKV) subtracts only b.
 */
#ifndef ENG_RESIDUALS_H
#define ENG_RESIDUALS_H

#include <stdint.h>
#include <sparsekv/types.h>

#define ENG_RESIDUALS_NEAR 4u /* maximum of `near` */

struct eng_residuals_shape {
	uint32_t n_layers, n_kv_heads, head_dim;
	struct skv_rope rope;
	uint32_t max_tokens;   /* most tokens in a text */
	uint32_t rows;         /* most rows in one call of eng_residuals_add() */
	uint32_t first; /* number of tokens at the beginning of a text that are never compressed; at least `near` */
	uint32_t stride, near; /* distance of reference tokens, references of a token; 0, 0: no references, b is 0 */
};

struct eng_residuals {
	struct eng_residuals_shape shape;
	uint32_t d;      /* number of elements of x */
	uint64_t tokens; /* number of tokens accumulated so far */
	/* [layer][d][d]: sums over tokens of products of two residual elements; only [i][j] with j up to i */
	double *moment;
	double *sum;     /* [layer][d]: sums of x */
	double *square;  /* [layer]: sums of x² over tokens and elements */
	uint32_t at;     /* position of the current step's first row */
	float *rope;     /* from eng_rope_table() */
	double *refs;    /* [layer][references][d]: x of the current text's reference tokens */
	double *norm;    /* [layer][references]: squared norms of `refs` */
	/* of the current rows: x; dot products of x with each reference; x - b of the rows that are not references */
	double *x, *score, *left;
};
#define ENG_RESIDUALS_NULL ((struct eng_residuals){.moment = NULL})

/* Returns 0 or -ENOMEM. */
int eng_residuals_init(struct eng_residuals *r, const struct eng_residuals_shape *shape);
void eng_residuals_deinit(struct eng_residuals *r);

/*
 * Announces that rows [at, at + rows) of a text follow, for all layers. Each text begins with row 0, and its rows come
 * in order.
 */
void eng_residuals_begin(struct eng_residuals *r, uint32_t at, uint32_t rows);
/*
 * Adds the rows that eng_residuals_begin() announced, in one layer: their K (with the rotary embedding) and V,
 * [rows][n_kv_heads][head_dim].
 */
void eng_residuals_add(struct eng_residuals *r, uint32_t layer, const float *k, const float *v, uint32_t rows);

/*
 * Return sums over a layer's tokens and elements: left() of the squares of x - b, spread() of the squares of x minus
 * the mean of x.
 */
double eng_residuals_left(const struct eng_residuals *r, uint32_t layer);
double eng_residuals_spread(const struct eng_residuals *r, uint32_t layer);

#endif
