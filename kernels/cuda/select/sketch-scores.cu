/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/sketch-scores.cu - softmax weights of all tokens by their sketches, to memory; and the selection by
 * these where sketch-topk.cu cannot make it at once.
 *
 * Three launches: the heads' denominators are made of samples, the scan leaves scores in the workspace, then weights are made.
 * As many sequences at a time as the workspace is sized for.
 */
#include "kernels/cuda/select/sketch-sample.cuh"
#include "kernels/cuda/select/sketch.h"

#define SCAN_WARPS 4u
#define WEIGH_THREADS 128u
#define SLICE_BYTES (64u << 20) /* of a workspace, about; one sequence in any case */

struct scores_params {
	struct sketch_params s;
	struct skv_scores to;
	uint32_t first; /* sequence of this slice */
	uint32_t tokens; /* of a sequence, at most: whole units */
	uint32_t tile_heads, tiles, wide; /* q heads of a tile, tiles of a sequence, pairs of heads of a tile */
	float4 *score; /* [seq][tile][tokens / 2][wide]; of tokens t and t + TOKENS_APART, in the order of t */
	float *lse;    /* [seq][q head]: log2 of denominators */
};

/* The q heads of tile x, in the group of a kv head. */
struct tile {
	uint32_t h, head, heads;
};
DEVICE struct tile tile_of(const struct scores_params *c, uint32_t x)
{
	const uint32_t each = (c->s.group + c->tile_heads - 1) / c->tile_heads, before = x % each * c->tile_heads;
	return {x / each, x / each * c->s.group + before, min(c->tile_heads, c->s.group - before)};
}

DEVICE float4 *scores_of(const struct scores_params *c, uint32_t seq, uint32_t tile)
{
	return c->score + ((size_t)seq * c->tiles + tile) * (c->tokens / 2) * c->wide;
}

/* Grid: head tiles, sequences. */
template <int D, int bits, int split>
__global__ void __launch_bounds__(SAMPLE_THREADS) denominator_kernel(const __grid_constant__ struct scores_params c)
{
	__shared__ struct sketch_query query;
	__shared__ struct sample_smem smem;
	const struct skv_kseq *s = &c.s.seq[c.first + blockIdx.y];
	const uint32_t warp = threadIdx.x / 32;
	const struct tile t = tile_of(&c, blockIdx.x);
	const struct sketch_list list = sketch_list_of(&c.s, s, t.h);
	sketch_sample<D, bits, split> sample;

	sample.locate(&c.s, &list);
	sample.begin();
	if (warp < t.heads)
		make_sketch_query<D, bits, step_codes<D, bits, split>::factor>(&c.s, s, t.h, t.head, warp, &query);
	__syncthreads();
	if (warp == 0)
		step_codes<D, bits, split>::query(&query, t.heads);
	__syncthreads();
	sample.run(&c.s, &list, &query, &smem);
	__syncthreads();
	const struct sampled_head head = sum_sample(&c.s, s->len, t.head, t.heads, &smem);
	if (head.mine && head.g < t.heads)
		c.lse[(size_t)blockIdx.y * c.s.n_heads + t.head + head.g] = head.lse;
}

/* Stores scores, of two tokens for two heads. */
template <int split> struct store_sink {
	float4 *score; /* of the sequence's head tile: [pair of tokens][pair of heads] */
	uint32_t wide;

	__device__ __forceinline__ void add(uint32_t unit, uint32_t x, const float of[4]) const
	{
		const uint32_t two = threadIdx.x % (4 / split), token = step_token<split>(unit, x);
		const uint32_t pair = token / SKV_PAGE_TOKENS * TOKENS_APART + token % TOKENS_APART;
		if (two < wide)
			score[pair * (size_t)wide + two] = make_float4(of[0], of[1], of[2], of[3]);
	}
	__device__ __forceinline__ void add_any(uint32_t unit, uint32_t x, const float of[4], const enum sketch_kind kind[2]) const
	{
		(void)kind;
		add(unit, x, of);
	}
};

