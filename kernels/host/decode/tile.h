/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/decode/tile.h - decode attention over one tile of tokens.
 *
 * For every kind of decode attention (dense, window, pages, tokens), the tokens are given as a list of K row addresses.
 * The V row of a token is at a constant distance from the token's K row, and so are the rows of the other kv heads. The
 * list is processed in tiles of 16 or 32 tokens, with the running softmax of FlashAttention: first scores and weights
 * of all heads are computed from the K rows of a tile, then the weighted sums of its V rows. So if whole pages are
 * attended to, memory is read nearly in the order of addresses, which suits the processor's hardware prefetcher.
 *
 * A strip is the K or the V rows of a tile and one kv head. While one strip is processed, a later strip is prefetched,
 * cache line by cache line at the same pace. Prefetching in bursts would queue up requests and then leave the memory
 * idle.
 *
 * The q heads of a group are processed `gt` (4, 2 or 1) at a time: a K or V row that was loaded and converted to fp32
 * serves all gt heads. For the scores, VL dot products (gt heads by TT = VL / gt tokens) are summed in VL vectors, and
 * one fold turns these into a vector of scores, in which lane g * TT + t is head g, token t. Scores, weights, maxima
 * and sums stay in that order of lanes, so the softmax needs no shuffles other than folds of TT lanes.
 *
 * Scores are in units of log2: the softmax scale that the caller passes includes the factor log2(e).
 */
#ifndef SKV_HOST_TILE_H
#define SKV_HOST_TILE_H

#include "kernels/host/runtime/logits.h"
#include "kernels/host/runtime/simd.h"

#define TILE_MAX 32u /* largest number of tokens of a tile */

/*
 * Returns the number of tokens of a tile. With wide elements memory limits the speed; with narrow elements arithmetic
 * does, and arithmetic needs large tiles.
 */
static inline uint32_t tile_tokens(uint32_t dtype)
{
	return dtype == SKV_F32 ? 16 : 32;
}

/* Returns how many bytes are prefetched ahead of use; the numbers are from measurements. */
static inline uint32_t ahead_bytes(uint32_t dtype, bool scattered)
{
	return dtype == SKV_F32 && !scattered ? 8192 : 16384;
}

struct strip {
	/* row addresses: n entries, padded to a multiple of 16 with a valid address */
	const uint8_t *const *row;
	/*
	 * offset of the strip's rows from the addresses in row[], which are those of kv head 0's K rows, or of
	 * dequantized rows
	 */
	size_t at;
	uint32_t n;                /* number of tokens, at most TILE_MAX */
	uint32_t dim;
	/* with fp8: for each entry of row[], the factor that turns what v_load() reads into values */
	const float *unit;
	float cap;                       /* softcap of the scores; 0: no softcap */
	bool ahead;                      /* another strip is prefetched meanwhile, that of ahead_row and ahead_at */
	const uint8_t *const *ahead_row; /* addresses as in row[], for the strip that is prefetched */
	size_t ahead_at;
};

/*
 * Prefetches a cache line into the L2 cache. A prefetch into L1 would hold one of the core's few line fill buffers (ten
 * to sixteen) until memory answers, and these buffers limit the throughput. On Intel's processors, non-temporal
 * prefetches hold line fill buffers, too: with these, dense decode ran at half the speed (0.36 against 0.77 of a plain
 * read, bf16, D 128).
 */
INLINE void prefetch_line(const uint8_t *p)
{
	__builtin_prefetch(p, 0, 2);
}

/*
 * The running softmax of gt heads, in the lane order that the head of this file describes. All lanes of a head are
 * equal.
 */
struct softmax {
	vf max; /* largest score so far; -INFINITY before the first token */
	vf sum; /* Σ 2^(score - max) over the tokens so far */
	vf fix; /* 2^(old max - new max) of the last tile: the factor that rescales earlier sums */
};

/*
 * Returns the maximum to subtract in exponents. If there is no score yet (-infinity), any finite number works, and the
 * function returns 0.
 */
INLINE vf finite_max(vf max)
{
	return v_select(max == v_set(-__builtin_inff()), (vf){0}, max);
}

/* Returns the fp8 factor of each of the TT tokens from t0 on, in the lanes of each of the gt heads. */
INLINE vf units_of_lanes(const struct strip *s, const int gt, uint32_t t0)
{
	float lane[VL];
	UNROLL
	for (int i = 0; i < VL; i++)
		lane[i] = s->unit[t0 + i % (VL / gt)];
	return v_loadf(lane);
}

