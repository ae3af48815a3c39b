/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/decode/decode-tokens.cu - attention over listed tokens, in any slots: see decode.cuh for what a warp does.
 *
 * A list is short beside the sequence that it was selected from, so there is little to read for each, and a grid of blocks that
 * go from item to item would mostly begin and end. Here a block has one item: a share of a list's tiles, for one head tile. A
 * list of a few hundred tokens has one block, longer ones two, four or eight (token_blocks()), so that one sequence's lists keep many
 * SMs busy, too. The blocks leave partial results in the second cache, and the last one merges them, in the order of the tiles. How
 * a list is split follows from its own length, so the bits of a result depend on the sequence alone.
 */
#include "kernels/cuda/decode/decode-kernel.cuh"
#include "kernels/cuda/decode/parts.cuh"
#include "kernels/cuda/runtime/overlap.cuh"

#define TOKEN_WARPS (warps<128, MODE_TOKENS>)
#define TOKEN_THREADS (32 * TOKEN_WARPS)

struct tokens_params {
	struct decode_params d;
	uint32_t *arrived; /* [item of the launch]: blocks that have left their results; 0 between launches */
	uint32_t blocks;   /* of the longest list */
};

/* Blocks of a list of so many tiles. */
static inline __host__ __device__ uint32_t token_blocks(uint32_t tiles)
{
	return tiles <= 32 ? 1 : tiles <= 64 ? 2 : tiles < 128 ? 4 : MAX_CHUNKS;
}

template <int D> struct tokens_smem {
	struct warp_results<D, MODE_TOKENS> results;
	struct work_item item[TOKEN_WARPS];
	uint32_t slots[TOKEN_WARPS][BATCH * 16];
	bool last; /* all other blocks of the list are done */
};

/* The block's item, in the warp's own copy. False: the list has no tiles for it. */
template <int D> DEVICE bool begin_tokens(const struct tokens_params *t, struct work_item *j)
{
	const struct decode_params *c = &t->d;
	const uint32_t item = blockIdx.x / t->blocks, i = item / c->heads, x = item % c->heads, rows = c->list.rows;

	j->request = (c->first_request / rows + i) * rows + x / c->request_head_tiles;
	const uint32_t tiles = request_tiles(c, j->request);
	j->chunk = blockIdx.x % t->blocks;
	j->chunks = token_blocks(tiles);
	if (j->chunk >= j->chunks)
		return false;
	const uint32_t per = (tiles + j->chunks - 1) / j->chunks;
	head_tile(c, c->first_request / rows + i, x, j);
	j->len = c->seq[j->i].len;
	j->table = c->seq[j->i].table + (size_t)c->layer * c->seq[j->i].layer_stride;
	j->first = j->chunk * per;
	j->n = min(per, tiles - j->first);
	j->stream = threadIdx.x / 32;
	__syncwarp();
	return true;
}

/* From the results of the block's warps. */
template <int D> __device__ static void merge_own(const struct tokens_params *t, const struct work_item *j, const struct tokens_smem<D> *s)
{
	float *to = partial_of(&t->d, j, j->chunk, D);

	for (uint32_t u = threadIdx.x; u < j->heads * (D / 4); u += TOKEN_THREADS) {
		const uint32_t head = u / (D / 4), d = u % (D / 4) * 4;
		const struct part p = add_parts<TOKEN_WARPS>(&s->results.max[0][head], &s->results.sum[0][head], HEAD_TILE,
		                                             &s->results.acc[0][head][d], HEAD_TILE * D, TOKEN_WARPS);
		if (j->chunks == 1) {
			write_part(&t->d, j, head, D, d, p);
			continue;
		}
		store16(to + 2 * HEAD_TILE + head * D + d, p.acc, evict_last_policy());
		if (d == 0) {
			to[head] = p.max;
			to[HEAD_TILE + head] = p.sum;
		}
	}
}

