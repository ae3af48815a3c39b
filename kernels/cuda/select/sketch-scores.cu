/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/sketch-scores.cu - softmax weights of all tokens by their sketches, to memory; and the selection by
 * these where sketch-topk.cu cannot make it at once.
 *
 * Three launches: the scan leaves products (sketch-scan.cuh) in the workspace, then the heads' denominators are made, then
 * weights. As many sequences at a time as the workspace is sized for.
 */
#include "kernels/cuda/select/sketch-scan.cuh"
#include "kernels/cuda/select/sketch.h"

#define SCAN_WARPS 4u
#define WEIGH_THREADS 128u
#define SLICE_BYTES (64u << 20) /* of a workspace, about; one sequence in any case */

struct scores_params {
	struct sketch_params s;
	struct skv_scores to;
	uint32_t first; /* sequence of this slice */
	uint32_t units, tile_heads, tiles, records;
	uint2 *product;  /* [seq][tile][units][SKETCH_PAIRS][records] */
	uint32_t *scale; /* [seq][tile][units][SKETCH_PAIRS] */
	float2 *peaks;   /* [seq][tile][units][tile_heads] */
	float4 *head;    /* [seq][q head]: head_weights_of() */
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

/* Grid: units, head tiles, sequences. */
template <int D, int bits, int split>
__global__ void __launch_bounds__(32 * SCAN_WARPS) scan_kernel(const __grid_constant__ struct scores_params c)
{
	__shared__ struct sketch_query query;
	__shared__ struct page_at pages[SCAN_WARPS][2 * UNIT_PAGES];
	const struct skv_kseq *s = &c.s.seq[c.first + blockIdx.z];
	const uint32_t warp = threadIdx.x / 32, unit = blockIdx.x * SCAN_WARPS + warp;
	const uint32_t end = (s->len + SKETCH_UNIT - 1) / SKETCH_UNIT;
	const size_t at = ((size_t)blockIdx.z * c.tiles + blockIdx.y) * c.units;
	const struct tile t = tile_of(&c, blockIdx.y);
	sketch_scan<D, bits, split> scan;

	if (blockIdx.x * SCAN_WARPS >= end)
		return;
	scan.begin(&c.s, s, t.h, pages[warp], unit, min(unit + 1, end));
	for (uint32_t g = warp; g < t.heads; g += SCAN_WARPS)
		make_sketch_query<D, bits>(&c.s, s, t.h, t.head, g, &query);
	__syncthreads();
	if (warp == 0)
		scan.query(&query, t.heads);
	__syncthreads();
	if (blockIdx.x == 0 && threadIdx.x < t.heads)
		c.head[(size_t)blockIdx.z * c.s.n_heads + t.head + threadIdx.x] = head_weights_of(&query, threadIdx.x, 0);
	if (unit < end)
		scan.run(&query, t.heads, unit, 1, unit + 1,
		         {c.product + at * SKETCH_PAIRS * c.records, c.scale + at * SKETCH_PAIRS, c.records}, unit,
		         c.peaks + at * c.tile_heads, c.tile_heads);
}

/* Grid: head tiles, sequences; a warp a head. */
__global__ void __launch_bounds__(32 * HEAD_TILE) denominator_kernel(const __grid_constant__ struct scores_params c)
{
	const struct tile t = tile_of(&c, blockIdx.x);
	const uint32_t g = threadIdx.x / 32, units = (c.s.seq[c.first + blockIdx.y].len + SKETCH_UNIT - 1) / SKETCH_UNIT;
	const float2 *peaks = c.peaks + ((size_t)blockIdx.y * c.tiles + blockIdx.x) * c.units * c.tile_heads;
	struct partial_softmax all = {-INFINITY, 0};

	if (g >= t.heads)
		return;
	for (uint32_t u = threadIdx.x % 32; u < units; u += 32) {
		const float2 x = peaks[u * c.tile_heads + g];
		all = merge_softmax(all, {x.x, x.y});
	}
	all = warp_merge_softmax(all);
	if (threadIdx.x % 32 == 0)
		c.head[(size_t)blockIdx.y * c.s.n_heads + t.head + g].w = add_sink(c.s.sinks, t.head + g, denominator(all));
}

/* A pair's weights of the heads of a row of scores, reduced. */
template <int shift>
DEVICE float2 row_weights(const struct scores_params *c, uint32_t row, uint32_t p)
{
	const uint32_t each = c->s.n_heads / c->to.rows, tiles = (c->s.group + c->tile_heads - 1) / c->tile_heads;
	float2 w = make_float2(0, 0);

	for (uint32_t head = row * each; head < (row + 1) * each; head++) {
		const uint32_t h = head / c->s.group, in = head % c->s.group, g = in % c->tile_heads;
		const size_t at = (((size_t)blockIdx.y * c->tiles + h * tiles + in / c->tile_heads) * c->units) * SKETCH_PAIRS + p;
		const uint32_t scales = c->scale[at];
		const uint2 two = c->product[at * c->records + g / 2];
		const float4 by = c->head[(size_t)blockIdx.y * c->s.n_heads + head];
		const float x = exp2_fast(head_weight(&c->s.scale, by, product<shift>(g % 2 ? two.x >> 16 : two.x), bf16_low(scales)));
		const float y = exp2_fast(head_weight(&c->s.scale, by, product<shift>(g % 2 ? two.y >> 16 : two.y), bf16_high(scales)));
		const bool a = (scales & 0xffff) < SCALE_NO_SKETCH, b = scales >> 16 < SCALE_NO_SKETCH;
		if (a)
			w.x = c->to.sum ? w.x + x : x > w.x || x != x ? x : w.x;
		if (b)
			w.y = c->to.sum ? w.y + y : y > w.y || y != y ? y : w.y;
	}
	return w;
}

/* Grid: pairs of tokens, sequences. */
template <int shift>
__global__ void __launch_bounds__(WEIGH_THREADS) weigh_kernel(const __grid_constant__ struct scores_params c)
{
	const struct skv_kseq *s = &c.s.seq[c.first + blockIdx.y];
	const uint32_t p = blockIdx.x * WEIGH_THREADS + threadIdx.x, token = 2 * p, len = s->len;
	const uint32_t end = skv_pages_of(len) * SKV_PAGE_TOKENS;

	for (uint32_t row = 0; row < c.to.rows; row++) {
		const size_t at = (size_t)(c.first + blockIdx.y) * c.to.rows + row;
		float2 w = make_float2(token < len, token + 1 < len); /* without a full page there are no sketches */
		if (len >= SKV_PAGE_TOKENS && token < end)
			w = row_weights<shift>(&c, row, p);
		float sum = w.x + w.y;
#pragma unroll
		for (int lane = 1; lane < (int)SKV_PAGE_TOKENS / 2; lane *= 2)
			sum += __shfl_xor_sync(~0u, sum, lane);
		if (token >= end)
			continue;
		if (c.to.token)
			*(float2 *)&c.to.token[at * c.to.token_stride + token] = w;
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
		scan_kernel<D, bits, split><<<dim3(ceil_div(c.units, SCAN_WARPS), c.tiles, n), 32 * SCAN_WARPS, 0, stream>>>(c);
	}
	template <int D, int bits> void run(void) const
	{
		if (D <= 128 && c.tile_heads <= HEAD_TILE / 2)
			scan<D, bits, D <= 128 ? 2 : 1>();
		else
			scan<D, bits, 1>();
		denominator_kernel<<<dim3(c.tiles, n), 32 * HEAD_TILE, 0, stream>>>(c);
		weigh_kernel<sketch_shift<D, bits>><<<dim3(ceil_div(max_len, 2 * WEIGH_THREADS), n), WEIGH_THREADS, 0, stream>>>(c);
	}
};

static struct scores_params params_of(const struct skv_shape *sh, uint32_t max_len)
{
	struct scores_params c = {};
	const uint32_t group = sh->n_heads / sh->n_kv_heads;

	c.units = ceil_div(max_len, SKETCH_UNIT);
	c.tile_heads = group < HEAD_TILE ? group : HEAD_TILE;
	c.tiles = n_head_tiles(sh);
	c.records = (c.tile_heads + 1) / 2;
	return c;
}

/* Of a sequence. */
static size_t pairs_of(const struct scores_params *c)
{
	return (size_t)c->tiles * c->units * SKETCH_PAIRS;
}
static size_t heads_bytes(const struct skv_shape *sh, const struct scores_params *c)
{
	return sh->n_heads * sizeof(float4) + (size_t)c->tiles * c->units * c->tile_heads * sizeof(float2);
}
static size_t sequence_bytes(const struct skv_shape *sh, const struct scores_params *c)
{
	return heads_bytes(sh, c) + pairs_of(c) * (c->records * sizeof(uint2) + sizeof(uint32_t));
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
	c->head = (float4 *)mem;
	c->product = (uint2 *)(c->head + (size_t)n * sh->n_heads);
	c->peaks = (float2 *)(c->product + n * pairs_of(c) * c->records);
	c->scale = (uint32_t *)(c->peaks + (size_t)n * c->tiles * c->units * c->tile_heads);
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
