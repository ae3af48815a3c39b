/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/sketch-keys.cuh - from scores to keys, for sketch-topk.cu: a block's shared memory, what a cluster's
 * blocks have in common, denominators, and the keys of a block's tokens.
 */
#ifndef SKV_CUDA_SELECT_SKETCH_KEYS_CUH
#define SKV_CUDA_SELECT_SKETCH_KEYS_CUH

#include <cooperative_groups.h>
#include "kernels/cuda/select/sketch-scan.cuh"

namespace cg = cooperative_groups;

#define THREADS 512u
#define WARPS (THREADS / 32)
#define MAX_CLUSTER 16u
#define HEAD_WARPS (WARPS / HEAD_TILE) /* that sum up a head's units */
#define IN_FLIGHT 8u /* reads of other blocks' shared memory at a time */

#define DIGIT_BITS 10
#define BINS (1u << DIGIT_BITS)
#define KEY_ANYWAY (1u << 2 * DIGIT_BITS) /* recent and pinned ones */
#define KEY_STEPS 16384.0f
#define KEY_FLOOR -60.0f /* log2 of weights below this are equal; a sum over a group may be above 1 */

struct topk_params {
	struct sketch_params s;
	struct skv_select select;
	struct skv_index_list list;
	bool sum;         /* a token's weight is the sum over its group, else the largest */
	uint32_t records; /* of a pair of tokens: heads / 2, rounded up */
	uint32_t units;   /* that a block has room for */
};

/* A block's part of a list. */
struct item {
	uint32_t i, h;
	uint32_t first, end; /* units */
	struct skv_topk_counts counts;
};

struct topk_smem {
	struct sketch_query query;
	float4 head[HEAD_TILE]; /* what makes weights of a head's products: head_weights_of() */
	alignas(8) uint32_t bins[2][BINS]; /* of upper and of lower digits */
	uint32_t warp_sum[WARPS];
	struct partial_softmax of_warp[WARPS];
	uint32_t key, want; /* results of a meeting */
	uint2 count;        /* ids with keys above the k-th, and with that key */
	uint2 before;       /* of earlier blocks */
	struct item item;
	union {
		struct page_at pages[WARPS][2 * UNIT_PAGES]; /* of the warps' units, and when they are scanned ... */
		uint32_t sum[2][BINS]; /* ... this block's share of the bins, of all blocks: the first BINS / blocks */
	};
	alignas(16) uint32_t memory[]; /* records, scales, and float2 peaks [units][group] */
};

#if __CUDA_ARCH__ >= 900
/* ---- a block's sums ---------------------------------------------------------------------------- */

DEVICE uint32_t warp_scan(uint32_t mine)
{
#pragma unroll
	for (int x = 1; x < 32; x *= 2) {
		const uint32_t other = __shfl_up_sync(~0u, mine, x);
		mine += threadIdx.x % 32 >= x ? other : 0;
	}
	return mine;
}

/* Exclusive prefix sum over the block's threads, and the sum. */
__device__ static uint32_t block_scan(struct topk_smem *smem, uint32_t mine, uint32_t *ret_total)
{
	const uint32_t sum = warp_scan(mine), warp = threadIdx.x / 32;
	uint32_t before = 0, total = 0;

	__syncthreads(); /* the last call's sums have been read */
	if (threadIdx.x % 32 == 31)
		smem->warp_sum[warp] = sum;
	__syncthreads();
#pragma unroll
	for (uint32_t w = 0; w < WARPS; w++) {
		before += w < warp ? smem->warp_sum[w] : 0;
		total += smem->warp_sum[w];
	}
	*ret_total = total;
	return before + sum - mine;
}

DEVICE uint32_t divide_up(uint32_t a, uint32_t b)
{
	return (a + b - 1) / b;
}

/* ---- a cluster --------------------------------------------------------------------------------- */

DEVICE uint32_t cluster_blocks(void)
{
	return cg::this_cluster().num_blocks();
}
DEVICE uint32_t cluster_rank(void)
{
	return cg::this_cluster().block_rank();
}
DEVICE void meet(void)
{
	cg::this_cluster().sync();
}
template <class X> DEVICE const X *in_block(X *p, uint32_t rank)
{
	return cg::this_cluster().map_shared_rank(p, rank);
}

DEVICE uint32_t units_of(const struct skv_kseq *s)
{
	return (s->len + SKETCH_UNIT - 1) / SKETCH_UNIT;
}

/* The first unit of a block. */
DEVICE uint32_t first_unit(uint32_t units, uint32_t rank)
{
	return units * rank / cluster_blocks();
}

/* ---- keys -------------------------------------------------------------------------------------- */

DEVICE uint32_t *scales_at(const struct topk_params *c, struct topk_smem *smem)
{
	return smem->memory + (size_t)c->units * SKETCH_PAIRS * c->records * 2;
}

DEVICE float2 *peaks_at(const struct topk_params *c, struct topk_smem *smem)
{
	return (float2 *)(scales_at(c, smem) + (size_t)c->units * SKETCH_PAIRS);
}

/* Of unit u and head g, wherever it is. */
DEVICE struct partial_softmax peak_of(const struct topk_params *c, struct topk_smem *smem, uint32_t units, uint32_t u, uint32_t g)
{
	const uint32_t rank = divide_up((u + 1) * cluster_blocks(), units) - 1;
	const float2 x = in_block(peaks_at(c, smem), rank)[(u - first_unit(units, rank)) * c->s.group + g];
	return {x.x, x.y};
}

/*
 * log2 of the denominators of a group's heads, from all units: HEAD_WARPS warps for each head, a lane the units that are
 * 32 HEAD_WARPS apart, in order; then lanes, then warps.
 */
