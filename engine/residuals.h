/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/residuals.h - accumulates tokens' differences to the mean of their nearest references.
 *
 * x of a token in a layer is [K of all kv heads | V of all kv heads], with K before the rotary embedding. The first
 * tokens of a text are references, and after them every `stride`-th token. For any other token, b is the mean of the
 * `near` references before it that are nearest to x (L2; of equals the earlier one). The second moment of x - b is
 * accumulated over tokens. The best linear compressor of a given width depends only on it: compression subtracts only
 * b, so the residuals' mean is not subtracted here, either.
 */
#ifndef ENG_RESIDUALS_H
#define ENG_RESIDUALS_H

#include <stdint.h>
#include <sparsekv/types.h>

#define ENG_RESIDUALS_NEAR 4u /* maximum of `near` */

struct eng_residuals_shape {
	uint32_t n_layers, n_kv_heads, head_dim;
	struct skv_rope rope;
	uint32_t max_tokens;   /* of a text */
	uint32_t rows;         /* most rows added at once */
	uint32_t first;        /* tokens at the beginning of a text that are never compressed; at least `near` */
	uint32_t stride, near; /* 0, 0: no references, b is 0 */
};

struct eng_residuals {
	struct eng_residuals_shape shape;
	uint32_t d;      /* elements of x */
	uint64_t tokens; /* tokens accumulated */
	double *moment;  /* [layer][d][d]: sums of products of elements, [i][j] for j up to i */
	double *sum;     /* [layer][d]: sums of x */
	double *square;  /* [layer]: sums of x², over all elements */
	uint32_t at;     /* first row of the current step */
	float *rope;     /* eng_rope_table */
	double *refs;    /* [layer][references][d], of the current text */
	double *norm;    /* [layer][references]: their squared norms */
	/* of the current rows: x; products with each reference; x - b of rows that are not references */
	double *x, *score, *left;
};
#define ENG_RESIDUALS_NULL ((struct eng_residuals){.moment = NULL})

/* -ENOMEM. */
int eng_residuals_init(struct eng_residuals *r, const struct eng_residuals_shape *shape);
void eng_residuals_deinit(struct eng_residuals *r);

/* Announces rows [at, at + rows) of a text for all layers. Texts begin with row 0, and rows come in order. */
void eng_residuals_begin(struct eng_residuals *r, uint32_t at, uint32_t rows);
/* Adds K (with rotary positions) and V of these rows in a layer: [rows][n_kv_heads][head_dim]. */
void eng_residuals_add(struct eng_residuals *r, uint32_t layer, const float *k, const float *v, uint32_t rows);

/* Sums over tokens and elements: squares of x - b; squares of x minus its mean. */
double eng_residuals_left(const struct eng_residuals *r, uint32_t layer);
double eng_residuals_spread(const struct eng_residuals *r, uint32_t layer);

#endif
