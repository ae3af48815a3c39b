/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/prefill/weights.cuh - scores of the rows of a prompt that speak for others, with tensor cores (rows.cuh).
 *
 * These rows lie apart, in q or among what an earlier call kept, and each sees so many first tokens. A job is up to 64 of
 * them (or a multiple) that are of one sequence and kv head. What jobs leave in scratch is large; so they are run in bands.
 *
 * The denominators of their softmax come first: each run of RUN tiles of keys leaves a maximum and a sum, which then are
 * joined. Runs begin at multiples of their length: so a row's bits do not depend on who else is in its job or band.
 */
#ifndef SKV_CUDA_STRIDED_CUH
#define SKV_CUDA_STRIDED_CUH

#include <math.h>
#include <type_traits>
#include "kernels/cuda/runtime/rows.cuh"
#include "kernels/cuda/runtime/softmax.cuh"

#define RUN 64u                        /* tiles of keys that a block goes through */
#define BAND_BYTES ((size_t)512 << 20) /* of jobs that run together, or one that takes more */
#define BAND_MOST 65535u               /* jobs: they are the second dimension of some grids */
#define MERGE_WARPS 8u

struct strided {
	struct call call;
	struct skv_shape sh;
	struct skv_sparse sp;
	uint32_t first;  /* job of this band */
	uint32_t blocks; /* of 64 rows that a job has */
	uint32_t runs;   /* of keys, at most */
	float2 *part;    /* [job of the band][row][runs]: maximum and sum of a row's weights in a run */
	float *lse;      /* [job of the band][row] */
};

/* Row p of the prompt, of a q head, which sees tokens [0, seen). */
struct speaker {
	uint32_t p, head, seen; /* seen 0: there is no such row, or nothing to see */
};

/* What all jobs of a call have in common. */
static inline void strided_of(struct strided *c, const struct skv_shape *sh, const struct skv_batch *b, const void *q,
                              const struct skv_sparse *sp)
{
	c->call.seq = b->seq;
	c->call.pool = sh->pool;
	c->call.page_bytes = sh->page_bytes;
	c->call.q = q;
	c->call.scale = sh->scale * LOG2E;
	c->call.n_heads = sh->n_heads;
	c->call.group = sh->n_heads / sh->n_kv_heads;
	c->call.layer = sh->layer;
	c->call.io_dtype = sh->io_dtype;
	c->sh = *sh;
	c->sp = *sp;
	c->runs = ceil_div(b->max_len, RUN * TILE);
}

/* Jobs of a band, where one leaves so many bytes; and bytes of a band, which do not grow as jobs shrink. */
static inline uint32_t band_of(uint32_t jobs, size_t job_bytes)
{
	const size_t fit = BAND_BYTES / job_bytes, most = jobs < BAND_MOST ? jobs : BAND_MOST;
	return (uint32_t)(fit < 1 ? 1 : fit < most ? fit : most);
}
static inline size_t band_bytes(uint32_t jobs, size_t job_bytes)
{
	const size_t all = jobs * job_bytes, most = job_bytes > BAND_BYTES ? job_bytes : BAND_BYTES;
	return all < most ? all : most;
}

/* Bytes of one job's parts and denominators; and where those of a band's jobs are. Returns what is behind them. */
static inline size_t sums_bytes(uint32_t blocks, uint32_t runs)
{
	return (size_t)blocks * ROWS * (runs * sizeof(float2) + sizeof(float));
}
static inline uint8_t *sums_at(struct strided *c, uint8_t *at, uint32_t band)
{
	const size_t rows = (size_t)band * c->blocks * ROWS;
	c->part = (float2 *)at;
	c->lse = (float *)(c->part + rows * c->runs);
	return (uint8_t *)(c->lse + rows);
}

/* use(T, D): what the pool's dtype and the head's dimensions are as types. */
template <class F> static void for_shape(const struct skv_shape *sh, F use)
{
	const auto dims = [&](auto t) {
		if (sh->head_dim == 64)
			use(t, std::integral_constant<int, 64>());
		else if (sh->head_dim == 96)
			use(t, std::integral_constant<int, 96>());
		else if (sh->head_dim == 128)
			use(t, std::integral_constant<int, 128>());
		else
			use(t, std::integral_constant<int, 256>());
	};
	if (sh->dtype == SKV_F16)
		dims(F16());
	else
		dims(BF16());
}

/* The same for all that there are, while there is no error. */
template <class F> static cudaError_t for_shapes(F use)
{
	static const uint32_t dims[] = {64, 96, 128, 256};
	cudaError_t e = cudaSuccess;
	for (uint32_t x = 0; x < 8; x++) {
		struct skv_shape sh = {};
		sh.dtype = x % 2 ? SKV_F16 : SKV_BF16;
		sh.head_dim = dims[x / 2];
		for_shape(&sh, [&](auto t, auto d) { e = e ? e : use(t, d); });
	}
	return e;
}