/* From the partial results of the list's blocks. */
template <int D> __device__ static void merge_blocks(const struct tokens_params *t, const struct work_item *j)
{
	const uint32_t stride = partial_floats(t->d.tile_heads, D);
	const float *from = partial_of(&t->d, j, 0, D);

	for (uint32_t u = threadIdx.x; u < j->heads * (D / 4); u += TOKEN_THREADS) {
		const uint32_t head = u / (D / 4), d = u % (D / 4) * 4;
		write_part(&t->d, j, head, D, d, add_parts<MAX_CHUNKS>(from + head, from + HEAD_TILE + head, stride,
		                                                       from + 2 * HEAD_TILE + head * D + d, stride, j->chunks));
	}
}

/* Grid: blocks of a list, head tiles, sequences; all in one dimension. */
template <class T, int D>
__global__ void __launch_bounds__(TOKEN_THREADS, D <= 128 ? 2 : 1) tokens_kernel(const __grid_constant__ struct tokens_params t)
{
	extern __shared__ __align__(128) uint8_t memory[];
	struct tokens_smem<D> *s = (struct tokens_smem<D> *)memory;
	struct work_item *j = &s->item[threadIdx.x / 32];
	struct tile_batch tiles = {.slots = s->slots[threadIdx.x / 32]};
	struct warp_state<T, D> w;

	await_previous();
	let_next_begin();
	if (!begin_tokens<D>(&t, j))
		return;
	w.once = evict_first_policy();
	locate_tiles<D, MODE_TOKENS>(&t.d, j, 0, &tiles);
	load_first_tiles<MODE_TOKENS>(&w, &t.d, j, &tiles, 0);
	load_q(&w, &t.d, j);
	attend_item<MODE_TOKENS>(&w, &t.d, j, &tiles);
	store_warp_result<MODE_TOKENS>(&s->results, &w, j);
	__syncthreads();
	merge_own<D>(&t, j, s);
	if (j->chunks == 1)
		return;
	__threadfence();
	__syncthreads();
	if (threadIdx.x == 0)
		s->last = atomicInc(&t.arrived[blockIdx.x / t.blocks], j->chunks - 1) == j->chunks - 1;
	__syncthreads();
	if (!s->last)
		return;
	__threadfence();
	merge_blocks<D>(&t, j);
}

template <class T, int D> static void launch(const struct tokens_params *t, uint32_t items, cudaStream_t stream)
{
	launch_overlapped(tokens_kernel<T, D>, *t, items * t->blocks, TOKEN_THREADS, sizeof(struct tokens_smem<D>), 0, stream);
}

template <class T> static void launch_dim(const struct tokens_params *t, uint32_t head_dim, uint32_t items, cudaStream_t stream)
{
	switch (head_dim) {
	case 64: launch<T, 64>(t, items, stream); break;
	case 96: launch<T, 96>(t, items, stream); break;
	case 128: launch<T, 128>(t, items, stream); break;
	default: launch<T, 256>(t, items, stream);
	}
}

void skv_cuda_decode_listed(const struct decode_params *c, uint32_t dtype, uint32_t head_dim, uint32_t n, uint32_t max_tiles,
                            uint32_t *arrived, cudaStream_t stream)
{
	struct tokens_params t = {*c, arrived, token_blocks(max_tiles)};
	const uint32_t most = MAX_TOKEN_ITEMS / c->heads; /* sequences */

	for (uint32_t from = 0; from < n; from += most) {
		const uint32_t items = min(most, n - from) * c->heads;
		t.d.first_request = from * c->list.rows;
		if (dtype == SKV_F16)
			launch_dim<F16>(&t, head_dim, items, stream);
		else if (dtype == SKV_FP8)
			launch_dim<FP8>(&t, head_dim, items, stream);
		else
			launch_dim<BF16>(&t, head_dim, items, stream);
	}
}

template <class T, int D> static cudaError_t init(void)
{
	return cudaFuncSetAttribute(tokens_kernel<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
	                            (int)sizeof(struct tokens_smem<D>));
}

template <class T> static cudaError_t init_dtype(void)
{
	cudaError_t e = init<T, 64>();
	e = e ? e : init<T, 96>();
	e = e ? e : init<T, 128>();
	return e ? e : init<T, 256>();
}

cudaError_t skv_cuda_decode_listed_init(void)
{
	cudaError_t e = init_dtype<F16>();
	e = e ? e : init_dtype<BF16>();
	return e ? e : init_dtype<FP8>();
}