/* Grid: units, head tiles, sequences. */
template <int D, int bits, int split>
__global__ void __launch_bounds__(32 * SCAN_WARPS) scan_kernel(const __grid_constant__ struct scores_params c)
{
	__shared__ struct sketch_query query;
	__shared__ struct sketch_at pages[SCAN_WARPS][2 * UNIT_PAGES];
	const struct skv_kseq *s = &c.s.seq[c.first + blockIdx.z];
	const uint32_t warp = threadIdx.x / 32, unit = blockIdx.x * SCAN_WARPS + warp;
	const uint32_t end = (s->len + SKETCH_UNIT - 1) / SKETCH_UNIT;
	const struct tile t = tile_of(&c, blockIdx.y);
	const struct sketch_list list = sketch_list_of(&c.s, s, t.h);
	sketch_scan<D, bits, split, true, 2> scan;

	if (blockIdx.x * SCAN_WARPS >= end)
		return;
	scan.locate(&c.s, &list, unit, 1);
	scan.begin(pages[warp], unit, min(unit + 1, end));
	for (uint32_t g = warp; g < HEAD_TILE; g += SCAN_WARPS)
		if (g < t.heads)
			make_sketch_query<D, bits, step_codes<D, bits, split>::factor>(&c.s, s, t.h, t.head, g, &query);
		else
			query.head[g] = {0, 0, MAGIC_BITS};
	__syncthreads();
	if (warp == 0)
		step_codes<D, bits, split>::query(&query, t.heads);
	__syncthreads();
	if (unit < end)
		scan.run(&query, unit, 1, unit + 1, store_sink<split>{scores_of(&c, blockIdx.z, blockIdx.y), c.wide});
}

/* A pair's weights of the heads of a row of scores, reduced. */
DEVICE float2 row_weights(const struct scores_params *c, uint32_t row, uint32_t p)
{
	const uint32_t each = c->s.n_heads / c->to.rows, tiles = (c->s.group + c->tile_heads - 1) / c->tile_heads;
	float2 w = make_float2(0, 0);

	for (uint32_t head = row * each; head < (row + 1) * each; head++) {
		const uint32_t h = head / c->s.group, in = head % c->s.group, g = in % c->tile_heads;
		const float4 two = scores_of(c, blockIdx.y, h * tiles + in / c->tile_heads)[p * (size_t)c->wide + g / 2];
		const float lse = c->lse[(size_t)blockIdx.y * c->s.n_heads + head];
		const float x = exp2_fast((g % 2 ? two.y : two.x) - lse), y = exp2_fast((g % 2 ? two.w : two.z) - lse);
		w.x = c->to.sum ? w.x + x : x > w.x || x != x ? x : w.x;
		w.y = c->to.sum ? w.y + y : y > w.y || y != y ? y : w.y;
	}
	return w;
}

/* Grid: pairs of tokens, sequences. */
__global__ void __launch_bounds__(WEIGH_THREADS) weigh_kernel(const __grid_constant__ struct scores_params c)
{
	const struct skv_kseq *s = &c.s.seq[c.first + blockIdx.y];
	const uint32_t p = blockIdx.x * WEIGH_THREADS + threadIdx.x, len = s->len;
	const uint32_t token = p / TOKENS_APART * SKV_PAGE_TOKENS + p % TOKENS_APART;
	const uint32_t end = skv_pages_of(len) * SKV_PAGE_TOKENS;

	for (uint32_t row = 0; row < c.to.rows; row++) {
		const size_t at = (size_t)(c.first + blockIdx.y) * c.to.rows + row;
		float2 w = make_float2(token < len, token + TOKENS_APART < len); /* without a full page there are no sketches */
		if (len >= SKV_PAGE_TOKENS && token < end)
			w = row_weights(&c, row, p);
		float sum = w.x + w.y;
#pragma unroll
		for (int lane = 1; lane < (int)SKV_PAGE_TOKENS / 2; lane *= 2)
			sum += __shfl_xor_sync(~0u, sum, lane);
		if (token >= end)
			continue;
		if (c.to.token) {
			c.to.token[at * c.to.token_stride + token] = w.x;
			c.to.token[at * c.to.token_stride + token + TOKENS_APART] = w.y;
		}
		if (c.to.page && token % SKV_PAGE_TOKENS == 0)
			c.to.page[at * c.to.page_stride + token / SKV_PAGE_TOKENS] = sum;
	}
}

/* ---- launches ---------------------------------------------------------------------------------- */

struct scan_launch {
	struct scores_params c;
	uint32_t n, max_len;
	cudaStream_t stream;

	template <int D, int bits, int split> void scan(void) const
	{
		denominator_kernel<D, bits, split><<<dim3(c.tiles, n), SAMPLE_THREADS, 0, stream>>>(c);
		scan_kernel<D, bits, split><<<dim3(ceil_div(c.tokens / SKETCH_UNIT, SCAN_WARPS), c.tiles, n), 32 * SCAN_WARPS, 0, stream>>>(c);
	}
	template <int D, int bits> void run(void) const
	{
		if (D <= 128 && c.tile_heads <= HEAD_TILE / 2)
			scan<D, bits, D <= 128 ? 2 : 1>();
		else
			scan<D, bits, 1>();
		weigh_kernel<<<dim3(ceil_div(max_len, 2 * WEIGH_THREADS), n), WEIGH_THREADS, 0, stream>>>(c);
	}
};

static struct scores_params params_of(const struct skv_shape *sh, uint32_t max_len)
{
	struct scores_params c = {};
	const uint32_t group = sh->n_heads / sh->n_kv_heads;

