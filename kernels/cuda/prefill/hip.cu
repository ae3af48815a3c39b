/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/prefill/hip.cu - makes HiP's lists of tiles: the best chunks of tokens for each tile of rows, selected
 * in stages.
 *
 * The token that represents a chunk depends on the query row, and HiP reads few tokens of a chunk to find the token.
 * But tensor cores compute the scores of all tokens in less time than it takes to gather those few. So one pass scores
 * all chunks of all three sizes, and the stages are only top-k selections (topk.cuh).
 */
#include <string.h>
#include "kernels/cuda/select/topk.cuh"
#include "kernels/cuda/prefill/weights.cuh"

#define SELECT_THREADS 256
#define WIDTH 66    /* floats of a row of scores: threads that each walk through a row have few bank conflicts */
#define CHUNK 64u   /* tokens of a chunk in the first stage: a tile of keys */
#define HALVES 2u   /* halves of a chunk, which the second stage selects */
#define EIGHTHS 8u  /* eighths of a chunk, which the third stage selects */
#define CHUNK_SCORES (1 + HALVES + EIGHTHS)

struct hip_params : tile_params {
	uint32_t keep[SKV_HIP_STAGES];
	uint32_t chunks;                 /* number of chunks of a row, a multiple of 4 */
	/* Scores of a row: [item of the band][row] of [chunks], then [chunks][HALVES], then [chunks][EIGHTHS]. */
	float *score;
	uint32_t *keys;                  /* [item of the band][row][key_words], if keys do not fit in shared memory */
	uint32_t key_words;              /* words of `keys` for a row: keys of a stage, and selections of two stages */
	uint32_t first_most, units_most; /* max selected chunks of the first stage; max keys of a stage */
};

/*
 * Returns the score of the token that represents `size` tokens: a binary search from the first token always takes the
 * half whose first token has the larger score.
 */
DEVICE float representative_score(const float *w, uint32_t size)
{
	uint32_t at = 0;
	float best = w[0];
#pragma unroll
	for (uint32_t half = size / 2; half > 0; half /= 2) {
		const float other = w[at + half];
		at += other > best ? half : 0;
		best = other > best ? other : best;
	}
	return best;
}

/* Computes the scores of chunks, halves and eighths. The grid is blocks of the band's items (x) by runs of keys (y). */
template <class T, int D>
__global__ void __launch_bounds__(THREADS) chunk_scores_kernel(const __grid_constant__ struct hip_params c)
{
	SHARED_MEMORY(uint8_t, memory, 128);
	float *const w = (float *)(memory + 2 * TILE * pitch<D>);
	const uint32_t block = blockIdx.x % c.blocks, row = threadIdx.x % ROWS, half = threadIdx.x / ROWS;
	float *const score = c.score + ((size_t)blockIdx.x * ROWS + row) * c.chunks * CHUNK_SCORES;
	struct rows<T, D> r;
	struct rows_item j;

	c.item(blockIdx.x / c.blocks, &j);
	const uint32_t from = max(blockIdx.y * RUN, c.sp.sinks / CHUNK);
	const uint32_t to = min(j.end / CHUNK, blockIdx.y * RUN + RUN);
	if (from >= to)
		return;
	begin_representatives<T, D>(&r, &c, j.s, [&](uint32_t x) { return c.row(&j, block * ROWS + x); });
	for_each_tile_scores<T, D>(&r, &c.call, &j, from, to, shared_address(memory),
	                           [&](uint32_t tile, float (&s)[TILE / 8][4]) {
		store_tile<WIDTH>(s, w);
		__syncthreads();
		const float *mine = w + row * WIDTH;
		if (half == 0)
			score[tile] = representative_score(mine, CHUNK);
		mine += half * CHUNK / 2;
		score[c.chunks + HALVES * tile + half] = representative_score(mine, CHUNK / 2);
		*(float4 *)&score[(1 + HALVES) * c.chunks + EIGHTHS * tile + half * EIGHTHS / 2] =
			make_float4(representative_score(mine, 8), representative_score(mine + 8, 8),
			            representative_score(mine + 16, 8), representative_score(mine + 24, 8));
	});
}

