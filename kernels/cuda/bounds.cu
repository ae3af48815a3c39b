/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/bounds.cu - bounds of pages, and scores by them.
 *
 * Scores are bound by memory: a sixteenth of what dense attention reads. A block takes a state page, so the bounds
 * of 16 pages, and reads it once: a warp takes a kv head at a time and scores all of its q heads, in tiles of N.
 * TEAM lanes have a page together; each keeps what it needs of q in registers, as positive and negative parts:
 * q+ kmax + q- kmin is the larger of q kmin and q kmax. How a page's sums are made does not depend on where it is.
 */
#include <math.h>
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/cuda.h"

#define THREADS 128
#define WARPS_MOST 8u /* of a block that scores */
#define EIGHT 8u      /* elements that a lane reads at a time: 16 bytes */
#define AHEAD 4       /* pages that a team reads at a time */

/* ---- update ---------------------------------------------------------------------------------- */

struct update {
	const struct skv_kseq *seq;
	const uint32_t *slot; /* [seq][kv head], or NULL */
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
 * The page that block `nth` of a sequence makes the bounds of, and its tokens; false: none. With slots the first block
 * has the page of the kv head's slot; the others, which are whole, are made only if more than this token is asked for.
 */
DEVICE bool page_to_bound(const struct update *c, const struct skv_kseq *s, uint32_t nth, uint32_t h, uint32_t *ret_page,
                          uint32_t *ret_tokens)
{
	const uint32_t first = (s->len - s->n_bounds) / SKV_PAGE_TOKENS;
	uint32_t page = first + nth;

	*ret_tokens = SKV_PAGE_TOKENS;
	if (c->slot && s->n_q == 1) {
		const uint32_t slot = c->slot[(size_t)blockIdx.y * c->n_kv_heads + h], own = slot / SKV_PAGE_TOKENS;
		page = nth ? first + nth - 1 : own;
		if (nth == 0)
			*ret_tokens = slot % SKV_PAGE_TOKENS + 1;
		else if (s->n_bounds == 1 || page == own)
			return false;
	} else if (page * SKV_PAGE_TOKENS < s->len && s->len - page * SKV_PAGE_TOKENS < SKV_PAGE_TOKENS)
		*ret_tokens = s->len - page * SKV_PAGE_TOKENS;
	*ret_page = page;
	return page * SKV_PAGE_TOKENS < s->len;
}

/* A page's bounds, eight elements of a kv head a thread. Grid: pages of a sequence, sequences. */
__global__ void __launch_bounds__(THREADS) update_kernel(const __grid_constant__ struct update c)
{
	const struct skv_kseq *s = &c.seq[blockIdx.y];
	if (s->n_bounds == 0)
		return;
	const skv_pte *table = s->table + (size_t)c.layer * s->layer_stride;
	const skv_pte *states = s->table + (size_t)c.state * s->layer_stride;
	const uint32_t row = c.head_dim / EIGHT; /* in pieces of eight */

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
		for (uint32_t t = 0; t < SKV_PAGE_TOKENS; t++) /* all reads are on their way at once */
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

void skv_cuda_update_bounds(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_slots *slots,
                            const struct skv_work *work)
{
	const struct update c = {
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
	/* so many tokens may begin and end within a page; with slots one more */
	const uint32_t pages = skv_pages_of(b->max_bounds + SKV_PAGE_TOKENS - 1) + (slots ? 1 : 0);

	if (b->n > 0 && b->max_bounds > 0)
		update_kernel<<<dim3(pages, b->n), THREADS, 0, stream_of(work)>>>(c);
}

/* ---- scores ---------------------------------------------------------------------------------- */

struct score {
	const struct skv_kseq *seq;
	const void *q;
	const uint8_t *pool;
	size_t page_bytes;
	float *page;
	uint32_t rows, page_stride;
	uint32_t n_heads, n_kv_heads, head_dim, io_dtype, layer, state;
	uint32_t heads; /* scored for a kv head: its group, or one mean */
	bool mean, max;
};

/* What a lane keeps of N queries: eight elements of each. */
template <int N> struct queries {
	float up[N][EIGHT], down[N][EIGHT];
};

/* Elements [d, d + 8) of row `row`, on top of sum[]. */
DEVICE void add_row(const struct score *c, size_t row, uint32_t d, float sum[EIGHT])
{
	const struct eight e = io_read8(c->io_dtype, c->q, row * c->head_dim + d);
#pragma unroll
	for (int k = 0; k < (int)EIGHT / 2; k++) {
		const float2 x = io_pair(c->io_dtype, &e, k);
		sum[2 * k] += x.x;
		sum[2 * k + 1] += x.y;
	}
}

/* Queries [g, g + N) of kv head h; those that are not there, and what is past the row, are zeros. */
template <int N>
DEVICE void load_queries(const struct score *c, const struct skv_kseq *s, uint32_t h, uint32_t g, uint32_t d,
                         queries<N> *to)
{
	const uint32_t group = c->n_heads / c->n_kv_heads, add = c->mean ? group : 1;
#pragma unroll
	for (int x = 0; x < N; x++) {
		float q[EIGHT] = {0};
		if (g + x < c->heads && d < c->head_dim)
			for (uint32_t y = 0; y < add; y++)
				add_row(c, (size_t)s->row * c->n_heads + h * group + g + x + y, d, q);
#pragma unroll
		for (uint32_t k = 0; k < EIGHT; k++) {
			const float e = c->mean ? q[k] / (float)group : q[k];
			to->up[x][k] = e > 0 ? e : 0;
			to->down[x][k] = e > 0 ? 0 : e;
		}
	}
}

/* Eight elements of the bounds, times the queries', on top of sum[]. */
template <class T, int N> DEVICE void add_products(const queries<N> *q, uint4 low, uint4 high, float sum[N])
{
	const uint32_t l[] = {low.x, low.y, low.z, low.w}, u[] = {high.x, high.y, high.z, high.w};
#pragma unroll
	for (int k = 0; k < 4; k++) {
		const float2 lo = io_two(T::dtype, l[k]), hi = io_two(T::dtype, u[k]);
#pragma unroll
		for (int x = 0; x < N; x++) {
			sum[x] = fmaf(q->up[x][2 * k], hi.x, fmaf(q->down[x][2 * k], lo.x, sum[x]));
			sum[x] = fmaf(q->up[x][2 * k + 1], hi.y, fmaf(q->down[x][2 * k + 1], lo.y, sum[x]));
		}
	}
}

/*
 * N sums over a team's lanes, of which lane y of the team gets number y / (TEAM / N): in each step a lane passes half
 * of what it has on to another and goes on with the other half.
 */
template <int N, int TEAM> DEVICE float fold(float v[N], uint32_t lane)
{
	int n = N;
#pragma unroll
	for (int step = TEAM / 2; step; step /= 2) {
		if (n > 1) {
			const bool upper = lane & step;
			n /= 2;
#pragma unroll
			for (int x = 0; x < n; x++) {
				const float other = __shfl_xor_sync(~0u, upper ? v[x] : v[x + n], step);
				v[x] = (upper ? v[x + n] : v[x]) + other;
			}
		} else {
			v[0] += __shfl_xor_sync(~0u, v[0], step);
		}
	}
	return v[0];
}

/* Queries [g, g + N) of kv head h, for the pages whose bounds are at `low` and `high`: into scores [query][page]. */
template <class T, int TEAM, int N>
DEVICE void score_tile(const struct score *c, const struct skv_kseq *s, uint32_t h, uint32_t g, const uint8_t *low,
                       const uint8_t *high, uint32_t pages, float (*scores)[SKV_PAGE_TOKENS])
{
	const uint32_t lane = threadIdx.x % 32, team = lane / TEAM, x = lane % TEAM, d = x * EIGHT;
	const size_t row = c->head_dim * sizeof(uint16_t);
	const size_t at = (size_t)h * SKV_PAGE_TOKENS * row + d * sizeof(uint16_t);
	queries<N> q;

	load_queries<N>(c, s, h, g, d, &q);
	for (uint32_t first = 0; first < pages; first += AHEAD * (32 / TEAM)) {
		uint4 lo[AHEAD], hi[AHEAD];
#pragma unroll
		for (int y = 0; y < AHEAD; y++) {
			const uint32_t page = first + y * (32 / TEAM) + team;
			lo[y] = hi[y] = make_uint4(0, 0, 0, 0);
			if (page < pages && d < c->head_dim) {
				lo[y] = *(const uint4 *)(low + at + page * row);
				hi[y] = *(const uint4 *)(high + at + page * row);
			}
		}
#pragma unroll
		for (int y = 0; y < AHEAD; y++) {
			const uint32_t page = first + y * (32 / TEAM) + team, mine = g + x / (TEAM / N);
			float sum[N] = {0};
			add_products<T, N>(&q, lo[y], hi[y], sum);
			const float score = fold<N, TEAM>(sum, lane);
			if (page < pages && x % (TEAM / N) == 0 && mine < c->heads)
				scores[mine][page] = score;
		}
	}
}

/* Of all queries of a row, the largest or the sum; -infinity where a page is not there. */
DEVICE void write_scores(const struct score *c, const struct skv_kseq *s, const float (*scores)[SKV_PAGE_TOKENS],
                         bool bounded)
{
	const skv_pte *table = s->table + (size_t)c->layer * s->layer_stride;
	const uint32_t each = c->n_kv_heads * c->heads / c->rows, n = skv_pages_of(s->len);

	for (uint32_t x = threadIdx.x; x < c->rows * SKV_PAGE_TOKENS; x += blockDim.x) {
		const uint32_t row = x / SKV_PAGE_TOKENS, u = x % SKV_PAGE_TOKENS;
		const uint32_t page = blockIdx.x * SKV_PAGE_TOKENS + u;
		float score = -INFINITY;
		if (page >= n)
			continue;
		if (bounded && skv_pte_resident(table[page])) {
			score = scores[row * each][u];
			for (uint32_t y = 1; y < each; y++) {
				const float other = scores[row * each + y][u];
				score = !c->max ? score + other : score > other ? score : other;
			}
		}
		c->page[((size_t)blockIdx.y * c->rows + row) * c->page_stride + page] = score;
	}
}

/* Grid: state pages of a sequence, sequences. */
template <class T, int TEAM, int N>
__global__ void __launch_bounds__(32 * WARPS_MOST, N <= 4 ? 2 : 1) score_kernel(const __grid_constant__ struct score c)
{
	__shared__ float scores[SKV_MAX_HEADS][SKV_PAGE_TOKENS];
	const struct skv_kseq *s = &c.seq[blockIdx.y];
	const uint32_t n = skv_pages_of(s->len), from = blockIdx.x * SKV_PAGE_TOKENS;
	if (from >= n)
		return;
	const skv_pte state = s->table[(size_t)c.state * s->layer_stride + blockIdx.x];
	const uint32_t pages = n - from < SKV_PAGE_TOKENS ? n - from : SKV_PAGE_TOKENS;
	const uint8_t *low = c.pool + skv_pte_id(state) * c.page_bytes;

	if (skv_pte_resident(state))
		for (uint32_t h = threadIdx.x / 32; h < c.n_kv_heads; h += blockDim.x / 32)
			for (uint32_t g = 0; g < c.heads; g += N)
				score_tile<T, TEAM, N>(&c, s, h, g, low, low + c.page_bytes / 2, pages,
				                       scores + h * c.heads);
	__syncthreads();
	write_scores(&c, s, scores, skv_pte_resident(state));
}

/* ---- launches -------------------------------------------------------------------------------- */

template <class T, int TEAM>
static void launch_team(const struct score *c, uint32_t pages, uint32_t n, cudaStream_t stream)
{
	const dim3 grid(ceil_div(pages, SKV_PAGE_TOKENS), n);
	const uint32_t threads = 32 * (c->n_kv_heads < WARPS_MOST ? c->n_kv_heads : WARPS_MOST);

	if (c->heads == 1)
		score_kernel<T, TEAM, 1><<<grid, threads, 0, stream>>>(*c);
	else if (c->heads == 2)
		score_kernel<T, TEAM, 2><<<grid, threads, 0, stream>>>(*c);
	else if (c->heads <= 4)
		score_kernel<T, TEAM, 4><<<grid, threads, 0, stream>>>(*c);
	else
		score_kernel<T, TEAM, 8><<<grid, threads, 0, stream>>>(*c);
}

template <class T> static void launch(const struct score *c, uint32_t pages, uint32_t n, cudaStream_t stream)
{
	if (c->head_dim <= 64)
		launch_team<T, 8>(c, pages, n, stream);
	else if (c->head_dim <= 128)
		launch_team<T, 16>(c, pages, n, stream);
	else
		launch_team<T, 32>(c, pages, n, stream);
}

void skv_cuda_score_pages(const struct skv_shape *sh, const struct skv_batch *b, const void *q, uint32_t pool,
                          const struct skv_evidence *ev, const struct skv_work *work)
{
	const struct score c = {
		.seq = b->seq,
		.q = q,
		.pool = sh->pool,
		.page_bytes = sh->page_bytes,
		.page = ev->page,
		.rows = ev->rows,
		.page_stride = ev->page_stride,
		.n_heads = sh->n_heads,
		.n_kv_heads = sh->n_kv_heads,
		.head_dim = sh->head_dim,
		.io_dtype = sh->io_dtype,
		.layer = sh->layer,
		.state = sh->state,
		.heads = pool == SKV_POOL_MEAN_Q ? 1 : sh->n_heads / sh->n_kv_heads,
		.mean = pool == SKV_POOL_MEAN_Q,
		.max = pool == SKV_POOL_MAX,
	};

	if (b->n == 0)
		return;
	if (sh->dtype == SKV_F16)
		launch<F16>(&c, skv_pages_of(b->max_len), b->n, stream_of(work));
	else
		launch<BF16>(&c, skv_pages_of(b->max_len), b->n, stream_of(work));
}
