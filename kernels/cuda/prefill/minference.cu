/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/prefill/minference.cu - MInference's lists of tiles: of a segment the tokens, and the distances, that its first rows look
 * at most.
 *
 * A job is a segment's first 64 rows, of one q head. With the denominators of their softmax (strided.cuh) a second pass
 * over the keys adds weights up by columns and by diagonals, row after row, so that sums of equals are equal. A diagonal
 * lies in two tiles of keys: a block has those of a run of tiles in order, and goes through the tile before it, too.
 *
 * A chosen distance leads from a tile to two blocks of 64 tokens, or to one, and they are as far before any tile: so
 * what is chosen is a set of distances in blocks, a bit each, for all of a segment's tiles.
 */
#include "kernels/cuda/select/topk.cuh"
#include "kernels/cuda/prefill/weights.cuh"

#define CHOOSE_THREADS 1024
#define LIST_WARPS 4u
#define WIDTH 72 /* of rows of weights: a warp's writes, of pairs, lie in different banks */

static_assert(SKV_MINFERENCE_ROWS == ROWS && ROWS == TILE && THREADS == 2 * TILE, "a thread has a column or a diagonal");

enum { COLUMNS, DIAGONALS };

struct lines : strided {
	struct skv_tiles units, more;
	uint32_t most[2]; /* columns, diagonals that are chosen */
	uint32_t segments; /* of a sequence, at most */
	uint32_t stride, words;
	float *sum;       /* [job of the band][2][stride] */
	uint32_t *chosen; /* [job of the band]: [most[0]] columns, [most[1]] diagonals */
	uint32_t *count;  /* [job of the band]: of columns */
	uint32_t *near;   /* [job of the band][words]: bit k: k blocks before a tile is one that a chosen distance leads to */
	bool shared;      /* of keys: in shared memory */

	/* Which segment a job is of, and where it begins: j->first is its first row, j->skip where it would begin. */
	__device__ void job(uint32_t nth, struct job *j) const
	{
		const uint32_t number = (first + nth) / call.n_heads;
		j->s = &call.seq[number / segments];
		j->h = head(nth) / call.group;
		j->table = j->s->table + (size_t)call.layer * j->s->layer_stride;
		j->skip = ((j->s->len - j->s->n_q) / sp.segment + number % segments) * sp.segment;
		j->first = skv_begin(j->s, j->skip, sp.segment);
		/* the last of the first rows has come, and it, or one after it, is of this call: only then are there lists */
		j->end = min(j->s->len, j->skip + sp.segment) >= j->first + ROWS ? j->first + ROWS : 0;
	}
	__device__ uint32_t head(uint32_t nth) const
	{
		return (first + nth) % call.n_heads;
	}
	/* Row r of the block's job. */
	__device__ struct speaker row(const struct job *j, uint32_t r) const
	{
		return {j->first + r, head(blockIdx.x), j->end ? j->first + r + 1 : 0};
	}
};

/* Grid: the band's jobs, runs of keys. */
template <class T, int D> __global__ void __launch_bounds__(THREADS) lines_kernel(const __grid_constant__ struct lines c)
{
	extern __shared__ __align__(128) uint8_t memory[];
	float *const w = (float *)(memory + 2 * TILE * pitch<D>);
	float *const column = c.sum + (size_t)blockIdx.x * 2 * c.stride, *const diagonal = column + c.stride;
	const uint32_t mine = threadIdx.x % TILE, first = blockIdx.y * RUN;
	float before = 0; /* of a diagonal, from the tile before */
	struct rows<T, D> r;
	float lse[2];
	struct job j;

	c.job(blockIdx.x, &j);
	const uint32_t to = min((j.end + TILE - 1) / TILE, first + RUN);
	if (first >= to)
		return;
	speakers_begin<T, D>(&r, &c, j.s, [&](uint32_t x) { return c.row(&j, x); });
	lse_load(&c, blockIdx.x, lse);
	const auto add = [&](uint32_t tile, float (&s)[TILE / 8][4]) {
		weights(s, lse);
		spread<WIDTH>(s, w);
		__syncthreads();
		if (threadIdx.x < TILE) {
			/* of this tile the distance of row `mine` to its first token; and 64 less, which the next one goes on with */
			const uint32_t distance = j.first + mine - tile * TILE;
			float sum = before;
			before = 0;
#pragma unroll 8
			for (uint32_t i = 0; i < ROWS; i++) {
				const float x = w[i * WIDTH + (i - mine) % TILE];
				sum += i < mine ? 0 : x;
				before += i < mine ? x : 0;
			}
			if (tile >= first && distance < j.end) /* it may be below 0: beyond the last token */
				diagonal[distance] = sum;
		} else {
			float sum = 0;
#pragma unroll 8
			for (uint32_t i = 0; i < ROWS; i++)
				sum += w[i * WIDTH + mine];
			if (tile >= first)
				column[tile * TILE + mine] = sum;
		}
	};
	sweep<T, D>(&r, &c.call, &j, first ? first - 1 : 0, to, shared_address(memory), add);
}

