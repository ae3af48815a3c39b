/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/prefill/kascade.cu - makes Kascade's lists of tiles: the top-k tokens before a tile by the attention
 * weights of the tile's first row.
 *
 * A work item has as many tiles as make 64 rows, one row for each tile and q head of the GQA group. With the
 * denominators of the rows' softmax (weights.cuh), a second pass over the keys computes weights and their sums over the
 * GQA group. Top-k (topk.cuh) selects tokens by these sums.
 */
#include "kernels/cuda/select/topk.cuh"
#include "kernels/cuda/prefill/weights.cuh"

#define SELECT_THREADS 1024
#define WIDTH 72 /* floats of a row of weights: pairs that a warp writes are in different banks */

struct kascade_params : tile_params {
	struct skv_budget top;
	uint32_t floor;
	float *weight; /* [item of the band][tile of the item][stride]: sums of weights over the GQA group */
	uint32_t stride;
	bool shared; /* keys are in shared memory */
};

/* Adds up the weights of each tile's row over the GQA group. The grid is the band's items (x) by runs of keys (y). */
template <class T, int D>
__global__ void __launch_bounds__(THREADS)
reduce_weights_kernel(const __grid_constant__ struct kascade_params c)
{
	SHARED_MEMORY(uint8_t, memory, 128);
	float *const w = (float *)(memory + 2 * TILE * pitch<D>);
	const uint32_t group = c.call.group;
	struct rows_item j;

	c.item(blockIdx.x, &j);
	const uint32_t from = blockIdx.y * RUN, to = min((j.end + TILE - 1) / TILE, from + RUN);
	if (from >= to)
		return;
	for (uint32_t block = 0; block < c.blocks; block++) {
		struct rows<T, D> r;
		float lse[2];
		begin_representatives<T, D>(&r, &c, j.s, [&](uint32_t x) { return c.row(&j, block * ROWS + x); });
		lse_load(&c, blockIdx.x * c.blocks + block, lse);
		for_each_tile_scores<T, D>(&r, &c.call, &j, from, to, shared_address(memory),
		                           [&](uint32_t tile, float (&s)[TILE / 8][4]) {
			scores_to_weights(s, lse);
			store_tile<WIDTH>(s, w);
			__syncthreads();
			for (uint32_t x = threadIdx.x; x < c.each * TILE; x += THREADS) {
				/* The tile's heads in this block. An item has several blocks only if it is one tile. */
				const uint32_t first = c.blocks > 1 ? 0 : x / TILE * group;
				const uint32_t heads = c.blocks > 1 ? min(group - block * ROWS,
				                                          (uint32_t)ROWS) : group;
				float *at = c.weight + (size_t)(blockIdx.x * c.each + x / TILE) * c.stride + tile * TILE + x % TILE;
				float sum = block ? *at : 0;
				for (uint32_t g = 0; g < heads; g++)
					sum += w[(first + g) * WIDTH + x % TILE];
				*at = sum;
			}
		});
	}
}

/* Selects the top-k tokens of a tile. The grid is tiles of an item (x) by the band's items (y). */
__global__ void __launch_bounds__(SELECT_THREADS)
kascade_select_kernel(const __grid_constant__ struct kascade_params c)
{
	SHARED_MEMORY(uint4, shared_keys, 16);
	__shared__ struct topk_smem smem;
	typedef team<SELECT_THREADS, 0, 0> all;
	float *const score = c.weight + (size_t)(blockIdx.y * c.each + blockIdx.x) * c.stride;
	uint32_t *key = c.shared ? (uint32_t *)shared_keys : (uint32_t *)score; /* else keys replace scores */
	struct rows_item j;

	c.item(blockIdx.y, &j);
	const uint32_t tile = j.first + blockIdx.x, n = c.start(j.s, tile);
	if (n >= j.s->len)
		return;
	const size_t list = ((size_t)(j.s - c.call.seq) * c.ret.tiles + tile) * c.ret.rows + j.h;
	const struct skv_topk_counts x = {n, 0, 0, skv_budget_of(c.top, n, c.floor)};

	clear_bins<all>(&smem);
	for (uint32_t u = KEY_QUAD * threadIdx.x; u < n; u += KEY_QUAD * SELECT_THREADS) { /* n is a multiple of 16 */
		const bool resident = skv_pte_resident(j.table[u / SKV_PAGE_TOKENS]);
		const float4 s = *(const float4 *)&score[u];
		put_keys(&smem, key, u,
		         make_uint4(topk_key(&x, u, resident, s.x), topk_key(&x, u + 1, resident, s.y),
		                    topk_key(&x, u + 2, resident, s.z),
		                    topk_key(&x, u + 3, resident, s.w)));
	}
	const uint32_t count = select_topk<all>(key, &x, &smem, c.ret.ids + list * c.ret.stride);
	if (threadIdx.x == 0)
		c.ret.count[list] = count;
}

