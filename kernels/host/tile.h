/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/tile.h - decode attention over one tile of tokens.
 *
 * All ways to decode (dense, window, pages, tokens) come down to a list of K row addresses; the V row
 * of a token is a constant distance from its K row, and so are the rows of the other kv heads. The
 * list is walked in tiles of up to TILE_MAX tokens, a tile for all heads before the next, so that
 * memory is read nearly in the order of the pages. A tile of one kv head has three phases, with the
 * running softmax of FlashAttention: scores from the K rows, weights, sums of the V rows.
 *
 * The phases that read memory prefetch for the next one: scores the V rows, sums the K rows of what
 * comes after this tile and head. So reading never waits for arithmetic, and a tile must not be
 * larger than what fits into the first-level cache twice.
 *
 * Heads of a group are taken `gt` (4, 2 or 1) at a time: a K or V row that was loaded and widened to
 * fp32 serves all of them. For the scores, VL dot products (gt heads by VL / gt tokens) are summed in
 * VL vectors, which one fold turns into a vector of scores.
 *
 * Scores are in units of log2: the softmax scale that is passed in carries the factor log2(e).
 */
#ifndef SKV_HOST_TILE_H
#define SKV_HOST_TILE_H

#include "kernels/host/simd.h"

#define TILE_MAX 64u
#define TILE_BYTES 8192u /* of K rows in a tile, roughly */

/* One tile and one kv head; pointers are to the first of gt q heads. */
struct tile {
	const uint8_t *const *row; /* TILE_MAX readable entries; from n on they repeat a valid one */
	uint32_t n;                /* tokens */
	uint32_t dim;
	uint32_t row_bytes;
	size_t k_at, v_at; /* offsets from row[] */
	const uint8_t *const *next_row; /* what is read after this tile, for prefetching */
	size_t next_at;
	const float *q; /* [gt][dim] */
	float scale;
	float *acc;     /* [gt][acc_stride]: Σ 2^(score - max) v */
	size_t acc_stride;
	float *max;     /* [gt]: of the scores; -INFINITY before the first token */
	float *sum;     /* [gt]: Σ 2^(score - max) */
	float *raw;     /* [gt][raw_stride]: receives the scores, -INFINITY from n to a multiple of 16; or NULL */
	size_t raw_stride;
};

/* A maximum as the reference point of exponents: any finite number will do where there is none. */
INLINE vf finite_max(vf max)
{
	return v_select(max == v_set(-__builtin_inff()), (vf){0}, max);
}

/* Read once, so past the outer caches where the processor can. */
INLINE void prefetch_row(const uint8_t *p, uint32_t bytes)
{
	for (uint32_t b = 0; b < bytes; b += 64)
		__builtin_prefetch(p + b, 0, 0);
}

/* score[g][t] = scale * q_g · k_t for gt heads and the VL / gt tokens at row[]. */
INLINE void score_rows(const struct tile *a, uint32_t dtype, const int gt, const uint8_t *const *row, float *score)
{
	const int tt = VL / gt;
	vf sum[VL] = {0};
	for (uint32_t d = 0; d < a->dim; d += VL) {
		vf k[VL];
		UNROLL
		for (int t = 0; t < tt; t++)
			k[t] = v_load(dtype, row[t] + a->k_at + d * skv_dtype_bytes(dtype));
		UNROLL
		for (int g = 0; g < gt; g++) {
			vf q = v_loadf(a->q + (size_t)g * a->dim + d);
			UNROLL
			for (int t = 0; t < tt; t++)
				sum[g * tt + t] = v_fma(q, k[t], sum[g * tt + t]);
		}
	}
	float s[VL];
	v_storef(s, v_fold_rows(V_SUM, sum) * a->scale);
	UNROLL
	for (int g = 0; g < gt; g++)
		memcpy(score + g * TILE_MAX, s + g * tt, (size_t)tt * sizeof *s);
}

/* Phase 1: score[gt][0, padded). Prefetches the tile's V rows. */
INLINE void tile_scores(const struct tile *a, uint32_t dtype, const int gt, uint32_t padded, float *score)
{
	const uint32_t tt = (uint32_t)(VL / gt);
	for (uint32_t t = 0; t < padded; t += tt) {
		for (uint32_t i = 0; i < tt; i++)
			prefetch_row(a->row[t + i] + a->v_at, a->row_bytes);
		score_rows(a, dtype, gt, a->row + t, score + t);
	}
	for (int g = 0; g < gt; g++) {
		for (uint32_t t = a->n; t < padded; t++)
			score[g * TILE_MAX + t] = -__builtin_inff();
		if (a->raw)
			memcpy(a->raw + g * a->raw_stride, score + g * TILE_MAX, padded * sizeof *score);
	}
}

/*
 * Phase 2: scores become weights 2^(score - max) with the running maximum, and sums are brought along.
 * fix[g] is the factor by which what was summed before must shrink. A NaN score takes no part in the
 * maximum; its weight is a NaN, which the sum keeps.
 */
