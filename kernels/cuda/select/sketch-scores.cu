/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/sketch-scores.cu - computes softmax weights of all tokens by their sketches and writes them to
 * memory; selects tokens by these weights if sketch-topk.cu cannot select in one launch.
 *
 * There are three launches: the first one estimates the heads' denominators from samples, the second one (the scan)
 * stores scores in the workspace, and the third one computes weights. Each processes as many sequences at a time as the
 * workspace is sized for.
 */
#include "kernels/cuda/select/sketch-sample.cuh"
#include "kernels/cuda/select/sketch.h"

#define SCAN_WARPS 4u
#define ENOUGH_WARPS 4096u /* number of warps that keeps a device busy */
#define WEIGH_THREADS 128u
#define WEIGH_TOKENS 4u /* number of tokens of a thread */
#define SLICE_BYTES (64u << 20) /* approximate bytes of a workspace, which holds at least one sequence */

struct scores_params {
	struct sketch_params s;
	struct skv_scores to;
	uint32_t first; /* index of the first sequence of this slice */
	uint32_t tokens; /* max tokens of a sequence, rounded up to whole pages */
	/*
	 * Number of chunks of a state page; 2^32 divided by that number, rounded up, or 0 if a state page has 1 chunk.
	 */
	uint32_t chunks, per_chunks;
	uint32_t each; /* number of chunks of a warp, which is even */
	uint32_t tile_heads, tiles, wide; /* max q heads of a tile; tiles of a sequence; pairs of heads of a tile */
	float2 *score; /* [seq][tile][tokens][wide] scores */
	float *lse;    /* [seq][q head]: log2 of denominators */
};

/* The q heads of a head tile: the index of their kv head, the index of the first, and their number. */
struct tile {
	uint32_t h, head, heads;
};
DEVICE struct tile tile_of(const struct scores_params *c, uint32_t x)
{
	const uint32_t each = (c->s.group + c->tile_heads - 1) / c->tile_heads, before = x % each * c->tile_heads;
	return {x / each, x / each * c->s.group + before, min(c->tile_heads, c->s.group - before)};
}

DEVICE float2 *scores_of(const struct scores_params *c, uint32_t seq, uint32_t tile)
{
	return c->score + ((size_t)seq * c->tiles + tile) * c->tokens * c->wide;
}

/* First launch: estimates the denominators of a head tile. The grid is head tiles (x) by sequences (y). */
template <int D, int bits, int split>
__global__ void __launch_bounds__(32 * SAMPLE_WARPS) denominator_kernel(const __grid_constant__ struct scores_params c)
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
		make_sketch_query<D, bits, sketch_codes<D, bits, split, 1>::factor>(&c.s, s, t.h, t.head, warp, &query);
	__syncthreads();
	if (warp == 0)
		sketch_codes<D, bits, split, 1>::query(&query, t.heads);
	__syncthreads();
	sample.run(&c.s, &list, &query, &smem);
	__syncthreads();
	const struct sampled_head head = sum_sample(&c.s, s->len, t.head, t.heads, &smem);
	if (head.mine && head.g < t.heads)
		c.lse[(size_t)blockIdx.y * c.s.n_heads + t.head + head.g] = head.lse;
}

/*
 * Loads a chunk of a sequence's sketches. Chunks are numbered through all state pages; each page has `chunks` of them.
 */
template <class Shape, class Steps>
DEVICE struct chunk load_from_pool(const struct scores_params *c, const struct sketch_list *list, uint32_t nth_chunk, Steps *to)
{
	const struct sketch_params *s = &c->s;
	const uint32_t nth = c->per_chunks ? __umulhi(nth_chunk, c->per_chunks) : nth_chunk;
	/*
	 * The last chunk of a state page repeats some tokens of the chunk before it, instead of reading bytes that are
	 * not sketches.
	 */
	const uint32_t row = min((nth_chunk - nth * c->chunks) * Shape::tokens, s->page_tokens - Shape::tokens);
	const uint32_t first = nth * s->page_tokens + row;
	const skv_pte entry = sketch_entry(list, nth, first / SKV_PAGE_TOKENS, Shape::pages);
	const uint32_t resident = resident_entries(entry, Shape::pages);
	const uint8_t *part = list->pool + skv_pte_id(__shfl_sync(~0u, entry, 31)) * s->page_bytes;
	const struct from_memory from = {evict_first_policy()};

	const uint32_t own = row + lane_token<Shape::step / 16>();
	if (resident >> 31)
		load_chunk<Shape>(to, part + own * Shape::row_bytes, part + s->page_tokens * Shape::row_bytes + own * 2, from);
	return {first, Shape::tokens, resident, (resident >> 31) != 0};
}

