/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/sketch-sample.cuh - estimates the softmax denominators of a head tile from a sample of the tokens
 * (skv_sketch_pair()), by the first SAMPLE_WARPS warps of a block.
 *
 * Each warp has 16 pairs of tokens: one step of products if `split` is 2, else two steps. Loads of all pairs are in
 * flight while the query's operands are made. Then the warps' partial sums are merged in shared memory.
 */
#ifndef SKV_CUDA_SELECT_SKETCH_SAMPLE_CUH
#define SKV_CUDA_SELECT_SKETCH_SAMPLE_CUH

#include "kernels/cuda/select/sketch-scan.cuh"

#define SAMPLE_WARPS 16u

struct sample_smem {
	struct partial_softmax part[HEAD_TILE][SAMPLE_WARPS];
};

/* A head's estimated denominator, in log2. One thread of the block has it, and that thread's `mine` is set. */
struct sampled_head {
	bool mine;
	uint32_t g;
	float lse;
};

/* Location of a token's sketch: its row of codes, NULL if the token has no sketch, and its scale. */
struct sketch_at {
	const uint8_t *codes, *scales;
};
template <int row_bytes> DEVICE struct sketch_at locate_sketch(const struct sketch_params *c, const struct sketch_list *l, uint32_t token)
{
	const uint32_t nth = state_page_of(c, token), row = token - nth * c->page_tokens;

	if (l->len < SKV_PAGE_TOKENS) /* without a full page there are no sketches */
		return {NULL, NULL};
	const skv_pte page = l->pages[token / SKV_PAGE_TOKENS], state = l->states[nth];
	const uint8_t *part = l->pool + skv_pte_id(state) * c->page_bytes;
	if (!skv_pte_resident(page) || !skv_pte_resident(state))
		return {NULL, NULL};
	return {part + row * row_bytes, part + c->page_tokens * row_bytes + row * 2};
}

#define NO_SCORE -1e30f /* below all scores, but finite, so that a difference of scores is not NaN */

/* Maximum and sum of 2^(score - maximum) over the tokens seen so far, for each of a lane's two heads. */
struct running {
	float max[2], sum[2];
};

DEVICE void add_scores(struct running *r, const float s[4])
{
#pragma unroll
	for (int x = 0; x < 2; x++) {
		const float top = fmaxf(r->max[x], fmaxf(s[x], s[x + 2]));
		r->sum[x] = r->sum[x] * exp2_fast(r->max[x] - top) + exp2_fast(s[x] - top) + exp2_fast(s[x + 2] - top);
		r->max[x] = top;
	}
}

template <int D, int bits, int split> struct sketch_sample {
	static constexpr int pairs = SKV_SKETCH_PAIRS / SAMPLE_WARPS, steps = pairs / (8 * split);

	struct sketch_at at; /* sketch of pair x of the warp, in lane x */
	sketch_steps<D, bits, split, true, steps> of;

	/* Returns which of the warp's pairs the lane scores in step x. */
	static __device__ __forceinline__ uint32_t pair_of(int x)
	{
		const uint32_t lane = threadIdx.x % 32;
		return x * 8 * split + (split == 2 ? lane % 4 / 2 * 8 : 0) + lane / 4;
	}
	__device__ __forceinline__ struct sketch_at at_of(int x) const
	{
		const unsigned long long codes = __shfl_sync(~0u, (unsigned long long)at.codes, pair_of(x));
		const unsigned long long scales = __shfl_sync(~0u, (unsigned long long)at.scales, pair_of(x));
		return {(const uint8_t *)codes, (const uint8_t *)scales};
	}

	/*
	 * Locates the sketches of the warp's pairs. This function reads page tables only, so it may run before the
	 * sketches of this step exist.
	 */
	__device__ __forceinline__ void locate(const struct sketch_params *c, const struct sketch_list *list)
	{
		const uint32_t lane = threadIdx.x % 32, pair = threadIdx.x / 32 * pairs + lane;

		at = {NULL, NULL};
		if (lane < pairs && pair < skv_sketch_pairs(list->len))
			at = locate_sketch<D * bits / 8>(c, list, skv_sketch_pair(list->len, pair));
	}
	__device__ __forceinline__ void begin(void)
	{
		/* stays in L2, as the scan reads the sample's sketches again */
		const struct from_memory from = {evict_last_policy()};
#pragma unroll
		for (int x = 0; x < steps; x++) {
			const struct sketch_at pair = at_of(x);
			if (pair.codes)
				of.load(x, pair.codes, pair.scales, 1, from);
		}
	}

	/* Computes the warp's partial softmax of each head, over the warp's pairs. */
	__device__ __forceinline__ void run(const struct sketch_params *c, const struct sketch_list *list, const struct sketch_query *q,
	                                    struct sample_smem *smem)
	{
		const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = lane % (4 / split) * 2;
		struct running r = {{NO_SCORE, NO_SCORE}, {0, 0}};

#pragma unroll
		for (int x = 0; x < steps; x++) {
			const bool there = at_of(x).codes != NULL;
			const uint32_t token = skv_sketch_pair(list->len, warp * pairs + pair_of(x));
			float score[1][4];
			of.template score<1>(x, q, &c->scale, score);
			if (!there || token + 2 > list->len)
				score[0][2] = score[0][3] = -INFINITY;
			if (!there)
				score[0][0] = score[0][1] = -INFINITY;
			add_scores(&r, score[0]);
		}
#pragma unroll
		for (int x = 0; x < 2; x++) {
			float max = r.max[x], sum;
#pragma unroll
			for (int to = 4 / split; to < 32; to *= 2)
				max = fmaxf(max, __shfl_xor_sync(~0u, max, to));
			sum = r.sum[x] * exp2_fast(r.max[x] - max);
#pragma unroll
			for (int to = 4 / split; to < 32; to *= 2)
				sum += __shfl_xor_sync(~0u, sum, to);
			if (lane < 4 / split)
				smem->part[head + x][warp] = {max > NO_SCORE ? max : -INFINITY, sum};
		}
	}
};

/*
 * Merges the warps' partial sums into the denominators; the caller has synchronized the block. A denominator is 1 if no
 * token of the sample has a sketch.
 */
DEVICE struct sampled_head sum_sample(const struct sketch_params *c, uint32_t len, uint32_t first_head, uint32_t heads,
                                      const struct sample_smem *smem)
{
	const uint32_t g = threadIdx.x / SAMPLE_WARPS, w = threadIdx.x % SAMPLE_WARPS;

	if (g >= HEAD_TILE)
		return {false, 0, 0};
	const struct partial_softmax mine = smem->part[g][w];
	float max = mine.max;
#pragma unroll
	for (int to = 1; to < (int)SAMPLE_WARPS; to *= 2)
		max = fmaxf(max, __shfl_xor_sync(~0u, max, to));
	float sum = mine.max == -INFINITY ? 0 : mine.sum * exp2_fast(mine.max - max);
#pragma unroll
	for (int to = 1; to < (int)SAMPLE_WARPS; to *= 2)
		sum += __shfl_xor_sync(~0u, sum, to);
	float lse = sum > 0 ? max + log2f(sum * skv_sketch_share(len)) : -INFINITY;
	if (c->sinks && g < heads)
		lse = add_sink(c->sinks, first_head + g, lse);
	return {w == 0, g, lse == -INFINITY ? 0 : lse};
}

#endif