INLINE void tile_softmax(const struct tile *a, const int gt, uint32_t padded, float *score, float fix[VL])
{
	float old[VL] = {0}, base[VL], sums[VL] = {0};
	vf top[4], sum[4] = {0};

	memcpy(old, a->max, (size_t)gt * sizeof *old);
	memcpy(sums, a->sum, (size_t)gt * sizeof *sums);
	UNROLL
	for (int g = 0; g < gt; g++) {
		top[g] = v_set(-__builtin_inff());
		for (uint32_t t = 0; t < padded; t += VL)
			top[g] = v_max(v_loadf(score + g * TILE_MAX + t), top[g]);
	}
	vf max = v_max(v_fold_four(V_MAX, top[0], top[1 % gt], top[2 % gt], top[3 % gt]), v_loadf(old));
	vf shrink = v_exp2(v_loadf(old) - finite_max(max));
	v_storef(base, finite_max(max));
	v_storef(fix, shrink);
	UNROLL
	for (int g = 0; g < gt; g++)
		for (uint32_t t = 0; t < padded; t += VL) {
			vf weight = v_exp2(v_loadf(score + g * TILE_MAX + t) - base[g]);
			v_storef(score + g * TILE_MAX + t, weight);
			sum[g] += weight;
		}
	vf total = v_fold_four(V_SUM, sum[0], sum[1 % gt], sum[2 % gt], sum[3 % gt]);
	v_storef(sums, v_fma(v_loadf(sums), shrink, total));
	v_storef(old, max);
	memcpy(a->max, old, (size_t)gt * sizeof *old);
	memcpy(a->sum, sums, (size_t)gt * sizeof *sums);
}

/* acc[g][d0 …] = acc * fix[g] + Σ_t weight[g][t] v_t in nd vectors of dimensions. */
INLINE void sum_rows(const struct tile *a, uint32_t dtype, const int gt, const int nd, uint32_t d0, const float *weight,
                     const float *fix)
{
	vf acc[16];
	UNROLL
	for (int g = 0; g < gt; g++) {
		UNROLL
		for (int d = 0; d < nd; d++)
			acc[g * nd + d] = v_loadf(a->acc + g * a->acc_stride + d0 + d * VL) * fix[g];
	}
	const size_t at = a->v_at + d0 * skv_dtype_bytes(dtype);
	for (uint32_t t = 0; t < a->n; t++) {
		vf v[4];
		if (d0 == 0)
			prefetch_row(a->next_row[t] + a->next_at, a->row_bytes);
		UNROLL
		for (int d = 0; d < nd; d++)
			v[d] = v_load(dtype, a->row[t] + at + (size_t)d * VL * skv_dtype_bytes(dtype));
		UNROLL
		for (int g = 0; g < gt; g++) {
			vf w = v_set(weight[g * TILE_MAX + t]);
			UNROLL
			for (int d = 0; d < nd; d++)
				acc[g * nd + d] = v_fma(w, v[d], acc[g * nd + d]);
		}
	}
	UNROLL
	for (int g = 0; g < gt; g++) {
		UNROLL
		for (int d = 0; d < nd; d++)
			v_storef(a->acc + g * a->acc_stride + d0 + d * VL, acc[g * nd + d]);
	}
}

/* Phase 3: the sums of V rows. Prefetches what comes next. */
INLINE void tile_values(const struct tile *a, uint32_t dtype, const int gt, const float *weight, const float *fix)
{
	/* As many accumulators as the register file has room for. */
	const int most = gt == 4 && VL < 16 ? 2 : 4;
	uint32_t d = 0;
	for (; d + most * VL <= a->dim; d += most * VL)
		sum_rows(a, dtype, gt, most, d, weight, fix);
	if (most > 2 && d + 2 * VL <= a->dim) {
		sum_rows(a, dtype, gt, 2, d, weight, fix);
		d += 2 * VL;
	}
	if (d < a->dim)
		sum_rows(a, dtype, gt, 1, d, weight, fix);
}

INLINE void tile_attend(const struct tile *a, uint32_t dtype, const int gt)
{
	const uint32_t padded = (a->n + SKV_PAGE_TOKENS - 1) & ~(SKV_PAGE_TOKENS - 1);
	float score[4 * TILE_MAX] __attribute__((aligned(64))), fix[VL];

	tile_scores(a, dtype, gt, padded, score);
	tile_softmax(a, gt, padded, score, fix);
	tile_values(a, dtype, gt, score, fix);
}

/* Not inlined further: each has the registers to itself. */
#define TILE_ATTEND(name, dtype, gt)                                                                         \
	static __attribute__((noinline)) void name(const struct tile *a)                                     \
	{                                                                                                    \
		tile_attend(a, dtype, gt);                                                                   \
	}
TILE_ATTEND(tile_f32_1, SKV_F32, 1)
TILE_ATTEND(tile_f32_2, SKV_F32, 2)
TILE_ATTEND(tile_f32_4, SKV_F32, 4)
TILE_ATTEND(tile_f16_1, SKV_F16, 1)
TILE_ATTEND(tile_f16_2, SKV_F16, 2)
TILE_ATTEND(tile_f16_4, SKV_F16, 4)
TILE_ATTEND(tile_bf16_1, SKV_BF16, 1)
TILE_ATTEND(tile_bf16_2, SKV_BF16, 2)
TILE_ATTEND(tile_bf16_4, SKV_BF16, 4)

/* By dtype and by gt / 2. */
static void (*const tile_functions[3][3])(const struct tile *) = {
	[SKV_F32] = {tile_f32_1, tile_f32_2, tile_f32_4},
	[SKV_F16] = {tile_f16_1, tile_f16_2, tile_f16_4},
	[SKV_BF16] = {tile_bf16_1, tile_bf16_2, tile_bf16_4},
};
#endif