/* The query of row p, of one head: of this call, or of those that the last one kept. */
DEVICE const void *query_at(const struct strided *c, const struct skv_kseq *s, uint32_t p, uint32_t head)
{
	const uint32_t before = s->len - s->n_q;
	const size_t bytes = c->sh.head_dim * skv_dtype_bytes(c->sh.io_dtype);
	if (p >= before)
		return (const uint8_t *)c->call.q + ((size_t)(s->row + p - before) * c->call.n_heads + head) * bytes;
	const uint32_t row = c->sp.segment ? p - skv_begin(s, p, c->sp.segment) : 0;
	const size_t at = skv_kept_queries(&c->sh, &c->sp) + ((size_t)row * c->call.n_heads + head) * bytes;
	return skv_kept_at(&c->sh, s, &c->sp, s->set ^ 1, at);
}

/* Begin with rows that `row(r)` says, r from 0 to 63: rows->token has what they see. */
template <class T, int D, class F>
DEVICE void speakers_begin(struct rows<T, D> *r, const struct strided *c, const struct skv_kseq *s, F row)
{
	const uint32_t lane = threadIdx.x % 32, col = lane % 4 * 2;
#pragma unroll
	for (int x = 0; x < 2; x++) {
		const struct speaker who = row(threadIdx.x / 32 * 16 + lane / 4 + 8 * x);
		const void *q = who.seen ? query_at(c, s, who.p, who.head) : c->call.q;
		r->token[x] = who.seen;
		r->max[x] = -INFINITY;
		r->sum[x] = 0;
#pragma unroll
		for (int k = 0; k < D / 16; k++)
#pragma unroll
			for (int half = 0; half < 2; half++) {
				const float2 e = io_load2(c->call.io_dtype, q, 16 * k + 8 * half + col);
				r->q[k][2 * half + x] = who.seen ? T::pair(e.x, e.y) : 0;
			}
	}
#pragma unroll
	for (int a = 0; a < D / 8; a++)
#pragma unroll
		for (int x = 0; x < 4; x++)
			r->acc[a][x] = 0;
}

/* Scale; what a row does not see, or is not there, is -infinity. */
template <class T, int D>
DEVICE void mask_unseen(const struct rows<T, D> *r, const struct call *c, uint32_t tile, uint32_t there,
                        float s[TILE / 8][4])
{
	const uint32_t first = tile * TILE + threadIdx.x % 4 * 2;
#pragma unroll
	for (int n = 0; n < (int)TILE / 8; n++)
#pragma unroll
		for (int x = 0; x < 4; x++) {
			const bool seen = first + 8 * n + x % 2 < r->token[x / 2] && (there >> n / 2 & 1);
			s[n][x] = seen ? s[n][x] * c->scale : -INFINITY;
		}
}

/* use(tile, scores) for tiles [from, to) of the keys, of which two are in shared memory from `at` on. */
template <class T, int D, class F>
DEVICE void sweep(const struct rows<T, D> *r, const struct call *c, const struct job *j, uint32_t from, uint32_t to,
                  uint32_t at, F use)
{
	constexpr uint32_t bytes = TILE * pitch<D>;
	if (from < to)
		load_tile<D, false>(c, j, from, at + from % 2 * bytes, 0);
	copies_queued();
	for (uint32_t tile = from; tile < to; tile++) {
		float s[TILE / 8][4];
		if (tile + 1 < to)
			load_tile<D, false>(c, j, tile + 1, at + (tile + 1) % 2 * bytes, 0);
		copies_queued();
		copies_wait<1>();
		__syncthreads();
		scores<T, D>(r, at + tile % 2 * bytes, s);
		mask_unseen<T, D>(r, c, tile, pages_there(j, tile), s);
		use(tile, s);
		__syncthreads();
	}
}

/* Scores, or what was made of them, to shared memory: [ROWS][width]. */
template <int width> DEVICE void spread(const float s[TILE / 8][4], float *w)
{
	const uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, col = lane % 4 * 2;
#pragma unroll
	for (int n = 0; n < (int)TILE / 8; n++)
#pragma unroll
		for (int x = 0; x < 2; x++)
			*(float2 *)&w[(row + 8 * x) * width + 8 * n + col] = make_float2(s[n][2 * x], s[n][2 * x + 1]);
}

/* Scores become weights. */
DEVICE void weights(float s[TILE / 8][4], const float lse[2])
{
#pragma unroll
	for (int n = 0; n < (int)TILE / 8; n++)
#pragma unroll
		for (int x = 0; x < 4; x++)
			s[n][x] = exp2_fast(s[n][x] - lse[x / 2]);
}

/* The denominators of a lane's two rows, of block `block` of the band's. */
DEVICE void lse_load(const struct strided *c, uint32_t block, float lse[2])
{
	const float *of = c->lse + (size_t)block * ROWS + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
	lse[0] = of[0];
	lse[1] = of[8];
}

/*
 * Grid: blocks of the band's jobs, runs of keys. C is a struct strided with job(), which fills in what a job works on, and
 * row(), which says a row of it.
 */