/* A distance is chosen: which blocks before a tile it leads to. */
DEVICE void lead(uint32_t *near, uint32_t distance)
{
	const uint32_t k = distance / TILE;
	atomicOr(&near[k / 32], 1u << k % 32);
	if (distance % TILE)
		atomicOr(&near[(k + 1) / 32], 1u << (k + 1) % 32);
}

/* Grid: columns and diagonals, the band's jobs. */
__global__ void __launch_bounds__(CHOOSE_THREADS) lines_choose_kernel(const __grid_constant__ struct lines c)
{
	extern __shared__ uint4 shared_keys[];
	__shared__ struct select_room room;
	typedef team<CHOOSE_THREADS, 0, 0> all;
	float *const score = c.sum + ((size_t)blockIdx.y * 2 + blockIdx.x) * c.stride;
	uint32_t *key = c.shared ? (uint32_t *)shared_keys : (uint32_t *)score; /* else in place */
	uint32_t *const near = c.near + (size_t)blockIdx.y * c.words;
	uint32_t *const ids = c.chosen + (size_t)blockIdx.y * (c.most[0] + c.most[1]) + (blockIdx.x == DIAGONALS ? c.most[0] : 0);
	struct job j;

	c.job(blockIdx.y, &j);
	const struct skv_topk_counts x = {j.end, SKV_MINFERENCE_FORCED, 0, c.most[blockIdx.x] - SKV_MINFERENCE_FORCED};
	if (j.end == 0)
		return;
	if (blockIdx.x == DIAGONALS)
		for (uint32_t k = threadIdx.x; k < c.words; k += CHOOSE_THREADS)
			near[k] = 0;
	count_clear<all>(&room);
	for (uint32_t u = KEY_QUAD * threadIdx.x; u < j.end; u += KEY_QUAD * CHOOSE_THREADS) {
		const float4 s = *(const float4 *)&score[u];
		keep_keys(&room, key, u,
		          make_uint4(key_of(&x, u, true, s.x), key_of(&x, u + 1, true, s.y), key_of(&x, u + 2, true, s.z),
		                     key_of(&x, u + 3, true, s.w)));
	}
	const uint32_t count = choose<all>(key, &x, &room, ids);
	__syncthreads();
	if (blockIdx.x == COLUMNS && threadIdx.x == 0)
		c.count[blockIdx.y] = count;
	if (blockIdx.x == DIAGONALS)
		for (uint32_t i = threadIdx.x; i < count; i += CHOOSE_THREADS)
			lead(near, ids[i]);
}

DEVICE bool leads(const uint32_t *near, uint32_t k)
{
	return near[k / 32] >> k % 32 & 1;
}

/* A warp's: ids[*at] on get `id` of the lanes that take theirs. */
DEVICE void append_taken(bool take, uint32_t id, uint32_t *ids, uint32_t *at)
{
	const uint32_t taken = __ballot_sync(~0u, take);
	if (take)
		ids[*at + __popc(taken & ((1u << threadIdx.x % 32) - 1))] = id;
	*at += __popc(taken);
}

/* Grid: tiles of a segment, a warp each; the band's jobs. */
__global__ void __launch_bounds__(32 * LIST_WARPS) lists_kernel(const __grid_constant__ struct lines c)
{
	const uint32_t lane = threadIdx.x % 32, nth = blockIdx.x * LIST_WARPS + threadIdx.x / 32;
	const uint32_t *near = c.near + (size_t)blockIdx.y * c.words;
	const uint32_t *chosen = c.chosen + (size_t)blockIdx.y * (c.most[0] + c.most[1]);
	uint32_t units = 0, more = 0;
	struct job j;

	c.job(blockIdx.y, &j);
	const uint32_t tile = j.skip / TILE + nth, call = (j.s->len - j.s->n_q) / TILE;
	if (nth >= c.sp.segment / TILE || tile < call || tile * TILE >= j.s->len)
		return;
	const size_t list = ((size_t)(j.s - c.call.seq) * c.units.tiles + tile - call) * c.units.rows + c.head(blockIdx.y);
	const size_t extra = ((size_t)(j.s - c.call.seq) * c.more.tiles + tile - call) * c.more.rows + c.head(blockIdx.y);
	uint32_t *unit_ids = c.units.ids + list * c.units.stride, *more_ids = c.more.ids + extra * c.more.stride;
	if (tile * TILE + TILE >= j.end && j.end) { /* rows before the last of the dense ones have no list */
		for (uint32_t u = lane; u < tile + lane; u += 32)
			append_taken(u < tile && leads(near, tile - u), u, unit_ids, &units);
		const uint32_t n = c.count[blockIdx.y];
		for (uint32_t i = lane; i < n + lane; i += 32) {
			const uint32_t t = i < n ? chosen[i] : 0;
			append_taken(i < n && t < tile * TILE && !leads(near, tile - t / TILE), t, more_ids, &more);
		}
	}
	if (lane == 0) {
		c.units.count[list] = units;
		c.more.count[extra] = more;
	}
}

