/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/tile.h - decode attention of a few q heads over a run of token rows.
 *
 * All ways to decode (dense, window, pages, tokens) come down to a list of K row addresses; the V
 * row of a token is a constant distance from its K row. The list is walked in tiles of TILE tokens
 * with the running softmax of FlashAttention: scores, maximum, weights, then the weighted V rows.
 * A tile is small so that K and V alternate and memory is always being read ahead.
 *
 * Heads of a group are taken GT at a time: a K or V row that was loaded (and widened to fp32) serves
 * GT of them. For the scores, VL dot products (GT heads by TT tokens) are summed in VL vectors, which
 * one transposing fold turns into a vector of scores.
 *
 * Scores are in units of log2: the softmax scale that is passed in carries the factor log2(e).
 */
#ifndef SKV_HOST_TILE_H
#define SKV_HOST_TILE_H

#include "kernels/host/simd.h"

#define TILE 64u
#define ROW_PAD 64u /* entries of a row list past its end; the furthest that a prefetch looks ahead */

/* What attention over some tokens leaves behind; two of them can be merged. One q head. */
struct partial {
	float max; /* of the scores; -INFINITY when there was no token */
	float sum; /* Σ 2^(score - max) */
	float *acc; /* [head_dim]: Σ 2^(score - max) v */
};

/* exp2 of one number, by the code that does whole vectors. */
INLINE float exp2_one(float x)
{
	return v_exp2(v_set(x))[0];
}

/* A maximum as the reference point of exponents: any finite number will do where there is none. */
INLINE float finite_max(float max)
{
	return max == -__builtin_inff() ? 0 : max;
}

INLINE void prefetch_row(const uint8_t *p, uint32_t bytes)
{
	for (uint32_t b = 0; b < bytes; b += 64)
		__builtin_prefetch(p + b, 0, 3);
}

/* score[g][t] = scale * q_g · k_t for gt heads and the VL / gt tokens at row[]. */
INLINE void score_rows(uint32_t dtype, const int gt, const uint8_t *const *row, const float *q, uint32_t dim, float scale,
                       float *score)
{
	const int tt = VL / gt;
	vf acc[VL] = {0};
	for (uint32_t d = 0; d < dim; d += VL) {
		vf k[VL];
		UNROLL
		for (int t = 0; t < tt; t++)
			k[t] = v_load(dtype, row[t] + d * skv_dtype_bytes(dtype));
		UNROLL
		for (int g = 0; g < gt; g++) {
			vf x = v_loadf(q + (size_t)g * dim + d);
			UNROLL
			for (int t = 0; t < tt; t++)
				acc[g * tt + t] = v_fma(x, k[t], acc[g * tt + t]);
		}
	}
	float s[VL];
	v_storef(s, v_rows_sum(acc) * scale);
	UNROLL
	for (int g = 0; g < gt; g++)
		memcpy(score + g * TILE, s + g * tt, (size_t)tt * 4);
}

/*
 * score[0, n) → 2^(score - max) with the running maximum and sum of one head, n a multiple of VL.
 * Returns the factor by which everything summed before must shrink. A NaN score takes no part in the
 * maximum; its weight is a NaN, which the sum keeps.
 */
INLINE float softmax_tile(float *score, uint32_t n, struct partial *part)
{
	vf top = v_set(part->max);
	for (uint32_t t = 0; t < n; t += VL)
		top = v_max(v_loadf(score + t), top);
	float max = v_max_lanes(top), base = finite_max(max);
	float fix = exp2_one(part->max - base);
	vf sum = {0};
	for (uint32_t t = 0; t < n; t += VL) {
		vf weight = v_exp2(v_loadf(score + t) - base);
		v_storef(score + t, weight);
		sum += weight;
	}
	part->max = max;
	part->sum = part->sum * fix + v_sum(sum);
	return fix;
}

/* A run of tokens: K rows at row[0, n), V rows v_offset after them. */
struct run {
	const uint8_t *const *row; /* readable ROW_PAD entries past n */
	uint32_t n;
	size_t v_offset;
	uint32_t dim;
	uint32_t row_bytes;
	uint32_t ahead; /* how many rows ahead of its use a row is prefetched */
};