/* A sink that stores the scores of a lane's two tokens, for two heads each. */
template <int split> struct store_sink {
	float2 *score; /* [token][pair of heads], of the sequence's head tile */
	uint32_t wide, tokens;

	__device__ __forceinline__ void add(const struct chunk *at, uint32_t first, const float of[4]) const
	{
		const uint32_t two = threadIdx.x % (4 / split);
#pragma unroll
		for (int t = 0; t < 2; t++) {
			const uint32_t in_chunk = first + lane_token<split>() + t * 8 * split, token = at->first + in_chunk;
			if (two < wide && in_chunk < at->tokens && token < tokens)
				score[token * (size_t)wide + two] = make_float2(of[2 * t], of[2 * t + 1]);
		}
	}
	__device__ __forceinline__ void add_any(const struct chunk *at, uint32_t first, const float of[4], const enum sketch_kind kind[2]) const
	{
		(void)kind;
		add(at, first, of);
	}
};

/*
 * Second launch: stores the scores of all tokens. The grid is chunks, several for each warp (x) by head tiles (y) by
 * sequences (z).
 */
template <int D, int bits, int split>
__global__ void __launch_bounds__(32 * SCAN_WARPS) scan_kernel(const __grid_constant__ struct scores_params c)
{
	typedef chunk_shape<D, bits, split> shape;
	__shared__ struct sketch_query query;
	const struct skv_kseq *s = &c.s.seq[c.first + blockIdx.z];
	const uint32_t warp = threadIdx.x / 32, first = (blockIdx.x * SCAN_WARPS + warp) * c.each;
	const uint32_t chunks = (s->len + c.s.page_tokens - 1) / c.s.page_tokens * c.chunks;
	const struct tile t = tile_of(&c, blockIdx.y);
	const struct sketch_list list = sketch_list_of(&c.s, s, t.h);
	const struct store_sink<split> sink = {scores_of(&c, blockIdx.z, blockIdx.y), c.wide, c.tokens};
	sketch_steps<D, bits, split, true, shape::steps> steps[2]; /* of the current chunk, and of the next one */
	struct chunk at[2];

	if (blockIdx.x * SCAN_WARPS * c.each >= chunks)
		return;
	at[0] = load_from_pool<shape>(&c, &list, first, &steps[0]);
	for (uint32_t g = warp; g < HEAD_TILE; g += SCAN_WARPS)
		if (g < t.heads)
			make_sketch_query<D, bits, sketch_codes<D, bits, split, 1>::factor>(&c.s, s, t.h, t.head, g, &query);
		else
			query.head[g] = {0, 0, MAGIC_BITS};
	__syncthreads();
	if (warp == 0)
		sketch_codes<D, bits, split, 1>::query(&query, t.heads);
	__syncthreads();
	for (uint32_t i = 0; i < c.each; i += 2)
#pragma unroll
		for (uint32_t x = 0; x < 2; x++) {
			at[1 - x] = load_from_pool<shape>(&c, &list, first + i + x + 1, &steps[1 - x]);
			if (at[x].first < s->len)
				score_chunk<shape, 1>(&steps[x], &query, &c.s.scale, &at[x], is_plain<shape>(&at[x], 0, s->len), s->len, sink);
		}
}

/*
 * Computes the weights of a thread's tokens, reduced over the heads that share a row of scores; 0 for tokens at `end`
 * and after it.
 */
DEVICE void row_weights(const struct scores_params *c, uint32_t row, uint32_t first, uint32_t end, float w[WEIGH_TOKENS])
{
	const uint32_t each = c->s.n_heads / c->to.rows, tiles = (c->s.group + c->tile_heads - 1) / c->tile_heads;
	float2 two[WEIGH_TOKENS] = {};

	for (uint32_t head = row * each; head < (row + 1) * each; head++) {
		const uint32_t h = head / c->s.group, in = head % c->s.group, g = in % c->tile_heads;
		const float2 *score = scores_of(c, blockIdx.y, h * tiles + in / c->tile_heads) + g / 2;
		const float lse = c->lse[(size_t)blockIdx.y * c->s.n_heads + head];
#pragma unroll
		for (uint32_t i = 0; i < WEIGH_TOKENS; i++) {
			const uint32_t token = first + i * WEIGH_THREADS;
			/* odd heads: loaded with the even head before */
			if (token < end && (g % 2 == 0 || head == row * each))
				two[i] = score[token * (size_t)c->wide];
		}
#pragma unroll
		for (uint32_t i = 0; i < WEIGH_TOKENS; i++) {
			const float x = first + i * WEIGH_THREADS < end ? exp2_fast((g % 2 ? two[i].y : two[i].x) - lse) : 0;
			w[i] = c->to.sum ? w[i] + x : x > w[i] || x != x ? x : w[i];
		}
	}
}

