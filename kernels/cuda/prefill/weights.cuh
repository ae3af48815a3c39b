/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/prefill/weights.cuh - softmax weights of representative rows of a prompt, computed on the tensor cores
 * (rows.cuh), from which lists of tiles are made.
 *
 * Representative rows are not contiguous: their queries are in q or among those that an earlier call saved, and each
 * row attends to a prefix of the tokens. A work item is up to 64 rows (or a multiple of 64) of one sequence and kv
 * head. Items need much workspace, so they are processed in bands, which are as many items as the workspace has room
 * for.
 *
 * The denominators of the rows' softmax are computed first: each run of RUN tiles of keys gives a maximum and a sum,
 * and these are then merged. Runs begin at multiples of their length, so a row's bits do not depend on the other rows
 * of its item or band.
 */
#ifndef SKV_CUDA_PREFILL_WEIGHTS_CUH
#define SKV_CUDA_PREFILL_WEIGHTS_CUH

#include <math.h>
#include <type_traits>
#include "kernels/cuda/runtime/rows.cuh"

#define RUN 64u                        /* tiles of keys that a block processes */
/* Bytes of workspace of a band, the items that are processed together; more if a single item takes more. */
#define BAND_BYTES ((size_t)512 << 20)
#define MAX_BAND 65535u                /* max items of a band, which are the second dimension of some grids */
#define MERGE_WARPS 8u

struct weights_params {
	struct rows_params call;
	struct skv_shape sh;
	struct skv_sparse sp;
	uint32_t first;  /* index of the first item of this band */
	uint32_t blocks; /* number of blocks of 64 rows per item */
	uint32_t runs;   /* max number of runs of keys */
	float2 *part;    /* [item of the band][row][runs]: maximum and sum of a row's weights in a run */
	float *lse;      /* [item of the band][row] log2 of denominators */
};

/* Row p of the prompt, for one q head. The row attends to tokens [0, seen). */
struct representative {
	uint32_t p, head, seen; /* seen is 0 if there is no such row, or nothing to attend to */
};

/* Sets the parameters that all items of a call share. */
static inline void init_weights_params(struct weights_params *c, const struct skv_shape *sh,
                                       const struct skv_batch *b, const void *q, const struct skv_sparse *sp)
{
	c->call = rows_params_of(sh, b, q);
	c->sh = *sh;
	c->sp = *sp;
	c->runs = ceil_div(b->max_len, RUN * TILE);
}

/*
 * band_size(): number of items of a band, if one takes item_bytes bytes. band_bytes(): bytes of a band, which do not
 * grow as items shrink.
 */
static inline uint32_t band_size(uint32_t items, size_t item_bytes)
{
	const size_t fit = BAND_BYTES / item_bytes, most = items < MAX_BAND ? items : MAX_BAND;
	return (uint32_t)(fit < 1 ? 1 : fit < most ? fit : most);
}
static inline size_t band_bytes(uint32_t items, size_t item_bytes)
{
	const size_t all = items * item_bytes, most = item_bytes > BAND_BYTES ? item_bytes : BAND_BYTES;
	return all < most ? all : most;
}

/*
 * denominators_bytes(): bytes of one item's partial sums and denominators. denominators_at() sets their addresses for a
 * band and returns the address after them.
 */
static inline size_t denominators_bytes(uint32_t blocks, uint32_t runs)
{
	return (size_t)blocks * ROWS * (runs * sizeof(float2) + sizeof(float));
}
static inline uint8_t *denominators_at(struct weights_params *c, uint8_t *at, uint32_t band)
{
	const size_t rows = (size_t)band * c->blocks * ROWS;
	c->part = (float2 *)at;
	c->lse = (float *)(c->part + rows * c->runs);
	return (uint8_t *)(c->lse + rows);
}

/* Calls use(T, D) with types for the pool's dtype and the head dim. */
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
	else if (sh->dtype == SKV_FP8)
		dims(FP8());
	else
		dims(BF16());
}

/* Calls use(T, D) for all dtypes and head dims, until it returns an error. */
template <class F> static cudaError_t for_shapes(F use)
{
	static const uint32_t dims[] = {64, 96, 128, 256}, dtypes[] = {SKV_F16, SKV_BF16, SKV_FP8};
	cudaError_t e = cudaSuccess;
	for (uint32_t x = 0; x < 12; x++) {
		struct skv_shape sh = {};
		sh.dtype = dtypes[x % 3];
		sh.head_dim = dims[x / 3];
		for_shape(&sh, [&](auto t, auto d) { e = e ? e : use(t, d); });
	}
	return e;
}

/*
 * Returns the address of row p's query for one head: in this call's q, or in the queries that the previous call saved.
 */
