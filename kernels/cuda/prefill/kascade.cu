/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/prefill/kascade.cu - Kascade's tiles: the tokens before a tile that its first row looks at most.
 *
 * A job is as many tiles as have 64 rows between them, times the q heads of a group. With the denominators of their softmax
 * (strided.cuh) a second pass over the keys makes weights, and their sums over the group, which are chosen by as any
 * others are (select.cuh).
 */
#include "kernels/cuda/select/topk.cuh"
#include "kernels/cuda/prefill/weights.cuh"

#define BEST_THREADS 1024
#define WIDTH 72 /* of rows of weights: a warp's writes, of pairs, lie in different banks */

struct best : tile_rows {
	struct skv_budget top;
	uint32_t floor;
	float *weight; /* [job of the band][tile of it][stride]: sums over the group */
	uint32_t stride;
	bool shared; /* of keys: in shared memory */
};

/* Grid: the band's jobs, runs of keys. */
template <class T, int D> __global__ void __launch_bounds__(THREADS) pool_kernel(const __grid_constant__ struct best c)
{
	extern __shared__ __align__(128) uint8_t memory[];
	float *const w = (float *)(memory + 2 * TILE * pitch<D>);
	const uint32_t group = c.call.group;
	struct job j;

	c.job(blockIdx.x, &j);
	const uint32_t from = blockIdx.y * RUN, to = min((j.end + TILE - 1) / TILE, from + RUN);
	if (from >= to)
		return;
	for (uint32_t block = 0; block < c.blocks; block++) {
		struct rows<T, D> r;
		float lse[2];
		speakers_begin<T, D>(&r, &c, j.s, [&](uint32_t x) { return c.row(&j, block * ROWS + x); });
		lse_load(&c, blockIdx.x * c.blocks + block, lse);
		sweep<T, D>(&r, &c.call, &j, from, to, shared_address(memory), [&](uint32_t tile, float (&s)[TILE / 8][4]) {
			weights(s, lse);
			spread<WIDTH>(s, w);
			__syncthreads();
			for (uint32_t x = threadIdx.x; x < c.each * TILE; x += THREADS) {
				/* the tile's heads that are in this block, of which there are several only if a job is one tile */
				const uint32_t first = c.blocks > 1 ? 0 : x / TILE * group;
				const uint32_t heads = c.blocks > 1 ? min(group - block * ROWS, (uint32_t)ROWS) : group;
				float *at = c.weight + (size_t)(blockIdx.x * c.each + x / TILE) * c.stride + tile * TILE + x % TILE;
				float sum = block ? *at : 0;
				for (uint32_t g = 0; g < heads; g++)
					sum += w[(first + g) * WIDTH + x % TILE];
				*at = sum;
			}
		});
	}
}

/* Grid: tiles of a job, the band's jobs. */
__global__ void __launch_bounds__(BEST_THREADS) best_kernel(const __grid_constant__ struct best c)
{
	extern __shared__ uint4 shared_keys[];
	__shared__ struct select_room room;
	typedef team<BEST_THREADS, 0, 0> all;
	float *const score = c.weight + (size_t)(blockIdx.y * c.each + blockIdx.x) * c.stride;
	uint32_t *key = c.shared ? (uint32_t *)shared_keys : (uint32_t *)score; /* else in place */
	struct job j;

	c.job(blockIdx.y, &j);
	const uint32_t tile = j.first + blockIdx.x, n = c.start(j.s, tile);
	if (n >= j.s->len)
		return;
	const size_t list = ((size_t)(j.s - c.call.seq) * c.ret.tiles + tile) * c.ret.rows + j.h;
	const struct skv_topk_counts x = {n, 0, 0, skv_budget_of(c.top, n, c.floor)};

	count_clear<all>(&room);
	for (uint32_t u = KEY_QUAD * threadIdx.x; u < n; u += KEY_QUAD * BEST_THREADS) { /* n is a multiple of 16 */
		const bool there = skv_pte_resident(j.table[u / SKV_PAGE_TOKENS]);
		const float4 s = *(const float4 *)&score[u];
		keep_keys(&room, key, u,
		          make_uint4(key_of(&x, u, there, s.x), key_of(&x, u + 1, there, s.y), key_of(&x, u + 2, there, s.z),
		                     key_of(&x, u + 3, there, s.w)));
	}
	const uint32_t count = choose<all>(key, &x, &room, c.ret.ids + list * c.ret.stride);
	if (threadIdx.x == 0)
		c.ret.count[list] = count;
}

template <int D> constexpr int shared_bytes = 2 * TILE * pitch<D> + ROWS * WIDTH * sizeof(float);

cudaError_t skv_cuda_tiles_init(void)
{
	const cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
	const cudaError_t e = for_shapes([](auto t, auto d) {
		typedef decltype(t) T;
		constexpr int D = d;
		const cudaError_t e = cudaFuncSetAttribute(sums_kernel<T, D, struct best>, most, 2 * TILE * pitch<D>);
		return e ? e : cudaFuncSetAttribute(pool_kernel<T, D>, most, shared_bytes<D>);
	});
	return e ? e : cudaFuncSetAttribute(best_kernel, most, KEY_BYTES);
}

/* Jobs of a call; bytes that one leaves. */
static uint32_t jobs_of(const struct tile_rows *c, const struct skv_shape *sh, const struct skv_batch *b)
{
	return b->n * c->most * sh->n_kv_heads;
}
static size_t job_bytes(const struct tile_rows *c, uint32_t max_len)
{
	return sums_bytes(c->blocks, c->runs) + (size_t)c->each * ceil_div(max_len, TILE) * TILE * sizeof(float);
}

size_t skv_cuda_best_bytes(const struct skv_shape *sh, const struct skv_batch *bounds, const struct skv_sparse *sp)
{
	struct tile_rows c = {};

	tile_rows_of(&c, sh, bounds, sp);
	return band_bytes(jobs_of(&c, sh, bounds), job_bytes(&c, bounds->max_len));
}

void skv_cuda_tile_best(const struct skv_shape *sh, const struct skv_batch *b, const void *q, const struct skv_sparse *sp,
                        struct skv_budget top, uint32_t floor, const struct skv_tiles *ret, const struct skv_work *work)
{
	uint8_t *const mem = (uint8_t *)work->mem + skv_cuda_scratch_at(sh);
	cudaStream_t stream = stream_of(work);
	struct best c = {};

	strided_of(&c, sh, b, q, sp);
	tile_rows_of(&c, sh, b, sp);
	c.ret = *ret;
	c.top = top;
	c.floor = floor;
	c.stride = ceil_div(b->max_len, TILE) * TILE;
	c.shared = select_fits(b->max_len);
	const uint32_t jobs = jobs_of(&c, sh, b), band = band_of(jobs, job_bytes(&c, b->max_len));
	c.weight = (float *)sums_at(&c, mem, band);
	for (c.first = 0; c.first < jobs; c.first += band) {
		const uint32_t now = jobs - c.first < band ? jobs - c.first : band;
		for_shape(sh, [&](auto t, auto d) {
			typedef decltype(t) T;
			constexpr int D = d;
			sums<T, D>(&c, now, stream);
			pool_kernel<T, D><<<dim3(now, c.runs), THREADS, shared_bytes<D>, stream>>>(c);
		});
		best_kernel<<<dim3(c.each, now), BEST_THREADS, c.shared ? key_bytes(b->max_len) : 0, stream>>>(c);
	}
}