/* acc[g][d0 …] = acc * fix[g] + Σ_t weight[g][t] v_t in nd vectors of dimensions, for gt heads and tokens [t0, t0 + n). */
INLINE void add_values(uint32_t dtype, const int gt, const int nd, const struct run *r, uint32_t t0, uint32_t n,
                       uint32_t d0, const float *weight, const float *fix, struct partial *part)
{
	vf acc[16];
	UNROLL
	for (int g = 0; g < gt; g++) {
		UNROLL
		for (int d = 0; d < nd; d++)
			acc[g * nd + d] = v_loadf(part[g].acc + d0 + d * VL) * fix[g];
	}
	const size_t offset = r->v_offset + d0 * skv_dtype_bytes(dtype);
	for (uint32_t t = 0; t < n; t++) {
		const uint8_t *v = r->row[t0 + t] + offset;
		vf x[4];
		if (d0 == 0)
			prefetch_row(r->row[t0 + t + r->ahead] + offset, r->row_bytes);
		UNROLL
		for (int d = 0; d < nd; d++)
			x[d] = v_load(dtype, v + (size_t)d * VL * skv_dtype_bytes(dtype));
		UNROLL
		for (int g = 0; g < gt; g++) {
			vf w = v_set(weight[g * TILE + t]);
			UNROLL
			for (int d = 0; d < nd; d++)
				acc[g * nd + d] = v_fma(w, x[d], acc[g * nd + d]);
		}
	}
	UNROLL
	for (int g = 0; g < gt; g++) {
		UNROLL
		for (int d = 0; d < nd; d++)
			v_storef(part[g].acc + d0 + d * VL, acc[g * nd + d]);
	}
}

/* One tile of tokens, [t0, t0 + n), for gt heads. */
INLINE void attend_tile(uint32_t dtype, const int gt, const struct run *r, uint32_t t0, uint32_t n, const float *q,
                        float scale, struct partial *part, float *raw, size_t raw_stride)
{
	const uint32_t padded = (n + SKV_PAGE_TOKENS - 1) & ~(SKV_PAGE_TOKENS - 1), step = VL / gt;
	float score[4 * TILE] __attribute__((aligned(64))), fix[4];

	for (uint32_t t = 0; t < padded; t += step) {
		for (uint32_t i = 0; i < step; i++)
			prefetch_row(r->row[t0 + t + i + r->ahead], r->row_bytes);
		score_rows(dtype, gt, r->row + t0 + t, q, r->dim, scale, score + t);
	}
	for (int g = 0; g < gt; g++) {
		for (uint32_t t = n; t < padded; t++)
			score[g * TILE + t] = -__builtin_inff();
		if (raw)
			memcpy(raw + g * raw_stride + t0, score + g * TILE, padded * sizeof *score);
		fix[g] = softmax_tile(score + g * TILE, padded, &part[g]);
	}
	/* As many accumulators as the register file has room for. */
	const uint32_t most = gt == 4 && VL < 16 ? 2 : 4;
	uint32_t d = 0;
	for (; d + most * VL <= r->dim; d += most * VL)
		add_values(dtype, gt, most, r, t0, n, d, score, fix, part);
	if (most > 2 && d + 2 * VL <= r->dim) {
		add_values(dtype, gt, 2, r, t0, n, d, score, fix, part);
		d += 2 * VL;
	}
	if (d < r->dim)
		add_values(dtype, gt, 1, r, t0, n, d, score, fix, part);
}

/*
 * All tokens of the run for the `group` heads q[0, group)[dim]. part[] must come with its acc set;
 * everything in it is written. raw, if not NULL, receives the scores: token t of head g at
 * raw[g * raw_stride + t], and -INFINITY up to the next multiple of SKV_PAGE_TOKENS.
 */
INLINE void attend_run(uint32_t dtype, const struct run *r, const float *q, uint32_t group, float scale,
                       struct partial *part, float *raw, size_t raw_stride)
{
	for (uint32_t g = 0; g < group; g++) {
		part[g].max = -__builtin_inff();
		part[g].sum = 0;
		memset(part[g].acc, 0, r->dim * sizeof *part[g].acc);
	}
	for (uint32_t t = 0; t < r->n; t += TILE) {
		uint32_t n = r->n - t < TILE ? r->n - t : TILE, g = 0;
#define HEADS(gt)                                                                                            \
	attend_tile(dtype, gt, r, t, n, q + (size_t)g * r->dim, scale, part + g,                             \
	            raw ? raw + g * raw_stride : NULL, raw_stride)
		for (; g + 4 <= group; g += 4)
			HEADS(4);
		if (g + 2 <= group) {
			HEADS(2);
			g += 2;
		}
		if (g < group)
			HEADS(1);
#undef HEADS
	}
}
#endif