__device__ static void make_denominators(const struct topk_params *c, struct topk_smem *smem)
{
	const uint32_t g = threadIdx.x / 32 / HEAD_WARPS, group = c->s.group, units = units_of(&c->s.seq[smem->item.i]);
	const uint32_t first = threadIdx.x % (32 * HEAD_WARPS), step = 32 * HEAD_WARPS;
	struct partial_softmax all = {-INFINITY, 0};

	for (uint32_t b = threadIdx.x; b < 2 * BINS; b += THREADS)
		smem->sum[0][b] = 0;
	for (uint32_t u = first; g < group && u < units; u += IN_FLIGHT * step) {
		struct partial_softmax x[IN_FLIGHT];
#pragma unroll
		for (uint32_t k = 0; k < IN_FLIGHT; k++)
			x[k] = peak_of(c, smem, units, min(u + k * step, units - 1), g);
#pragma unroll
		for (uint32_t k = 0; k < IN_FLIGHT; k++)
			if (u + k * step < units)
				all = merge_softmax(all, x[k]);
	}
	all = warp_merge_softmax(all);
	if (threadIdx.x % 32 == 0)
		smem->of_warp[threadIdx.x / 32] = all;
	__syncthreads();
	if (threadIdx.x >= HEAD_TILE)
		return;
	all = smem->of_warp[threadIdx.x * HEAD_WARPS];
	for (uint32_t w = 1; w < HEAD_WARPS; w++)
		all = merge_softmax(all, smem->of_warp[threadIdx.x * HEAD_WARPS + w]);
	/* of an odd group's last record: no weight */
	smem->head[threadIdx.x] = make_float4(0, 0, 0, INFINITY);
	if (threadIdx.x < group)
		smem->head[threadIdx.x] = head_weights_of(&smem->query, threadIdx.x,
		                                          add_sink(c->s.sinks, smem->item.h * group + threadIdx.x, denominator(all)));
}

/* The key of a token: of its weight in log2, unless it is selected anyway, or never. */
DEVICE uint32_t key_of(const struct skv_topk_counts *x, uint32_t token, uint32_t scale, float weight)
{
	if (scale == SCALE_ABSENT)
		return 0;
	if (token < x->pin || token >= x->n - x->recent)
		return KEY_ANYWAY;
	if (scale == SCALE_NO_SKETCH)
		return 1;
	if (weight != weight)
		return 0;
	return (uint32_t)fminf(fmaxf((weight - KEY_FLOOR) * KEY_STEPS, 1), (float)(KEY_ANYWAY - 1));
}

/* Two tokens' weights in log2, reduced over the group. */
template <int shift, int records>
DEVICE float2 pair_weights(const struct topk_params *c, const struct topk_smem *smem, const uint2 *record, uint32_t scales)
{
	const float low = bf16_low(scales), high = bf16_high(scales);
	uint2 two[records];
	float2 w = c->sum ? make_float2(0, 0) : make_float2(-INFINITY, -INFINITY);

#pragma unroll
	for (int r = 0; r < records; r++)
		two[r] = record[r];
#pragma unroll
	for (int g = 0; g < 2 * records; g++) {
		const float4 head = smem->head[g];
		const uint2 of = g % 2 ? make_uint2(two[g / 2].x >> 16, two[g / 2].y >> 16) : two[g / 2];
		const float x = head_weight(&c->s.scale, head, product<shift>(of.x), low);
		const float y = head_weight(&c->s.scale, head, product<shift>(of.y), high);
		if (c->sum) {
			w.x += exp2_fast(x);
			w.y += exp2_fast(y);
		} else {
			w.x = fmaxf(w.x, x);
			w.y = fmaxf(w.y, y);
		}
	}
	return c->sum ? make_float2(log2f(w.x), log2f(w.y)) : w;
}

/* Where a pair's keys are: in place of its first record. */
DEVICE uint2 *keys_at(const struct topk_params *c, struct topk_smem *smem, uint32_t p)
{
	return (uint2 *)smem->memory + (size_t)p * c->records;
}

DEVICE void count_upper(struct topk_smem *smem, uint32_t key)
{
	if (key - 1 < KEY_ANYWAY - 1)
		atomicAdd(&smem->bins[0][key >> DIGIT_BITS], 1);
}

/* Keys in place of scores, and their first histogram. */
template <int shift, int records>
__device__ static void make_keys(const struct topk_params *c, struct topk_smem *smem)
{
	const struct item *it = &smem->item;
	const uint32_t *scales = scales_at(c, smem), pairs = (it->end - it->first) * SKETCH_PAIRS;
	const struct skv_topk_counts x = it->counts;

	for (uint32_t p = threadIdx.x; p < pairs; p += THREADS) {
		const uint32_t token = it->first * SKETCH_UNIT + 2 * p, scale = scales[p];
		uint2 *record = (uint2 *)smem->memory + p * records;
		const float2 w = pair_weights<shift, records>(c, smem, record, scale);
		const uint2 k = make_uint2(key_of(&x, token, scale & 0xffff, w.x), key_of(&x, token + 1, scale >> 16, w.y));
		*record = k;
		count_upper(smem, k.x);
		count_upper(smem, k.y);
	}
	__syncthreads();
}

template <int shift>
__device__ static void make_all_keys(const struct topk_params *c, struct topk_smem *smem)
{
	switch (c->records) {
	case 1: make_keys<shift, 1>(c, smem); break;
	case 2: make_keys<shift, 2>(c, smem); break;
	case 3: make_keys<shift, 3>(c, smem); break;
	default: make_keys<shift, 4>(c, smem);
	}
}
#endif

#endif