typedef team<SELECT_THREADS, 0, 0> whole;

/*
 * Selects the best `want` of n candidates, by score(u), and writes them to ids[]. Returns their number; all threads may
 * read ids[] afterwards.
 */
template <class F>
DEVICE uint32_t stage(struct topk_smem *smem, uint32_t *key, uint32_t n, uint32_t want, uint32_t *ids, F score)
{
	const struct skv_topk_counts x = {n, 0, 0, want};
	clear_bins<whole>(smem);
	for (uint32_t u = KEY_QUAD * threadIdx.x; u < n; u += KEY_QUAD * SELECT_THREADS) {
		uint32_t k[KEY_QUAD];
#pragma unroll
		for (uint32_t y = 0; y < KEY_QUAD; y++)
			k[y] = u + y < n ? topk_key(&x, u + y, true, score(u + y)) : 0;
		put_keys(smem, key, u, make_uint4(k[0], k[1], k[2], k[3]));
	}
	const uint32_t count = select_topk<whole>(key, &x, smem, ids);
	__syncthreads();
	return count;
}

/* Selects a row's chunks in three stages. The grid is rows of an item (x) by the band's items (y). */
__global__ void __launch_bounds__(SELECT_THREADS) hip_select_kernel(const __grid_constant__ struct hip_params c)
{
	SHARED_MEMORY(uint4, shared_keys, 16);
	__shared__ struct topk_smem smem;
	const size_t number = (size_t)blockIdx.y * c.blocks * ROWS + blockIdx.x;
	uint32_t *const key = c.keys ? c.keys + number * c.key_words : (uint32_t *)shared_keys;
	uint32_t *const chunk = key + c.units_most, *const part = chunk + c.first_most;
	const float *of_chunk = c.score + number * c.chunks * CHUNK_SCORES;
	const float *of_half = of_chunk + c.chunks, *of_eighth = of_half + HALVES * c.chunks;
	struct rows_item j;

	c.item(blockIdx.y, &j);
	const uint32_t tile = j.first + blockIdx.x / c.call.group, start = c.start(j.s, tile);
	const uint32_t head = c.row(&j, blockIdx.x).head;
	if (start >= j.s->len)
		return;
	const size_t list = ((size_t)(j.s - c.call.seq) * c.ret.tiles + tile) * c.ret.rows + head;
	const uint32_t skip = c.sp.sinks / CHUNK, end = max(c.seen(start) / CHUNK, skip);
	uint32_t *const ids = c.ret.ids + list * c.ret.stride;

	uint32_t n = stage(&smem, key, end - skip, c.keep[0] / CHUNK, chunk,
	                   [&](uint32_t u) { return of_chunk[skip + u]; });
	n = stage(&smem, key, HALVES * n, c.keep[1] / (CHUNK / HALVES), part, [&](uint32_t u) {
		return of_half[HALVES * (skip + chunk[u / HALVES]) + u % HALVES];
	});
	/* part[] becomes the selected halves of chunks, numbered from the sequence's beginning. */
	for (uint32_t x = threadIdx.x; x < n; x += SELECT_THREADS)
		part[x] = HALVES * (skip + chunk[part[x] / HALVES]) + part[x] % HALVES;
	__syncthreads();
	constexpr uint32_t each = EIGHTHS / HALVES;
	n = stage(&smem, key, each * n, c.keep[2] / (CHUNK / EIGHTHS), ids, [&](uint32_t u) {
		return of_eighth[each * part[u / each] + u % each];
	});
	for (uint32_t x = threadIdx.x; x < n; x += SELECT_THREADS)
		ids[x] = each * part[ids[x] / each] + ids[x] % each;
	if (threadIdx.x == 0)
		c.ret.count[list] = n;
}

template <int D> constexpr int shared_bytes = 2 * TILE * pitch<D> + ROWS * WIDTH * sizeof(float);