DEVICE const void *query_at(const struct weights_params *c, const struct skv_kseq *s, uint32_t p, uint32_t head)
{
	const uint32_t before = s->len - s->n_q;
	const size_t each = skv_dtype_bytes(c->sh.io_dtype), bytes = c->sh.head_dim * each;
	if (p >= before)
		return (const uint8_t *)c->call.q + (size_t)(s->row + p - before) * c->call.q_stride * each + head * bytes;
	const uint32_t row = c->sp.segment ? p - skv_first_row(s, p, c->sp.segment) : 0;
	const size_t at = skv_saved_queries_offset(&c->sh, &c->sp) + ((size_t)row * c->call.n_heads + head) * bytes;
	return skv_saved_at(&c->sh, s, &c->sp, s->set ^ 1, at);
}

/*
 * Begins the work on rows row(0) to row(63): loads queries, clears sums. Sets r->token to the number of tokens that a
 * row attends to.
 */
template <class T, int D, class F>
DEVICE void begin_representatives(struct rows<T, D> *r, const struct weights_params *c,
                                  const struct skv_kseq *s, F row)
{
	const uint32_t lane = threadIdx.x % 32, col = lane % 4 * 2;
#pragma unroll
	for (int x = 0; x < 2; x++) {
		const struct representative rep = row(threadIdx.x / 32 * 16 + lane / 4 + 8 * x);
		const void *q = rep.seen ? query_at(c, s, rep.p, rep.head) : c->call.q;
		r->token[x] = rep.seen;
		r->max[x] = -INFINITY;
		r->sum[x] = 0;
#pragma unroll
		for (int k = 0; k < D / 16; k++)
#pragma unroll
			for (int half = 0; half < 2; half++) {
				const float2 e = io_load2(c->call.io_dtype, q, 16 * k + 8 * half + col);
				r->q[k][2 * half + x] = rep.seen ? T::pair(e.x, e.y) : 0;
			}
	}
#pragma unroll
	for (int a = 0; a < D / 8; a++)
#pragma unroll
		for (int x = 0; x < 4; x++)
			r->acc[a][x] = 0;
}

/*
 * Turns products q·k into scores: they are scaled, or become -infinity for tokens that a row does not attend to or that
 * are not resident.
 */
template <class T, int D>
DEVICE void causal_mask(const struct rows<T, D> *r, const struct rows_params *c, uint32_t tile, uint32_t resident,
                        float s[TILE / 8][4])
{
	const uint32_t first = tile * TILE + threadIdx.x % 4 * 2;
	cap_scores(c->scale, s);
#pragma unroll
	for (int n = 0; n < (int)TILE / 8; n++)
#pragma unroll
		for (int x = 0; x < 4; x++) {
			const bool seen = first + 8 * n + x % 2 < r->token[x / 2] && (resident >> n / 2 & 1);
			s[n][x] = seen ? s[n][x] * c->scale.scale : -INFINITY;
		}
}

/* Calls use(tile, scores) for tiles [from, to) of the keys. Shared memory at `at` has room for two tiles. */
template <class T, int D, class F>
DEVICE void for_each_tile_scores(const struct rows<T, D> *r, const struct rows_params *c,
                                 const struct rows_item *j, uint32_t from, uint32_t to, uint32_t at, F use)
{
	constexpr uint32_t bytes = TILE * pitch<D>;
	if (from < to)
		load_tile<T, D>(c, j, from, at + from % 2 * bytes);
	cp_async_commit();
	for (uint32_t tile = from; tile < to; tile++) {
		float s[TILE / 8][4];
		if (tile + 1 < to)
			load_tile<T, D>(c, j, tile + 1, at + (tile + 1) % 2 * bytes);
		cp_async_commit();
		cp_async_wait<1>();
		__syncthreads();
		qk_scores<T, D>(r, at + tile % 2 * bytes, s);
		causal_mask<T, D>(r, c, tile, pages_resident(j, tile), s);
		use(tile, s);
		__syncthreads();
	}
}

/* Stores a tile of scores, or weights, to shared memory w: [ROWS][width]. */
template <int width> DEVICE void store_tile(const float s[TILE / 8][4], float *w)
{
	const uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, col = lane % 4 * 2;
#pragma unroll
	for (int n = 0; n < (int)TILE / 8; n++)
#pragma unroll
		for (int x = 0; x < 2; x++)
			*(float2 *)&w[(row + 8 * x) * width + 8 * n + col] = make_float2(s[n][2 * x], s[n][2 * x + 1]);
}

/* Turns scores into softmax weights, given log2 of the denominators of a lane's two rows. */
DEVICE void scores_to_weights(float s[TILE / 8][4], const float lse[2])
{
#pragma unroll
	for (int n = 0; n < (int)TILE / 8; n++)
#pragma unroll
		for (int x = 0; x < 4; x++)
			s[n][x] = exp2_fast(s[n][x] - lse[x / 2]);
}

/* Loads log2 of the denominators of a lane's two rows, for block `block` of the band. */
DEVICE void lse_load(const struct weights_params *c, uint32_t block, float lse[2])
{
	const float *of = c->lse + (size_t)block * ROWS + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
	lse[0] = of[0];
	lse[1] = of[8];
}

/*
 * Computes maximum and sum of rows' weights in runs of keys. The grid is blocks of the band's items (x) by runs of keys
 * (y). C is a struct weights_params with the members item(), which fills in an item, row(), which returns one of the
 * item's rows, and head(), which returns the q head of a row.
 */
