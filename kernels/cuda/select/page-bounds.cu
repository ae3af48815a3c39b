/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/page-bounds.cu - makes page bounds (Quest), and scores pages by the upper bounds of q·k that they
 * give.
 *
 * Scoring is bound by memory bandwidth, and reads a sixteenth of what dense attention reads. For each element, the
 * larger of q kmin and q kmax is q+ kmax + q- kmin, with the positive part q+ and the negative part q- of q. So the
 * tensor cores score a state page like a page of K, twice: a warp multiplies one kv head's part, 16 rows of lower
 * bounds and 16 rows of upper bounds, by columns of q. q is rounded to the pool's dtype, or to fp16 for fp8 pages. A
 * warp takes one such part after the other, and loads the next part while it computes. The order in which a page's
 * score is summed does not depend on the position of the page.
 *
 * fp8 bounds are fp8 rows, each with its own scale. Elements that are small relative to the scale are rounded outwards,
 * so that they remain bounds.
 */
#include <math.h>
#include "kernels/cuda/runtime/cuda.h"
#include "kernels/cuda/runtime/fp8.cuh"

#define THREADS 128
#define EIGHT 8u         /* elements that a lane reads at a time: 16 bytes */
#define SCORE_THREADS 128
#define MAX_STATES 32u  /* max state pages that a block scores */
/* A block gets more than one state page only if there are at least this many blocks per multiprocessor. */
#define BLOCKS_PER_SM 4u
#define SCORE_BYTES 32768u /* bytes of shared memory for the scores of a block's pages */

/* ---- update ---------------------------------------------------------------------------------- */

struct update_params {
	const struct skv_kseq *seq;
	const uint32_t *slot; /* [seq][kv head] slot of the new token, or NULL */
	uint8_t *pool;
	size_t page_bytes;
	uint32_t n_kv_heads, head_dim, dtype, layer, state;
};

DEVICE uint32_t lower(uint32_t dtype, uint32_t a, uint32_t b)
{
	if (dtype == SKV_F16) {
		const __half2 x = __hmin2(*(const __half2 *)&a, *(const __half2 *)&b);
		return *(const uint32_t *)&x;
	}
	const __nv_bfloat162 x = __hmin2(*(const __nv_bfloat162 *)&a, *(const __nv_bfloat162 *)&b);
	return *(const uint32_t *)&x;
}

DEVICE uint32_t higher(uint32_t dtype, uint32_t a, uint32_t b)
{
	if (dtype == SKV_F16) {
		const __half2 x = __hmax2(*(const __half2 *)&a, *(const __half2 *)&b);
		return *(const uint32_t *)&x;
	}
	const __nv_bfloat162 x = __hmax2(*(const __nv_bfloat162 *)&a, *(const __nv_bfloat162 *)&b);
	return *(const uint32_t *)&x;
}

/*
 * Finds the page whose bounds block `nth` of a sequence makes, and the number of its tokens; returns false if the block
 * has none. With slots, the first block takes the page of the kv head's new slot. The other blocks take full pages, and
 * only if bounds are wanted for more tokens than the new one.
 */
DEVICE bool page_to_bound(const struct update_params *c, const struct skv_kseq *s, uint32_t nth, uint32_t h,
                          uint32_t *ret_page, uint32_t *ret_tokens)
{
	const uint32_t first = (s->len - s->n_state) / SKV_PAGE_TOKENS;
	uint32_t page = first + nth;

	*ret_tokens = SKV_PAGE_TOKENS;
	if (c->slot && s->n_q == 1) {
		const uint32_t slot = c->slot[(size_t)blockIdx.y * c->n_kv_heads + h], own = slot / SKV_PAGE_TOKENS;
		page = nth ? first + nth - 1 : own;
		if (nth == 0)
			*ret_tokens = slot % SKV_PAGE_TOKENS + 1;
		else if (s->n_state == 1 || page == own)
			return false;
	} else if (page * SKV_PAGE_TOKENS < s->len && s->len - page * SKV_PAGE_TOKENS < SKV_PAGE_TOKENS)
		*ret_tokens = s->len - page * SKV_PAGE_TOKENS;
	*ret_page = page;
	return page * SKV_PAGE_TOKENS < s->len;
}

/*
 * Makes the bounds of a page, eight elements of a kv head per thread. The grid is pages of a sequence (x) by sequences
 * (y).
 */