cudaError_t skv_cuda_hip_init(void)
{
	const cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
	const cudaError_t e = for_shapes([](auto t, auto d) {
		typedef decltype(t) T;
		constexpr int D = d;
		return cudaFuncSetAttribute(chunk_scores_kernel<T, D>, most, shared_bytes<D>);
	});
	return e ? e : cudaFuncSetAttribute(hip_select_kernel, most, KEY_BYTES);
}

/*
 * Sets the parameters that follow from the bounds of a batch and from the numbers of tokens that the stages keep.
 * Returns the bytes of workspace of an item.
 */
static size_t init_hip_params(struct hip_params *c, const struct skv_shape *sh, const struct skv_batch *b,
                              const struct skv_sparse *sp, const uint32_t keep[SKV_HIP_STAGES])
{
	init_tile_params(c, sh, b, sp);
	c->window = sp->window;
	memcpy(c->keep, keep, sizeof c->keep);
	c->chunks = ceil_div(b->max_len, 4 * CHUNK) * 4;
	const uint32_t chunks = c->chunks;
	const uint32_t first = keep[0] / CHUNK < chunks ? keep[0] / CHUNK : chunks;
	const uint32_t second = keep[1] / (CHUNK / HALVES) < HALVES * first ? keep[1] / (CHUNK / HALVES) : HALVES * first;
	const uint32_t third = EIGHTHS / HALVES * second;
	c->first_most = first;
	c->units_most = chunks > HALVES * first ? chunks : HALVES * first;
	c->units_most = ceil_div(c->units_most > third ? c->units_most : third, KEY_QUAD) * KEY_QUAD;
	c->key_words = ceil_div(c->units_most + first + second, KEY_QUAD) * KEY_QUAD;
	const size_t keys = c->key_words * sizeof(uint32_t) > KEY_BYTES ? c->key_words : 0;
	return c->blocks * ROWS * (chunks * CHUNK_SCORES + keys) * sizeof(float);
}

static uint32_t n_items_of(const struct hip_params *c, const struct skv_shape *sh, const struct skv_batch *b)
{
	return b->n * c->most * sh->n_kv_heads;
}

size_t skv_cuda_hip_bytes(const struct skv_shape *sh, const struct skv_batch *bounds, const struct skv_sparse *sp)
{
	const uint32_t all[SKV_HIP_STAGES] = {SKV_MAX_TOKENS, SKV_MAX_TOKENS, SKV_MAX_TOKENS};
	struct hip_params c = {};
	const size_t bytes = init_hip_params(&c, sh, bounds, sp, all);
	return band_bytes(n_items_of(&c, sh, bounds), bytes);
}

void skv_cuda_hip_lists(const struct skv_shape *sh, const struct skv_batch *b, const void *q,
                        const struct skv_sparse *sp,
                        const uint32_t keep[SKV_HIP_STAGES], const struct skv_tile_lists *ret, const struct skv_workspace *work)
{
	cudaStream_t stream = stream_of(work);
	struct hip_params c = {};

	init_weights_params(&c, sh, b, q, sp);
	c.call.scale = {1, 0}; /* scores stay exact without scale; a softcap would keep their order */
	c.ret = *ret;
	const size_t bytes = init_hip_params(&c, sh, b, sp, keep), smem = c.key_words * sizeof(uint32_t);
	const uint32_t items = n_items_of(&c, sh, b), band = band_size(items, bytes);
	c.score = (float *)((uint8_t *)work->mem + skv_cuda_workspace_offset(sh));
	if (smem > KEY_BYTES)
		c.keys = (uint32_t *)(c.score + (size_t)band * c.blocks * ROWS * c.chunks * CHUNK_SCORES);
	for (c.first = 0; c.first < items; c.first += band) {
		const uint32_t now = items - c.first < band ? items - c.first : band;
		for_shape(sh, [&](auto t, auto d) {
			typedef decltype(t) T;
			constexpr int D = d;
			launch_grid(chunk_scores_kernel<T, D>, dim3(now * c.blocks, c.runs), THREADS, shared_bytes<D>, stream, c);
		});
		launch_grid(hip_select_kernel, dim3(c.each * c.call.group, now), SELECT_THREADS, c.keys ? 0 : smem, stream, c);
	}
}