/* Third launch: computes weights from scores. The grid is tokens, WEIGH_TOKENS per thread (x) by sequences (y). */
__global__ void __launch_bounds__(WEIGH_THREADS) weigh_kernel(const __grid_constant__ struct scores_params c)
{
	const struct skv_kseq *s = &c.s.seq[c.first + blockIdx.y];
	const uint32_t first = blockIdx.x * WEIGH_THREADS * WEIGH_TOKENS + threadIdx.x, len = s->len;
	const uint32_t end = skv_pages_of(len) * SKV_PAGE_TOKENS;

	for (uint32_t row = 0; row < c.to.rows; row++) {
		const size_t at = (size_t)(c.first + blockIdx.y) * c.to.rows + row;
		float w[WEIGH_TOKENS] = {};
		if (len >= SKV_PAGE_TOKENS)
			row_weights(&c, row, first, end, w);
		else /* no full page, so no sketches: all weights are 1 */
			w[0] = first < len;
#pragma unroll
		for (uint32_t i = 0; i < WEIGH_TOKENS; i++) {
			const uint32_t token = first + i * WEIGH_THREADS;
			float sum = w[i];
#pragma unroll
			for (int lane = 1; lane < (int)SKV_PAGE_TOKENS; lane *= 2)
				sum += __shfl_xor_sync(~0u, sum, lane);
			if (c.to.token && token < end)
				c.to.token[at * c.to.token_stride + token] = w[i];
			if (c.to.page && token < end && token % SKV_PAGE_TOKENS == 0)
				c.to.page[at * c.to.page_stride + token / SKV_PAGE_TOKENS] = sum;
		}
	}
}

/* ---- launches ---------------------------------------------------------------------------------- */

struct scan_launch {
	struct scores_params c;
	uint32_t n, max_len;
	cudaStream_t stream;

	template <int D, int bits, int split> void scan(void) const
	{
		typedef chunk_shape<D, bits, split> shape;
		struct scores_params p = c;
		/* A state page has at least as many tokens as a chunk. */
		p.chunks = ceil_div(p.s.page_tokens, shape::tokens);
		p.per_chunks = p.chunks > 1 ? UINT32_MAX / p.chunks + 1 : 0;
		const uint32_t chunks = ceil_div(max_len, p.s.page_tokens) * p.chunks, warps = ceil_div(chunks, 4) * p.tiles * n;
		p.each = warps < ENOUGH_WARPS ? 2 : 4;
		launch_grid(denominator_kernel<D, bits, split>, dim3(p.tiles, n), 32 * SAMPLE_WARPS, 0, stream, p);
		launch_grid(scan_kernel<D, bits, split>, dim3(ceil_div(chunks, SCAN_WARPS * p.each), p.tiles, n), 32 * SCAN_WARPS, 0, stream, p);
	}
	template <int D, int bits> void run(void) const
	{
		if (D <= 128 && c.tile_heads <= HEAD_TILE / 2)
			scan<D, bits, D <= 128 ? 2 : 1>();
		else
			scan<D, bits, 1>();
		launch_grid(weigh_kernel, dim3(ceil_div(max_len, WEIGH_THREADS * WEIGH_TOKENS), n), WEIGH_THREADS, 0, stream, c);
	}
};

static struct scores_params params_of(const struct skv_shape *sh, uint32_t max_len)
{
	struct scores_params c = {};
	const uint32_t group = sh->n_heads / sh->n_kv_heads;

	c.tokens = skv_pages_of(max_len) * SKV_PAGE_TOKENS;
	c.tile_heads = group < HEAD_TILE ? group : HEAD_TILE;
	c.tiles = n_head_tiles(sh);
	c.wide = (c.tile_heads + 1) / 2;
	return c;
}

/*
 * sequence_scores(): number of stored pairs of scores of one sequence. sequence_bytes(): workspace bytes of one
 * sequence.
 */
static size_t sequence_scores(const struct scores_params *c)
{
	return (size_t)c->tiles * c->tokens * c->wide;
}
static size_t sequence_bytes(const struct skv_shape *sh, const struct scores_params *c)
{
	return sh->n_heads * sizeof(float) + sequence_scores(c) * sizeof(float2);
}

/* Number of sequences of a slice, if each takes `bytes` bytes of the workspace. */
static uint32_t slice_of(size_t bytes, uint32_t n)
{
	const size_t fit = SLICE_BYTES / bytes;
	return fit == 0 ? 1 : fit < n ? (uint32_t)fit : n;
}

/* Computes the weights of sequences [first, first + n). The workspace of the launches begins at `mem`. */
static void score_slice(const struct skv_shape *sh, const struct skv_batch *b, const void *q, const struct skv_scores *to,
                        uint32_t first, uint32_t n, uint8_t *mem, const struct skv_workspace *work)
{
	struct scan_launch launch = {params_of(sh, b->max_len), n, b->max_len, stream_of(work)};
	struct scores_params *c = &launch.c;

	c->s = sketch_params_of(sh, b, q);
	c->to = *to;
	c->first = first;
	c->score = (float2 *)mem;
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

/* Bytes of a sequence's weights, if the selection reads weights from memory. */
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
	/* If sequences are shorter, a slice has more of them, but not more bytes. */
	const size_t slice = each > SLICE_BYTES ? each : SLICE_BYTES;

	return n * each < slice ? n * each : slice;
}