template <class T, int D, class C>
__global__ void __launch_bounds__(THREADS) denominators_kernel(const __grid_constant__ C c)
{
	SHARED_MEMORY(uint8_t, memory, 128);
	const uint32_t nth = blockIdx.x / c.blocks, block = blockIdx.x % c.blocks;
	struct rows<T, D> r;
	struct rows_item j;

	c.item(nth, &j);
	const uint32_t from = blockIdx.y * RUN, to = min((j.end + TILE - 1) / TILE, from + RUN);
	begin_representatives<T, D>(&r, &c, j.s, [&](uint32_t x) { return c.row(&j, block * ROWS + x); });
	for_each_tile_scores<T, D>(&r, &c.call, &j, from, to, shared_address(memory),
	                           [&](uint32_t, float (&s)[TILE / 8][4]) {
		softmax_step<T, D>(&r, s);
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

/*
 * Merges the runs of each row, one warp per row of the band. A run that a row does not reach does not change the
 * result's bits.
 */
template <class C>
__global__ void __launch_bounds__(32 * MERGE_WARPS)
merge_runs_kernel(const __grid_constant__ C c, uint32_t rows)
{
	const uint32_t row = blockIdx.x * MERGE_WARPS + threadIdx.x / 32;
	struct partial_softmax mine[1] = {{-INFINITY, 0}};

	if (row >= rows)
		return;
	for (uint32_t run = threadIdx.x % 32; run < c.runs; run += 32) {
		const float2 part = c.part[(size_t)row * c.runs + run];
		mine[0] = merge_softmax(mine[0], {part.x, part.y});
	}
	mine[0] = warp_merge_softmax(mine[0]);
	if (threadIdx.x % 32 == 0)
		c.lse[row] = add_sink(c.sh.sinks, c.head(row / (c.blocks * ROWS), row % (c.blocks * ROWS)), log_denominator(mine));
}

/* Queues the computation of the denominators of all rows of a band of `items` items. */
template <class T, int D, class C> static void denominators(const C *c, uint32_t items, cudaStream_t stream)
{
	const uint32_t rows = items * c->blocks * ROWS;
	launch_grid(denominators_kernel<T, D, C>, dim3(items * c->blocks, c->runs), THREADS, 2 * TILE * pitch<D>, stream, *c);
	launch_grid(merge_runs_kernel<C>, ceil_div(rows, MERGE_WARPS), 32 * MERGE_WARPS, 0, stream, *c, rows);
}

/*
 * Work items of tiles: an item is `each` tiles for all q heads of a GQA group. The row of a tile attends to the tokens
 * that are more than a window before the tile.
 */
struct tile_params : weights_params {
	struct skv_tile_lists ret;
	uint32_t window;
	uint32_t each; /* number of tiles of an item */
	uint32_t most; /* max number of items of a sequence's kv head */

	__device__ void item(uint32_t nth, struct rows_item *j) const
	{
		const uint32_t number = (first + nth) / sh.n_kv_heads, last = (number % most + 1) * each - 1;
		j->s = &call.seq[number / most];
		j->h = (first + nth) % sh.n_kv_heads;
		j->table = j->s->table + (size_t)call.layer * j->s->layer_stride;
		j->first = number % most * each;
		/* Index of the call's last tile. */
		const uint32_t last_tile = (j->s->len - 1) / sp.tile - (j->s->len - j->s->n_q) / sp.tile;
		j->end = j->first > last_tile ? 0 : seen(start(j->s, min(last, last_tile)));
	}
	/* Returns the first position of tile number `tile` of the call. */
	__device__ uint32_t start(const struct skv_kseq *s, uint32_t tile) const
	{
		return ((s->len - s->n_q) / sp.tile + tile) * sp.tile;
	}
	__device__ uint32_t seen(uint32_t start) const
	{
		return start > window ? start - window : 0;
	}
	__device__ uint32_t head(uint32_t nth, uint32_t r) const
	{
		return (first + nth) % sh.n_kv_heads * call.group + r % call.group;
	}
	/* Returns row r of an item: tile r / group, q head r % group. */
	__device__ struct representative row(const struct rows_item *j, uint32_t r) const
	{
		const uint32_t at = start(j->s, j->first + r / call.group);
		struct representative rep = {skv_first_row(j->s, at, sp.tile), j->h * call.group + r % call.group, 0};
		if (r < each * call.group && at < j->s->len)
			rep.seen = seen(at);
		return rep;
	}
};

static inline void init_tile_params(struct tile_params *c, const struct skv_shape *sh, const struct skv_batch *b,
                                    const struct skv_sparse *sp)
{
	const uint32_t group = sh->n_heads / sh->n_kv_heads;
	c->each = group < ROWS ? ROWS / group : 1;
	c->blocks = ceil_div(c->each * group, ROWS);
	c->most = ceil_div(skv_max_tiles(b->max_q, sp->tile), c->each);
	c->runs = ceil_div(b->max_len, RUN * TILE);
}

#endif