__global__ void __launch_bounds__(THREADS) update_kernel(const __grid_constant__ struct update_params c)
{
	const struct skv_kseq *s = &c.seq[blockIdx.y];
	if (s->n_state == 0)
		return;
	const skv_pte *table = s->table + (size_t)c.layer * s->layer_stride;
	const skv_pte *states = s->table + (size_t)c.state * s->layer_stride;
	const uint32_t row = c.head_dim / EIGHT; /* pieces of eight elements in a row */

	for (uint32_t x = threadIdx.x; x < c.n_kv_heads * row; x += THREADS) {
		const uint32_t head = x / row * SKV_PAGE_TOKENS * row, at = x % row;
		uint32_t page, tokens;
		if (!page_to_bound(&c, s, blockIdx.x, x / row, &page, &tokens))
			continue;
		const skv_pte entry = table[page], state = states[page / SKV_PAGE_TOKENS];
		if (!skv_pte_resident(entry) || !skv_pte_resident(state))
			continue;
		const uint4 *keys = (const uint4 *)(c.pool + skv_pte_id(entry) * c.page_bytes);
		uint4 *low = (uint4 *)(c.pool + skv_pte_id(state) * c.page_bytes);
		uint4 *high = low + c.page_bytes / 2 / sizeof(uint4);
		uint4 v[SKV_PAGE_TOKENS];
#pragma unroll
		for (uint32_t t = 0; t < SKV_PAGE_TOKENS; t++) /* issues all loads at once */
			v[t] = keys[head + (t < tokens ? t : 0) * row + at];
		uint4 lo = v[0], hi = v[0];
#pragma unroll
		for (uint32_t t = 1; t < SKV_PAGE_TOKENS; t++) {
			lo = make_uint4(lower(c.dtype, lo.x, v[t].x), lower(c.dtype, lo.y, v[t].y),
			                lower(c.dtype, lo.z, v[t].z), lower(c.dtype, lo.w, v[t].w));
			hi = make_uint4(higher(c.dtype, hi.x, v[t].x), higher(c.dtype, hi.y, v[t].y),
			                higher(c.dtype, hi.z, v[t].z), higher(c.dtype, hi.w, v[t].w));
		}
		low[head + page % SKV_PAGE_TOKENS * row + at] = lo;
		high[head + page % SKV_PAGE_TOKENS * row + at] = hi;
	}
}

/* Rounds a number of magnitude at most 448 up to e4m3: positive numbers away from zero, negative ones towards zero. */
DEVICE uint32_t fp8_round_up(float x)
{
	const uint32_t sign = __float_as_uint(x) >> 24 & 0x80, size = fp8_size(x);
	if (size < 121u << 23) { /* below 2^-6, e4m3 has steps of 2^-9 */
		const float steps = __uint_as_float(size) * 512;
		return sign | (uint32_t)(sign ? floorf(steps) : ceilf(steps));
	}
	return sign | (((size + (sign ? 0 : 0xfffff)) >> 20) - (120u << 3));
}

/* A lane has elements 4 lane + 128 i and the next three. */
#define FP8_WORDS (SKV_MAX_HEAD_DIM / 128)

/*
 * A warp stores a row of bounds, rounded up, and its scale. Signs of elements are flipped after rounding if `flip` is
 * 0x80808080.
 */
__device__ static void store_fp8_bounds(const float (&x)[FP8_WORDS][4], uint32_t dim, uint32_t flip, uint8_t *row, uint8_t *row_scale)
{
	const uint32_t lane = threadIdx.x % 32;
	uint32_t top = 0;
#pragma unroll
	for (int i = 0; i < FP8_WORDS; i++)
#pragma unroll
		for (int e = 0; e < 4; e++)
			top = 4 * lane + 128 * i < dim ? max(top, fp8_size(x[i][e])) : top;
	const uint32_t scale = fp8_scale_of(__reduce_max_sync(~0u, top));
	const float by = fp8_inverse(scale);
#pragma unroll
	for (int i = 0; i < FP8_WORDS; i++) {
		const uint32_t d = 4 * lane + 128 * i;
		uint32_t word = 0;
#pragma unroll
		for (int e = 0; e < 4; e++)
			word |= (scale == FP8_NAN_SCALE ? 0 : fp8_round_up(x[i][e] * by)) << 8 * e;
		if (d < dim)
			*(uint32_t *)&row[d] = word ^ flip;
	}
	if (lane == 0)
		*row_scale = (uint8_t)scale;
}

