/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/prefill/hip.cu - HiP's lists of tiles: of chunks of tokens the best ones, in stages.
 *
 * Which token stands for a chunk hangs on the row, and few tokens of a chunk are looked at to find it. But tensor cores
 * have the scores of all of them sooner than those few are gathered: so one pass scores all chunks of all three sizes, and
 * what the stages do is choosing (select.cuh).
 */
#include <string.h>
#include "kernels/cuda/select/topk.cuh"
#include "kernels/cuda/prefill/weights.cuh"

#define CHOOSE_THREADS 256
#define WIDTH 66    /* of rows of scores: threads that walk through rows of their own meet in few banks */
#define CHUNK 64u   /* tokens of the first stage's chunks: a tile of keys */
#define HALVES 2u   /* of it in the second */
#define EIGHTHS 8u  /* and in the third */
#define CHUNK_SCORES (1 + HALVES + EIGHTHS)

struct stages : tile_rows {
	uint32_t keep[SKV_HIP_STAGES];
	uint32_t chunks; /* room for so many, a multiple of 4 */
	float *score;    /* [job of the band][row]: [chunks], [chunks][HALVES], [chunks][EIGHTHS] */
	uint32_t *keys;  /* [job of the band][row][room] where they do not fit shared memory */
	uint32_t room;   /* words: keys of a stage, and what the first two have chosen */
	uint32_t first_most, units_most; /* chosen in the first stage; keys of a stage */
};

/* The score of the token that stands for `size` tokens: from their first one on to the better half of them. */
DEVICE float stand_in(const float *w, uint32_t size)
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

/* Grid: blocks of the band's jobs, runs of keys. */
template <class T, int D>
__global__ void __launch_bounds__(THREADS) chunks_kernel(const __grid_constant__ struct stages c)
{
	extern __shared__ __align__(128) uint8_t memory[];
	float *const w = (float *)(memory + 2 * TILE * pitch<D>);
	const uint32_t block = blockIdx.x % c.blocks, row = threadIdx.x % ROWS, half = threadIdx.x / ROWS;
	float *const score = c.score + ((size_t)blockIdx.x * ROWS + row) * c.chunks * CHUNK_SCORES;
	struct rows<T, D> r;
	struct job j;

	c.job(blockIdx.x / c.blocks, &j);
	const uint32_t from = max(blockIdx.y * RUN, c.sp.sinks / CHUNK), to = min(j.end / CHUNK, blockIdx.y * RUN + RUN);
	if (from >= to)
		return;
	speakers_begin<T, D>(&r, &c, j.s, [&](uint32_t x) { return c.row(&j, block * ROWS + x); });
	sweep<T, D>(&r, &c.call, &j, from, to, shared_address(memory), [&](uint32_t tile, float (&s)[TILE / 8][4]) {
		spread<WIDTH>(s, w);
		__syncthreads();
		const float *mine = w + row * WIDTH;
		if (half == 0)
			score[tile] = stand_in(mine, CHUNK);
		mine += half * CHUNK / 2;
		score[c.chunks + HALVES * tile + half] = stand_in(mine, CHUNK / 2);
		*(float4 *)&score[(1 + HALVES) * c.chunks + EIGHTHS * tile + half * EIGHTHS / 2] =
			make_float4(stand_in(mine, 8), stand_in(mine + 8, 8), stand_in(mine + 16, 8), stand_in(mine + 24, 8));
	});
}

typedef team<CHOOSE_THREADS, 0, 0> whole;

/* The best `want` of n units, of scores that score(u) has. Returns how many there are; all may read them then. */
template <class F>
DEVICE uint32_t stage(struct select_room *room, uint32_t *key, uint32_t n, uint32_t want, uint32_t *ids, F score)
{
	const struct skv_topk_counts x = {n, 0, 0, want};
	count_clear<whole>(room);
	for (uint32_t u = KEY_QUAD * threadIdx.x; u < n; u += KEY_QUAD * CHOOSE_THREADS) {
		uint32_t k[KEY_QUAD];
#pragma unroll
		for (uint32_t y = 0; y < KEY_QUAD; y++)
			k[y] = u + y < n ? key_of(&x, u + y, true, score(u + y)) : 0;
		keep_keys(room, key, u, make_uint4(k[0], k[1], k[2], k[3]));
	}
	const uint32_t count = choose<whole>(key, &x, room, ids);
	__syncthreads();
	return count;
}