template <class T, int D, class C> __global__ void __launch_bounds__(THREADS) sums_kernel(const __grid_constant__ C c)
{
	extern __shared__ __align__(128) uint8_t memory[];
	const uint32_t nth = blockIdx.x / c.blocks, block = blockIdx.x % c.blocks;
	struct rows<T, D> r;
	struct job j;

	c.job(nth, &j);
	const uint32_t from = blockIdx.y * RUN, to = min((j.end + TILE - 1) / TILE, from + RUN);
	speakers_begin<T, D>(&r, &c, j.s, [&](uint32_t x) { return c.row(&j, block * ROWS + x); });
	sweep<T, D>(&r, &c.call, &j, from, to, shared_address(memory), [&](uint32_t, float (&s)[TILE / 8][4]) {
		weigh<T, D>(&r, s);
	});
	const uint32_t lane = threadIdx.x % 32, row = blockIdx.x * ROWS + threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
	for (int x = 0; x < 2; x++) {
		float sum = r.sum[x];
		sum += __shfl_xor_sync(~0u, sum, 1);
		sum += __shfl_xor_sync(~0u, sum, 2);
		if (lane % 4 == 0)
			c.part[(size_t)(row + 8 * x) * c.runs + blockIdx.y] = make_float2(r.max[x], sum);
	}
}

/* Grid: rows of the band, a warp each. A run that a row does not reach adds nothing, to the bit. */
template <class C>
__global__ void __launch_bounds__(32 * MERGE_WARPS) merge_kernel(const __grid_constant__ C c, uint32_t rows)
{
	const uint32_t row = blockIdx.x * MERGE_WARPS + threadIdx.x / 32;
	struct part mine[1] = {{-INFINITY, 0}};

	if (row >= rows)
		return;
	for (uint32_t run = threadIdx.x % 32; run < c.runs; run += 32) {
		const float2 part = c.part[(size_t)row * c.runs + run];
		mine[0] = join(mine[0], {part.x, part.y});
	}
	mine[0] = warp_join(mine[0]);
	if (threadIdx.x % 32 == 0)
		c.lse[row] = denominator(mine);
}

/* Denominators of all rows of a band of so many jobs. */
template <class T, int D, class C> static void sums(const C *c, uint32_t jobs, cudaStream_t stream)
{
	const uint32_t rows = jobs * c->blocks * ROWS;
	sums_kernel<T, D><<<dim3(jobs * c->blocks, c->runs), THREADS, 2 * TILE * pitch<D>, stream>>>(*c);
	merge_kernel<<<ceil_div(rows, MERGE_WARPS), 32 * MERGE_WARPS, 0, stream>>>(*c, rows);
}

/*
 * Jobs of tiles: `each` tiles and the group's heads. Their rows see what is more than a window before their tile: all of
 * it, or, where there are sinks, what is behind these.
 */
struct tile_rows : strided {
	struct skv_tiles ret;
	uint32_t window;
	uint32_t each; /* tiles of a job */
	uint32_t most; /* jobs of a sequence's kv head */

	__device__ void job(uint32_t nth, struct job *j) const
	{
		const uint32_t number = (first + nth) / sh.n_kv_heads, last = (number % most + 1) * each - 1;
		j->s = &call.seq[number / most];
		j->h = (first + nth) % sh.n_kv_heads;
		j->table = j->s->table + (size_t)call.layer * j->s->layer_stride;
		j->first = number % most * each;
		const uint32_t there = (j->s->len - 1) / sp.tile - (j->s->len - j->s->n_q) / sp.tile; /* tiles, but one */
		j->end = j->first > there ? 0 : seen(start(j->s, min(last, there)));
	}
	/* Where the sequence's tile `tile` of the call begins. */
	__device__ uint32_t start(const struct skv_kseq *s, uint32_t tile) const
	{
		return ((s->len - s->n_q) / sp.tile + tile) * sp.tile;
	}
	__device__ uint32_t seen(uint32_t start) const
	{
		return start > window ? start - window : 0;
	}
	/* Row r of a job. */
	__device__ struct speaker row(const struct job *j, uint32_t r) const
	{
		const uint32_t at = start(j->s, j->first + r / call.group);
		struct speaker who = {skv_begin(j->s, at, sp.tile), j->h * call.group + r % call.group, 0};
		if (r < each * call.group && at < j->s->len)
			who.seen = seen(at);
		return who;
	}
};

static inline void tile_rows_of(struct tile_rows *c, const struct skv_shape *sh, const struct skv_batch *b,
                                const struct skv_sparse *sp)
{
	const uint32_t group = sh->n_heads / sh->n_kv_heads;
	c->each = group < ROWS ? ROWS / group : 1;
	c->blocks = ceil_div(c->each * group, ROWS);
	c->most = ceil_div(skv_tiles_most(b->max_q, sp->tile), c->each);
	c->runs = ceil_div(b->max_len, RUN * TILE);
}

#endif