/*
 * A warp makes the bounds of `tokens` rows of kv head h in the page `keys`, for row `at` of the state page. Like the
 * host, it takes the largest -x and the largest x, rounds both up, and then flips the sign of the first to get the
 * lower bound.
 */
__device__ static void bound_fp8_rows(const struct update_params *c, const uint8_t *keys, uint8_t *state, uint32_t h, uint32_t at,
                                      uint32_t tokens)
{
	const uint32_t lane = threadIdx.x % 32, dim = c->head_dim, all = c->n_kv_heads * SKV_PAGE_TOKENS, first = h * SKV_PAGE_TOKENS;
	const size_t scales = (size_t)2 * all * dim;
	const float mine = fp8_unit(keys[scales + first + (lane < tokens ? lane : 0)]);
	float least[FP8_WORDS][4], most[FP8_WORDS][4];
#pragma unroll
	for (int i = 0; i < FP8_WORDS; i++) {
		const uint32_t d = 4 * lane + 128 * i;
		uint32_t v[SKV_PAGE_TOKENS];
#pragma unroll
		for (uint32_t t = 0; t < SKV_PAGE_TOKENS; t++) /* issues all loads at once */
			v[t] = d < dim ? *(const uint32_t *)&keys[(size_t)(first + (t < tokens ? t : 0)) * dim + d] : 0;
#pragma unroll
		for (int e = 0; e < 4; e++)
			least[i][e] = most[i][e] = -INFINITY;
#pragma unroll
		for (uint32_t t = 0; t < SKV_PAGE_TOKENS; t++) {
			const float unit = __shfl_sync(~0u, mine, t);
			const float2 two = fp8_two(v[t]), other = fp8_two(v[t] >> 16);
			const float x[] = {two.x * unit, two.y * unit, other.x * unit, other.y * unit};
#pragma unroll
			for (int e = 0; e < 4; e++) {
				least[i][e] = fmaxf(least[i][e], -x[e]);
				most[i][e] = fmaxf(most[i][e], x[e]);
			}
		}
	}
	store_fp8_bounds(least, dim, 0x80808080, state + (size_t)(first + at) * dim, state + scales + first + at);
	store_fp8_bounds(most, dim, 0, state + (size_t)(all + first + at) * dim, state + scales + all + first + at);
}

/* Makes the bounds of an fp8 page, one kv head per warp. The grid is pages of a sequence (x) by sequences (y). */
__global__ void __launch_bounds__(THREADS) update_fp8_kernel(const __grid_constant__ struct update_params c)
{
	const struct skv_kseq *s = &c.seq[blockIdx.y];
	if (s->n_state == 0)
		return;
	const skv_pte *table = s->table + (size_t)c.layer * s->layer_stride;
	const skv_pte *states = s->table + (size_t)c.state * s->layer_stride;

	for (uint32_t h = threadIdx.x / 32; h < c.n_kv_heads; h += THREADS / 32) {
		uint32_t page, tokens;
		if (!page_to_bound(&c, s, blockIdx.x, h, &page, &tokens))
			continue;
		const skv_pte entry = table[page], state = states[page / SKV_PAGE_TOKENS];
		if (skv_pte_resident(entry) && skv_pte_resident(state))
			bound_fp8_rows(&c, c.pool + skv_pte_id(entry) * c.page_bytes, c.pool + skv_pte_id(state) * c.page_bytes, h,
			               page % SKV_PAGE_TOKENS, tokens);
	}
}

void skv_cuda_update_bounds(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_slot_mapping *slots,
                            const struct skv_workspace *work)
{
	const struct update_params c = {
		.seq = b->seq,
		.slot = slots ? slots->slot : NULL,
		.pool = sh->pool,
		.page_bytes = sh->page_bytes,
		.n_kv_heads = sh->n_kv_heads,
		.head_dim = sh->head_dim,
		.dtype = sh->dtype,
		.layer = sh->layer,
		.state = sh->state,
	};
	/* The tokens may begin and end within a page, and a new slot may be in one page more. */
	const uint32_t pages = skv_pages_of(b->max_state + SKV_PAGE_TOKENS - 1) + (slots ? 1 : 0);

	if (b->n == 0 || b->max_state == 0)
		return;
	if (sh->dtype == SKV_FP8)
		launch_grid(update_fp8_kernel, dim3(pages, b->n), THREADS, 0, stream_of(work), c);
	else
		launch_grid(update_kernel, dim3(pages, b->n), THREADS, 0, stream_of(work), c);
}

/* ---- scores ---------------------------------------------------------------------------------- */