	c.tokens = ceil_div(max_len, SKETCH_UNIT) * SKETCH_UNIT;
	c.tile_heads = group < HEAD_TILE ? group : HEAD_TILE;
	c.tiles = n_head_tiles(sh);
	c.wide = (c.tile_heads + 1) / 2;
	return c;
}

/* Of a sequence. */
static size_t sequence_scores(const struct scores_params *c)
{
	return (size_t)c->tiles * (c->tokens / 2) * c->wide;
}
static size_t sequence_bytes(const struct skv_shape *sh, const struct scores_params *c)
{
	return sh->n_heads * sizeof(float) + sequence_scores(c) * sizeof(float4);
}

/* Sequences of a slice that take so many bytes each. */
static uint32_t slice_of(size_t bytes, uint32_t n)
{
	const size_t fit = SLICE_BYTES / bytes;
	return fit == 0 ? 1 : fit < n ? (uint32_t)fit : n;
}

/* Weights of sequences [first, first + n), with a workspace from `mem` on. */
static void score_slice(const struct skv_shape *sh, const struct skv_batch *b, const void *q, const struct skv_scores *to,
                        uint32_t first, uint32_t n, uint8_t *mem, const struct skv_workspace *work)
{
	struct scan_launch launch = {params_of(sh, b->max_len), n, b->max_len, stream_of(work)};
	struct scores_params *c = &launch.c;

	c->s = sketch_params_of(sh, b, q);
	c->to = *to;
	c->first = first;
	c->score = (float4 *)mem;
	c->lse = (float *)(c->score + n * sequence_scores(c));
	sketch_dispatch(sh, launch);
}

void skv_cuda_score_sketches(const struct skv_shape *sh, const struct skv_batch *b, const void *q,
                             const struct skv_scores *to, const struct skv_workspace *work)
{
	const struct scores_params c = params_of(sh, b->max_len);
	const uint32_t slice = b->n ? slice_of(sequence_bytes(sh, &c), b->n) : 0;

	for (uint32_t i = 0; i < b->n; i += slice)
		score_slice(sh, b, q, to, i, b->n - i < slice ? b->n - i : slice,
		            (uint8_t *)work->mem + skv_cuda_workspace_offset(sh), work);
}

/* Weights in memory, and a selection by them. */
static size_t weights_bytes(const struct skv_shape *sh, uint32_t max_len)
{
	return (size_t)sh->n_kv_heads * skv_pages_of(max_len) * SKV_PAGE_TOKENS * sizeof(float);
}

static void select_in_slices(const struct skv_shape *sh, const struct skv_batch *b, const void *q, bool sum,
                             const struct skv_select *select, struct skv_index_list *list, const struct skv_workspace *work)
{
	const struct scores_params c = params_of(sh, b->max_len);
	const size_t weights = weights_bytes(sh, b->max_len);
	const uint32_t slice = b->n ? slice_of(sequence_bytes(sh, &c) + weights, b->n) : 0;
	uint8_t *mem = (uint8_t *)work->mem + skv_cuda_workspace_offset(sh);
	struct skv_scores to = {};

	to.rows = sh->n_kv_heads;
	to.sum = sum;
	to.token_stride = skv_pages_of(b->max_len) * SKV_PAGE_TOKENS;
	for (uint32_t i = 0; i < b->n; i += slice) {
		struct skv_batch some = *b;
		struct skv_index_list part = *list;

		some.seq += i;
		some.n = b->n - i < slice ? b->n - i : slice;
		part.ids += (size_t)i * list->rows * list->stride;
		part.count += (size_t)i * list->rows;
		to.token = (float *)mem;
		score_slice(sh, &some, q, &to, 0, some.n, mem + some.n * weights, work);
		skv_cuda_select(sh, &some, &to, true, select, &part, work);
	}
}

void skv_cuda_select_sketches(const struct skv_shape *sh, const struct skv_batch *b, const void *q, bool sum,
                              const struct skv_select *select, struct skv_index_list *list, const struct skv_workspace *work)
{
	list->max_count = max_selected(select, b->max_len);
	if (skv_cuda_topk_of_sketches(sh, b->max_len))
		skv_cuda_launch_topk_of_sketches(sh, b, q, sum, select, list, work);
	else
		select_in_slices(sh, b, q, sum, select, list, work);
}

size_t skv_cuda_sketch_bytes(const struct skv_shape *sh, uint32_t n, uint32_t max_len)
{
	const struct scores_params c = params_of(sh, max_len);
	const size_t each = sequence_bytes(sh, &c) + weights_bytes(sh, max_len);
	const size_t slice = each > SLICE_BYTES ? each : SLICE_BYTES; /* of shorter sequences there are more, of no more bytes */

	return n * each < slice ? n * each : slice;
}
