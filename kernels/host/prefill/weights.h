/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/prefill/weights.h - computes the softmax weights of some query rows, by which kascade.c and minference.c
 * select tokens.
 *
 * There are two passes over K: the first finds each row's log-sum-exp, the second computes the weights, for a block of
 * tokens and a strip of rows at a time. A row's weights depend only on the row and on the tokens to which it attends.
 */
#ifndef SKV_HOST_WEIGHTS_H
#define SKV_HOST_WEIGHTS_H

#include "kernels/host/runtime/block.h"

/* Query rows of one kv head; row x attends to the tokens before end[x]. */
struct weigh {
	const struct skv_shape *sh;
	const struct skv_kseq *s;
	uint32_t h, m;
	uint32_t end[M_MAX]; /* positions, ascending */
	uint32_t head[M_MAX]; /* the q head of each row */
	float *q;            /* [M_MAX][dim]: query rows, multiplied by the softmax scale */
	float *k;            /* [dim][BLOCK]: K of a block, transposed */
	float *w;            /* [STRIP][BLOCK]: scores of a strip of rows, then weights */
	/* [M_MAX]: running maxima and sums; after the first pass `max` is log2 of the softmax denominator */
	float *max, *sum;
};

static size_t weigh_carve(struct carve *c, uint32_t dim, struct weigh *w)
{
	const size_t sizes[] = {M_MAX * dim, dim * BLOCK, STRIP * BLOCK, M_MAX, M_MAX};
	float **const at[] = {&w->q, &w->k, &w->w, &w->max, &w->sum};

	return carve_floats(c, sizeof sizes / sizeof *sizes, sizes, at);
}

/* Adds a query row, which attends to the tokens before `end`. */
static void weigh_row(struct weigh *w, const float *q, uint32_t head, uint32_t end)
{
	const float scale = w->sh->scale * LOG2E;

	for (uint32_t d = 0; d < w->sh->head_dim; d += VL)
		v_storef(w->q + w->m * w->sh->head_dim + d, v_loadf(q + d) * scale);
	w->head[w->m] = head;
	w->end[w->m++] = end;
}

/*
 * Scores the strip of rows from m0 on against the block of tokens at t0, whose K is in w->k. Returns false if no row
 * attends to any token of the block.
 */
static bool score_strip(const struct weigh *w, uint32_t m0, uint32_t t0, uint32_t resident)
{
	const uint32_t dim = w->sh->head_dim;
	uint32_t visible[VL];

	for (uint32_t i = 0; i < STRIP; i++) {
		const uint32_t end = w->end[skv_min(m0 + i, w->m - 1)];
		visible[i] = end <= t0 ? 0 : skv_min(end - t0, BLOCK);
	}
	if (visible[STRIP - 1] == 0)
		return false;
	product(w->q + (size_t)m0 * dim, dim, w->k, BLOCK, w->w, BLOCK, STRIP, BLOCK, dim, false);
	cap_strip(w->sh, w->w);
	mask_strip(w->w, visible, resident);
	return true;
}

/* The first pass: computes each row's log-sum-exp, in w->max. */
static void weigh_sums(const struct weigh *w)
{
	const uint32_t dim = w->sh->head_dim, padded = (w->m + STRIP - 1) / STRIP * STRIP;

	memset(w->q + w->m * dim, 0, (padded - w->m) * dim * sizeof *w->q);
	for (uint32_t m = 0; m < padded; m++) {
		w->max[m] = -INFINITY;
		w->sum[m] = 0;
	}
	for (uint32_t t0 = 0; t0 < w->end[w->m - 1]; t0 += BLOCK) {
		const uint32_t resident = widen_block(w->sh, w->s, w->h, t0, w->k, NULL);
		for (uint32_t m0 = 0; resident && m0 < w->m; m0 += STRIP)
			if (score_strip(w, m0, t0, resident))
				add_strip(w->w, w->max + m0, w->sum + m0);
	}
	for (uint32_t m = 0; m < w->m; m++)
		w->max[m] = w->sum[m] > 0 ? w->max[m] + log2f(w->sum[m] + sink_term(w->sh, w->head[m], w->max[m])) : 0;
}

/*
 * The second pass: writes the weights of the strip of rows from m0 on for the block of tokens at t0 to w->w; the weight
 * is 0 for a token to which a row does not attend. Returns false if no row attends to any token of the block.
 */
static bool weigh_strip(const struct weigh *w, uint32_t m0, uint32_t t0, uint32_t resident)
{
	if (!score_strip(w, m0, t0, resident))
		return false;
	for (uint32_t i = 0; i < skv_min(STRIP, w->m - m0); i++)
		for (uint32_t t = 0; t < BLOCK; t += VL)
			v_storef(w->w + i * BLOCK + t, v_exp2(v_loadf(w->w + i * BLOCK + t) - w->max[m0 + i]));
	return true;
}
#endif