struct score_params {
	const struct skv_kseq *seq;
	const void *q;
	const uint8_t *pool;
	size_t page_bytes;
	float *page;
	uint32_t rows, page_stride;
	uint32_t n_heads, n_kv_heads, io_dtype, layer, state;
	uint32_t q_stride; /* elements from one row of q to the next */
	uint32_t heads;  /* number of queries of a kv head: its GQA group, or one mean */
	uint32_t states; /* number of state pages of a block */
	bool mean, max;
};

/* Queries as columns of operands: the positive parts (up) and the negative parts (down) of their elements. */
template <int D> struct q_columns {
	uint4 up[D / 32], down[D / 32];
};

/*
 * Loads the queries of q heads [g, g + 8) of kv head h. Columns past the last head are copies, whose scores are not
 * used.
 */
template <class T, int D>
__device__ static void load_q_columns(const struct score_params *c, const struct skv_kseq *s, uint32_t h, uint32_t g,
                                      q_columns<D> *to)
{
	const uint32_t group = c->n_heads / c->n_kv_heads, add = c->mean ? group : 1;
	const uint32_t col = min(g + threadIdx.x % 32 / 4, c->heads - 1);
	const size_t row = (size_t)s->row * c->q_stride + (h * group + col) * D + threadIdx.x % 4 * EIGHT;
#pragma unroll
	for (int b = 0; b < D / 32; b++) {
		float q[EIGHT] = {0};
		uint32_t up[4], down[4];
		for (uint32_t y = 0; y < add; y++) {
			const struct vec8 e = io_read8(c->io_dtype, c->q, row + (size_t)y * D + b * 32);
#pragma unroll
			for (int k = 0; k < 4; k++) {
				const float2 x = io_pair(c->io_dtype, &e, k);
				q[2 * k] += x.x;
				q[2 * k + 1] += x.y;
			}
		}
#pragma unroll
		for (int k = 0; k < 4; k++) {
			const float x = q[2 * k] / (float)add, y = q[2 * k + 1] / (float)add;
			up[k] = T::pair(x > 0 ? x : 0, y > 0 ? y : 0);
			down[k] = T::pair(x > 0 ? 0 : x, y > 0 ? 0 : y);
		}
		to->up[b] = make_uint4(up[0], up[1], up[2], up[3]);
		to->down[b] = make_uint4(down[0], down[1], down[2], down[3]);
	}
}

/* A lane's part of 16 rows of bounds: of row g, then of row g + 8; and, for fp8, the scales of these two rows. */
template <class T, int D> struct bounds {
	typename pieces<T>::eight row[D / 32][2];
	uint32_t scale[is_fp8<T> ? 2 : 1];
};

/* Loads rows `first` to first + 15 of a state page, which has `rows` rows in all. */
template <class T, int D>
__device__ static void load_bounds(bounds<T, D> *to, const uint8_t *page, uint32_t first, uint32_t rows, uint64_t once)
{
	const uint32_t g = threadIdx.x % 32 / 4, at = threadIdx.x % 4 * EIGHT;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		const uint32_t row = first + g + 8 * half;
#pragma unroll
		for (int b = 0; b < D / 32; b++)
			load_piece(&to->row[b][half], page + ((size_t)row * D + b * 32 + at) * element_bytes<T>, once);
		if constexpr (is_fp8<T>)
			to->scale[half] = page[(size_t)rows * D + row];
	}
}

template <class T, int D> DEVICE void add_products(float sum[4], const bounds<T, D> *k, const uint4 q[D / 32])
{
	float part[4] = {0}, *const to = is_fp8<T> ? part : sum;
#pragma unroll
	for (int b = 0; b < D / 32; b++) {
		const uint4 lo = widen(k->row[b][0]), hi = widen(k->row[b][1]);
		T::mma(to, lo.x, hi.x, lo.y, hi.y, q[b].x, q[b].y);
		T::mma(to, lo.z, hi.z, lo.w, hi.w, q[b].z, q[b].w);
	}
	if constexpr (is_fp8<T>)
#pragma unroll
		for (int x = 0; x < 4; x++)
			sum[x] += part[x] * fp8_unit(k->scale[x / 2]);
}

/* A block's shared memory: the table entries of its state pages, and the scores of their pages for each query. */
struct score_smem {
	skv_pte state[MAX_STATES];
	float score[]; /* [kv heads * heads][states][T] scores */
};