template <int D> constexpr int shared_bytes = 2 * TILE * pitch<D> + ROWS * WIDTH * sizeof(float);

cudaError_t skv_cuda_kascade_init(void)
{
	const cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
	const cudaError_t e = for_shapes([](auto t, auto d) {
		typedef decltype(t) T;
		constexpr int D = d;
		const cudaError_t e = cudaFuncSetAttribute(denominators_kernel<T, D, struct kascade_params>,
		                                           most, 2 * TILE * pitch<D>);
		return e ? e : cudaFuncSetAttribute(reduce_weights_kernel<T, D>, most, shared_bytes<D>);
	});
	return e ? e : cudaFuncSetAttribute(kascade_select_kernel, most, KEY_BYTES);
}

/* n_items_of(): number of work items of a call. item_bytes(): bytes of workspace of an item. */
static uint32_t n_items_of(const struct tile_params *c, const struct skv_shape *sh, const struct skv_batch *b)
{
	return b->n * c->most * sh->n_kv_heads;
}
static size_t item_bytes(const struct tile_params *c, uint32_t max_len)
{
	return denominators_bytes(c->blocks, c->runs) + (size_t)c->each * ceil_div(max_len,
	                                                                           TILE) * TILE * sizeof(float);
}

size_t skv_cuda_kascade_bytes(const struct skv_shape *sh, const struct skv_batch *bounds, const struct skv_sparse *sp)
{
	struct tile_params c = {};

	init_tile_params(&c, sh, bounds, sp);
	return band_bytes(n_items_of(&c, sh, bounds), item_bytes(&c, bounds->max_len));
}

void skv_cuda_kascade_lists(const struct skv_shape *sh, const struct skv_batch *b, const void *q,
                            const struct skv_sparse *sp,
                            struct skv_budget top, uint32_t floor, const struct skv_tile_lists *ret, const struct skv_workspace *work)
{
	uint8_t *const mem = (uint8_t *)work->mem + skv_cuda_workspace_offset(sh);
	cudaStream_t stream = stream_of(work);
	struct kascade_params c = {};

	init_weights_params(&c, sh, b, q, sp);
	init_tile_params(&c, sh, b, sp);
	c.ret = *ret;
	c.top = top;
	c.floor = floor;
	c.stride = ceil_div(b->max_len, TILE) * TILE;
	c.shared = keys_fit_shared(b->max_len);
	const uint32_t items = n_items_of(&c, sh, b), band = band_size(items, item_bytes(&c, b->max_len));
	c.weight = (float *)denominators_at(&c, mem, band);
	for (c.first = 0; c.first < items; c.first += band) {
		const uint32_t now = items - c.first < band ? items - c.first : band;
		for_shape(sh, [&](auto t, auto d) {
			typedef decltype(t) T;
			constexpr int D = d;
			denominators<T, D>(&c, now, stream);
			launch_grid(reduce_weights_kernel<T, D>, dim3(now, c.runs), THREADS, shared_bytes<D>, stream, c);
		});
		launch_grid(kascade_select_kernel, dim3(c.each, now), SELECT_THREADS, c.shared ? key_bytes(b->max_len) : 0, stream, c);
	}
}