/*
 * Returns the scores of the gt heads in q[gt][dim] for the TT tokens from t0 on; those after the strip's last token are
 * -infinity.
 */
INLINE vf score_rows(const struct strip *s, uint32_t dtype, const int gt, uint32_t t0, const float *q,
                     float scale)
{
	const int tt = VL / gt;
	vf sum[VL] = {0};
	for (uint32_t d = 0; d < s->dim; d += VL) {
		const size_t at = d * skv_dtype_bytes(dtype);
		vf k[VL];
		UNROLL
		for (int t = 0; t < tt; t++) {
			if (s->ahead && at % 64 == 0)
				prefetch_line(s->ahead_row[t0 + t] + s->ahead_at + at);
			k[t] = v_load(dtype, s->row[t0 + t] + s->at + at);
		}
		UNROLL
		for (int g = 0; g < gt; g++) {
			vf x = v_loadf(q + (size_t)g * s->dim + d);
			UNROLL
			for (int t = 0; t < tt; t++)
				sum[g * tt + t] = v_fma(x, k[t], sum[g * tt + t]);
		}
	}
	vf score = v_fold_rows(V_SUM, sum) * scale;
	if (dtype == SKV_FP8)
		score *= units_of_lanes(s, gt, t0);
	if (s->cap > 0)
		score = v_softcap(score, s->cap);
	if (t0 + tt > s->n)
		score = v_select((v_iota() & (tt - 1)) < (int32_t)(s->n - t0), score,
		                 v_set(-__builtin_inff()));
	return score;
}

/*
 * Stores the n scores of each head g to raw[g * stride], in the order of tokens, then -INFINITY up to a multiple of 16.
 */
INLINE void store_scores(const vf *score, const int gt, uint32_t n, float *raw, size_t stride)
{
	const uint32_t tt = (uint32_t)(VL / gt);
	for (uint32_t t = 0; t < n || t % SKV_PAGE_TOKENS; t++)
		for (int g = 0; g < gt; g++)
			raw[g * stride + t] = t < n ? score[t / tt][g * tt + t % tt] : -__builtin_inff();
}

/*
 * Computes the weights 2^(score - max) of a K strip for gt heads, and updates the running softmax in *state; weight has
 * TILE_MAX * gt elements. A NaN score does not affect the maximum, but its weight is a NaN, and so is the sum from then
 * on. `raw`, unless NULL, gets the scores as store_scores() writes them.
 */
INLINE void weigh_strip(const struct strip *s, uint32_t dtype, const int gt, const float *q, float scale,
                        struct softmax *state, float *weight, float *raw, size_t raw_stride)
{
	const uint32_t tt = (uint32_t)(VL / gt), n = (s->n + tt - 1) / tt;
	vf score[TILE_MAX], top = v_set(-__builtin_inff()), sum = {0};

	for (uint32_t i = 0; i < n; i++) {
		score[i] = score_rows(s, dtype, gt, i * tt, q, scale);
		top = v_max(score[i], top);
	}
	if (raw)
		store_scores(score, gt, s->n, raw, raw_stride);
	vf max = v_max(v_fold_runs(V_MAX, top, (int)tt), state->max), base = finite_max(max);
	for (uint32_t i = 0; i < n; i++) {
		vf w = v_exp2(score[i] - base);
		v_storef(weight + i * VL, w);
		sum += w;
	}
	state->fix = v_exp2(state->max - base);
	state->sum = v_fma(state->sum, state->fix, v_fold_runs(V_SUM, sum, (int)tt));
	state->max = max;
}

/*
 * Adds the weighted V rows of a strip for nd vectors of dimensions from d0 on: acc[g] = acc[g] * fix[g] + Σ_t
 * weight[g][t] v_t.
 */