DEVICE float *score_at(const struct score_params *c, struct score_smem *smem, uint32_t query, uint32_t state)
{
	return smem->score + ((size_t)query * c->states + state) * SKV_PAGE_TOKENS;
}

/*
 * Stores a lane's scores of pages u and u + 8 of a state page, for two of the eight queries that begin with number g.
 */
DEVICE void store_scores(const struct score_params *c, struct score_smem *smem, uint32_t h, uint32_t g,
                         uint32_t state, const float sum[4])
{
	const uint32_t u = threadIdx.x % 32 / 4;
#pragma unroll
	for (uint32_t x = 0; x < 2; x++) {
		const uint32_t head = g + threadIdx.x % 4 * 2 + x;
		if (head < c->heads) {
			float *score = score_at(c, smem, h * c->heads + head, state);
			score[u] = sum[x];
			score[u + 8] = sum[x + 2];
		}
	}
}

/* Scores a warp's share of the block's n state pages: one kv head after the other, for the eight queries from g on. */
template <class T, int D>
__device__ static void score_kv_heads(const struct score_params *c, const struct skv_kseq *s,
                                      struct score_smem *smem, uint32_t n, uint32_t g)
{
	const uint32_t warps = SCORE_THREADS / 32, pieces = c->n_kv_heads * n, each = (pieces + warps - 1) / warps;
	const uint32_t from = threadIdx.x / 32 * each, to = min(from + each, pieces);
	const uint64_t once = evict_first_policy();
	/* Number of rows of lower bounds in a state page; rows of upper bounds follow them. */
	const uint32_t all = c->n_kv_heads * SKV_PAGE_TOKENS;
	q_columns<D> q;
	bounds<T, D> low, high;

	/* page_of() returns NULL for a state page that is not resident: it is not read, and its scores are not used. */
	auto page_of = [&](uint32_t piece) {
		const skv_pte at = piece < to ? smem->state[piece % n] : 0;
		return skv_pte_resident(at) ? c->pool + skv_pte_id(at) * c->page_bytes : NULL;
	};
	if (const uint8_t *page = page_of(from)) {
		load_bounds<T, D>(&low, page, from / n * SKV_PAGE_TOKENS, 2 * all, once);
		load_bounds<T, D>(&high, page, from / n * SKV_PAGE_TOKENS + all, 2 * all, once);
	}
	for (uint32_t piece = from; piece < to; piece++) {
		const uint8_t *next = page_of(piece + 1);
		const uint32_t next_row = (piece + 1) / n * SKV_PAGE_TOKENS;
		float sum[4] = {0};
		if (piece == from || piece % n == 0)
			load_q_columns<T, D>(c, s, piece / n, g, &q);
		add_products<T, D>(sum, &low, q.down);
		if (next)
			load_bounds<T, D>(&low, next, next_row, 2 * all, once);
		add_products<T, D>(sum, &high, q.up);
		if (next)
			load_bounds<T, D>(&high, next, next_row + all, 2 * all, once);
		store_scores(c, smem, piece / n, g, piece % n, sum);
	}
}

/*
 * Reduces the scores of a row's queries, by maximum or sum, and writes them. Pages that are not resident get -infinity.
 */
__device__ static void write_scores(const struct score_params *c, const struct skv_kseq *s, struct score_smem *smem,
                                    uint32_t first, uint32_t n)
{
	const skv_pte *table = s->table + (size_t)c->layer * s->layer_stride;
	const uint32_t each = c->n_kv_heads * c->heads / c->rows, pages = skv_pages_of(s->len);
	const uint32_t wide = n * SKV_PAGE_TOKENS;

	for (uint32_t x = threadIdx.x; x < c->rows * wide; x += SCORE_THREADS) {
		const uint32_t row = x / wide, state = x % wide / SKV_PAGE_TOKENS, u = x % SKV_PAGE_TOKENS;
		const uint32_t page = (first + state) * SKV_PAGE_TOKENS + u;
		float score = -INFINITY;
		if (page >= pages)
			continue;
		if (skv_pte_resident(smem->state[state]) && skv_pte_resident(table[page])) {
			score = score_at(c, smem, row * each, state)[u];
			for (uint32_t y = 1; y < each; y++) {
				const float other = score_at(c, smem, row * each + y, state)[u];
				score = !c->max ? score + other : score > other ? score : other;
			}
		}
		c->page[((size_t)blockIdx.y * c->rows + row) * c->page_stride + page] = score;
	}
}