template <int D> constexpr int shared_bytes = 2 * TILE * pitch<D> + ROWS * WIDTH * sizeof(float);

cudaError_t skv_cuda_lines_init(void)
{
	const cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
	const cudaError_t e = for_shapes([](auto t, auto d) {
		typedef decltype(t) T;
		constexpr int D = d;
		const cudaError_t e = cudaFuncSetAttribute(sums_kernel<T, D, struct lines>, most, 2 * TILE * pitch<D>);
		return e ? e : cudaFuncSetAttribute(lines_kernel<T, D>, most, shared_bytes<D>);
	});
	return e ? e : cudaFuncSetAttribute(lines_choose_kernel, most, KEY_BYTES);
}

/* What follows from bounds, and from how many are chosen. Returns bytes that a job leaves. */
static size_t lines_of(struct lines *c, const struct skv_batch *b, const struct skv_sparse *sp, uint32_t vertical,
                       uint32_t slash)
{
	c->blocks = 1;
	c->runs = ceil_div(b->max_len, RUN * TILE);
	c->segments = skv_tiles_most(b->max_q, sp->segment);
	c->stride = ceil_div(b->max_len, TILE) * TILE;
	c->words = c->stride / TILE / 32 + 1;
	c->most[COLUMNS] = vertical < c->stride ? vertical : c->stride;
	c->most[DIAGONALS] = slash < c->stride ? slash : c->stride;
	return sums_bytes(1, c->runs) +
	       (2 * (size_t)c->stride + c->most[0] + c->most[1] + c->words + 1) * sizeof(uint32_t);
}

static uint32_t jobs_of(const struct lines *c, const struct skv_shape *sh, const struct skv_batch *b)
{
	return b->n * c->segments * sh->n_heads;
}

size_t skv_cuda_lines_bytes(const struct skv_shape *sh, const struct skv_batch *bounds, const struct skv_sparse *sp)
{
	struct lines c = {};

	if (!sp->segment)
		return 0;
	const size_t bytes = lines_of(&c, bounds, sp, SKV_MAX_TOKENS, SKV_MAX_TOKENS);
	return band_bytes(jobs_of(&c, sh, bounds), bytes);
}

void skv_cuda_tile_lines(const struct skv_shape *sh, const struct skv_batch *b, const void *q, const struct skv_sparse *sp,
                         uint32_t vertical, uint32_t slash, const struct skv_tiles *units, const struct skv_tiles *more,
                         const struct skv_work *work)
{
	uint8_t *const mem = (uint8_t *)work->mem + skv_cuda_scratch_at(sh);
	cudaStream_t stream = stream_of(work);
	struct lines c = {};

	strided_of(&c, sh, b, q, sp);
	c.units = *units;
	c.more = *more;
	c.shared = select_fits(b->max_len);
	const size_t bytes = lines_of(&c, b, sp, vertical, slash);
	const uint32_t jobs = jobs_of(&c, sh, b), band = band_of(jobs, bytes);
	c.sum = (float *)sums_at(&c, mem, band);
	c.chosen = (uint32_t *)(c.sum + (size_t)band * 2 * c.stride);
	c.near = c.chosen + (size_t)band * (c.most[0] + c.most[1]);
	c.count = c.near + (size_t)band * c.words;
	for (c.first = 0; c.first < jobs; c.first += band) {
		const uint32_t now = jobs - c.first < band ? jobs - c.first : band;
		for_shape(sh, [&](auto t, auto d) {
			typedef decltype(t) T;
			constexpr int D = d;
			sums<T, D>(&c, now, stream);
			lines_kernel<T, D><<<dim3(now, c.runs), THREADS, shared_bytes<D>, stream>>>(c);
		});
		lines_choose_kernel<<<dim3(2, now), CHOOSE_THREADS, c.shared ? key_bytes(b->max_len) : 0, stream>>>(c);
		lists_kernel<<<dim3(ceil_div(sp->segment / TILE, LIST_WARPS), now), 32 * LIST_WARPS, 0, stream>>>(c);
	}
}