INLINE void sum_rows(const struct strip *s, uint32_t dtype, const int gt, const int nd, uint32_t d0,
                     const float *weight, const struct softmax *state, float *acc)
{
	const uint32_t tt = (uint32_t)(VL / gt);
	const float *fix = (const float *)&state->fix;
	vf sum[16];
	UNROLL
	for (int g = 0; g < gt; g++) {
		UNROLL
		for (int d = 0; d < nd; d++)
			sum[g * nd + d] = v_loadf(acc + (size_t)g * s->dim + d0 + d * VL) * fix[g * tt];
	}
	for (uint32_t t = 0; t < s->n; t++) {
		const uint8_t *row = s->row[t] + s->at + d0 * skv_dtype_bytes(dtype);
		vf v[4];
		if (s->ahead)
			for (uint32_t b = 0; b < nd * VL * skv_dtype_bytes(dtype); b += 64)
				prefetch_line(s->ahead_row[t] + s->ahead_at +
				              d0 * skv_dtype_bytes(dtype) + b);
		UNROLL
		for (int d = 0; d < nd; d++)
			v[d] = v_load(dtype, row + (size_t)d * VL * skv_dtype_bytes(dtype));
		UNROLL
		for (int g = 0; g < gt; g++) {
			const float weight_of_row = weight[t / tt * VL + g * tt + t % tt];
			vf w = v_set(dtype == SKV_FP8 ? weight_of_row * s->unit[t] : weight_of_row);
			UNROLL
			for (int d = 0; d < nd; d++)
				sum[g * nd + d] = v_fma(w, v[d], sum[g * nd + d]);
		}
	}
	UNROLL
	for (int g = 0; g < gt; g++) {
		UNROLL
		for (int d = 0; d < nd; d++)
			v_storef(acc + (size_t)g * s->dim + d0 + d * VL, sum[g * nd + d]);
	}
}

/* Rescales acc[gt][dim], and adds the weighted V rows of a strip. */
INLINE void sum_strip(const struct strip *s, uint32_t dtype, const int gt, const float *weight,
                      const struct softmax *state, float *acc)
{
	/* as many accumulators as the register file has room for */
	const int most = gt == 4 && VL < 16 ? 2 : 4;
	uint32_t d = 0;
	for (; d + most * VL <= s->dim; d += most * VL)
		sum_rows(s, dtype, gt, most, d, weight, state, acc);
	if (most > 2 && d + 2 * VL <= s->dim) {
		sum_rows(s, dtype, gt, 2, d, weight, state, acc);
		d += 2 * VL;
	}
	if (d < s->dim)
		sum_rows(s, dtype, gt, 1, d, weight, state, acc);
}

/*
 * weigh_strip() and sum_strip() for each dtype and gt, as separate functions, so that the compiler can use all
 * registers in each.
 */
#define STRIP_FUNCTIONS(suffix, dtype, gt)                                                                   \
	static void weigh_##suffix(const struct strip *s, const float *q, float scale,                       \
	                           struct softmax *state, float *weight, float *raw, size_t raw_stride)      \
	{                                                                                                    \
		weigh_strip(s, dtype, gt, q, scale, state, weight, raw, raw_stride);                         \
	}                                                                                                    \
	static void sum_##suffix(const struct strip *s, const float *weight, const struct softmax *state,    \
	                         float *acc)                                                                 \
	{                                                                                                    \
		sum_strip(s, dtype, gt, weight, state, acc);                                                 \
	}
STRIP_FUNCTIONS(f32_1, SKV_F32, 1)
STRIP_FUNCTIONS(f32_2, SKV_F32, 2)
STRIP_FUNCTIONS(f32_4, SKV_F32, 4)
STRIP_FUNCTIONS(f16_1, SKV_F16, 1)
STRIP_FUNCTIONS(f16_2, SKV_F16, 2)
STRIP_FUNCTIONS(f16_4, SKV_F16, 4)
STRIP_FUNCTIONS(bf16_1, SKV_BF16, 1)
STRIP_FUNCTIONS(bf16_2, SKV_BF16, 2)
STRIP_FUNCTIONS(bf16_4, SKV_BF16, 4)
STRIP_FUNCTIONS(fp8_1, SKV_FP8, 1)
STRIP_FUNCTIONS(fp8_2, SKV_FP8, 2)
STRIP_FUNCTIONS(fp8_4, SKV_FP8, 4)

/* The functions for a dtype and gt are strip_functions[dtype][gt / 2]. */
static const struct {
	void (*weigh)(const struct strip *, const float *q, float scale, struct softmax *, float *weight,
	              float *raw, size_t raw_stride);
	void (*sum)(const struct strip *, const float *weight, const struct softmax *, float *acc);
} strip_functions[4][3] = {
	[SKV_F32] = {{weigh_f32_1, sum_f32_1}, {weigh_f32_2, sum_f32_2}, {weigh_f32_4, sum_f32_4}},
	[SKV_F16] = {{weigh_f16_1, sum_f16_1}, {weigh_f16_2, sum_f16_2}, {weigh_f16_4, sum_f16_4}},
	[SKV_BF16] = {{weigh_bf16_1, sum_bf16_1}, {weigh_bf16_2, sum_bf16_2}, {weigh_bf16_4, sum_bf16_4}},
	[SKV_FP8] = {{weigh_fp8_1, sum_fp8_1}, {weigh_fp8_2, sum_fp8_2}, {weigh_fp8_4, sum_fp8_4}},
};
#endif