/* Scores pages by their bounds. The grid is groups of state pages (x) by sequences (y). */
template <class T, int D>
__global__ void __launch_bounds__(SCORE_THREADS,
                                  D <= 128 ? 4 : 2) score_kernel(const __grid_constant__ struct score_params c)
{
	SHARED_MEMORY(uint8_t, memory, 16);
	struct score_smem *smem = (struct score_smem *)memory;
	const struct skv_kseq *s = &c.seq[blockIdx.y];
	const uint32_t all = (skv_pages_of(s->len) + SKV_PAGE_TOKENS - 1) / SKV_PAGE_TOKENS;
	const uint32_t first = blockIdx.x * c.states;
	if (first >= all)
		return;
	const uint32_t n = min(all - first, c.states);

	if (threadIdx.x < n)
		smem->state[threadIdx.x] = s->table[(size_t)c.state * s->layer_stride + first + threadIdx.x];
	__syncthreads();
	for (uint32_t g = 0; g < c.heads; g += HEAD_TILE)
		score_kv_heads<T, D>(&c, s, smem, n, g);
	__syncthreads();
	write_scores(&c, s, smem, first, n);
}

/* ---- launches -------------------------------------------------------------------------------- */

/*
 * Chooses the number of state pages of a block: many, so that a block has data to load while it computes, but not so
 * many that an SM is without work.
 */
static uint32_t state_pages_per_block(const struct score_params *c, uint32_t all, uint32_t n)
{
	const uint32_t fit = SCORE_BYTES / (c->n_kv_heads * c->heads * SKV_PAGE_TOKENS * (uint32_t)sizeof(float));
	const uint32_t pieces = ceil_div(MAX_STATES, c->n_kv_heads), most = pieces < 8 ? 8 : pieces;
	uint32_t states = all * n / (BLOCKS_PER_SM * skv_cuda_sms());

	states = states < most ? states : most;
	states = states < fit ? states : fit;
	return states ? states : 1;
}

template <class T, int D>
static void launch_dim(struct score_params *c, uint32_t pages, uint32_t n, cudaStream_t stream)
{
	const uint32_t all = ceil_div(pages, SKV_PAGE_TOKENS);
	size_t bytes;

	c->states = state_pages_per_block(c, all, n);
	bytes = sizeof(struct score_smem) +
	        (size_t)c->n_kv_heads * c->heads * c->states * SKV_PAGE_TOKENS * sizeof(float);
	launch_grid(score_kernel<T, D>, dim3(ceil_div(all, c->states), n), SCORE_THREADS, bytes, stream, *c);
}

template <class T>
static void launch(struct score_params *c, uint32_t head_dim, uint32_t pages, uint32_t n, cudaStream_t stream)
{
	if (head_dim == 64)
		launch_dim<T, 64>(c, pages, n, stream);
	else if (head_dim == 96)
		launch_dim<T, 96>(c, pages, n, stream);
	else if (head_dim == 128)
		launch_dim<T, 128>(c, pages, n, stream);
	else
		launch_dim<T, 256>(c, pages, n, stream);
}

void skv_cuda_score_pages(const struct skv_shape *sh, const struct skv_batch *b, const void *q, uint32_t pool,
                          const struct skv_scores *ev, const struct skv_workspace *work)
{
	struct score_params c = {
		.seq = b->seq,
		.q = q,
		.pool = sh->pool,
		.page_bytes = sh->page_bytes,
		.page = ev->page,
		.rows = ev->rows,
		.page_stride = ev->page_stride,
		.n_heads = sh->n_heads,
		.n_kv_heads = sh->n_kv_heads,
		.io_dtype = sh->io_dtype,
		.layer = sh->layer,
		.state = sh->state,
		.q_stride = skv_q_stride(sh),
		.heads = pool == SKV_REDUCE_MEAN_Q ? 1 : sh->n_heads / sh->n_kv_heads,
		.mean = pool == SKV_REDUCE_MEAN_Q,
		.max = pool == SKV_REDUCE_MAX,
	};

	if (b->n == 0)
		return;
	if (sh->dtype == SKV_F16)
		launch<F16>(&c, sh->head_dim, skv_pages_of(b->max_len), b->n, stream_of(work));
	else if (sh->dtype == SKV_FP8)
		launch<FP8>(&c, sh->head_dim, skv_pages_of(b->max_len), b->n, stream_of(work));
	else
		launch<BF16>(&c, sh->head_dim, skv_pages_of(b->max_len), b->n, stream_of(work));
}