/* Grid: rows of a job, the band's jobs. */
__global__ void __launch_bounds__(CHOOSE_THREADS) choose_kernel(const __grid_constant__ struct stages c)
{
	extern __shared__ uint4 shared_keys[];
	__shared__ struct select_room room;
	const size_t number = (size_t)blockIdx.y * c.blocks * ROWS + blockIdx.x;
	uint32_t *const key = c.keys ? c.keys + number * c.room : (uint32_t *)shared_keys;
	uint32_t *const chunk = key + c.units_most, *const part = chunk + c.first_most;
	const float *of_chunk = c.score + number * c.chunks * CHUNK_SCORES;
	const float *of_half = of_chunk + c.chunks, *of_eighth = of_half + HALVES * c.chunks;
	struct job j;

	c.job(blockIdx.y, &j);
	const uint32_t tile = j.first + blockIdx.x / c.call.group, start = c.start(j.s, tile), head = c.row(&j, blockIdx.x).head;
	if (start >= j.s->len)
		return;
	const size_t list = ((size_t)(j.s - c.call.seq) * c.ret.tiles + tile) * c.ret.rows + head;
	const uint32_t skip = c.sp.sinks / CHUNK, end = max(c.seen(start) / CHUNK, skip);
	uint32_t *const ids = c.ret.ids + list * c.ret.stride;

	uint32_t n = stage(&room, key, end - skip, c.keep[0] / CHUNK, chunk, [&](uint32_t u) { return of_chunk[skip + u]; });
	n = stage(&room, key, HALVES * n, c.keep[1] / (CHUNK / HALVES), part, [&](uint32_t u) {
		return of_half[HALVES * (skip + chunk[u / HALVES]) + u % HALVES];
	});
	/* halves, numbered from the sequence's beginning */
	for (uint32_t x = threadIdx.x; x < n; x += CHOOSE_THREADS)
		part[x] = HALVES * (skip + chunk[part[x] / HALVES]) + part[x] % HALVES;
	__syncthreads();
	constexpr uint32_t each = EIGHTHS / HALVES;
	n = stage(&room, key, each * n, c.keep[2] / (CHUNK / EIGHTHS), ids, [&](uint32_t u) {
		return of_eighth[each * part[u / each] + u % each];
	});
	for (uint32_t x = threadIdx.x; x < n; x += CHOOSE_THREADS)
		ids[x] = each * part[ids[x] / each] + ids[x] % each;
	if (threadIdx.x == 0)
		c.ret.count[list] = n;
}

template <int D> constexpr int shared_bytes = 2 * TILE * pitch<D> + ROWS * WIDTH * sizeof(float);

cudaError_t skv_cuda_stages_init(void)
{
	const cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
	const cudaError_t e = for_shapes([](auto t, auto d) {
		typedef decltype(t) T;
		constexpr int D = d;
		return cudaFuncSetAttribute(chunks_kernel<T, D>, most, shared_bytes<D>);
	});
	return e ? e : cudaFuncSetAttribute(choose_kernel, most, KEY_BYTES);
}

/* What follows from bounds, and from how many tokens the stages keep. Returns bytes that a job leaves. */
static size_t stages_of(struct stages *c, const struct skv_shape *sh, const struct skv_batch *b,
                        const struct skv_sparse *sp, const uint32_t keep[SKV_HIP_STAGES])
{
	tile_rows_of(c, sh, b, sp);
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
	c->room = ceil_div(c->units_most + first + second, KEY_QUAD) * KEY_QUAD;
	const size_t keys = c->room * sizeof(uint32_t) > KEY_BYTES ? c->room : 0;
	return c->blocks * ROWS * (chunks * CHUNK_SCORES + keys) * sizeof(float);
}

static uint32_t jobs_of(const struct stages *c, const struct skv_shape *sh, const struct skv_batch *b)
{
	return b->n * c->most * sh->n_kv_heads;
}

size_t skv_cuda_stages_bytes(const struct skv_shape *sh, const struct skv_batch *bounds, const struct skv_sparse *sp)
{
	const uint32_t all[SKV_HIP_STAGES] = {SKV_MAX_TOKENS, SKV_MAX_TOKENS, SKV_MAX_TOKENS};
	struct stages c = {};
	const size_t bytes = stages_of(&c, sh, bounds, sp, all);
	return band_bytes(jobs_of(&c, sh, bounds), bytes);
}

void skv_cuda_tile_stages(const struct skv_shape *sh, const struct skv_batch *b, const void *q, const struct skv_sparse *sp,
                          const uint32_t keep[SKV_HIP_STAGES], const struct skv_tiles *ret, const struct skv_work *work)
{
	cudaStream_t stream = stream_of(work);
	struct stages c = {};

	strided_of(&c, sh, b, q, sp);
	c.call.scale = 1; /* what is exact stays so */
	c.ret = *ret;
	const size_t bytes = stages_of(&c, sh, b, sp, keep), room = c.room * sizeof(uint32_t);
	const uint32_t jobs = jobs_of(&c, sh, b), band = band_of(jobs, bytes);
	c.score = (float *)((uint8_t *)work->mem + skv_cuda_scratch_at(sh));
	if (room > KEY_BYTES)
		c.keys = (uint32_t *)(c.score + (size_t)band * c.blocks * ROWS * c.chunks * CHUNK_SCORES);
	for (c.first = 0; c.first < jobs; c.first += band) {
		const uint32_t now = jobs - c.first < band ? jobs - c.first : band;
		for_shape(sh, [&](auto t, auto d) {
			typedef decltype(t) T;
			constexpr int D = d;
			chunks_kernel<T, D><<<dim3(now * c.blocks, c.runs), THREADS, shared_bytes<D>, stream>>>(c);
		});
		choose_kernel<<<dim3(c.each * c.call.group, now), CHOOSE_THREADS, c.keys ? 0 : room, stream>>>(c);
	}
}
