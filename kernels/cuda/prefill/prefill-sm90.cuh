/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/prefill/prefill-sm90.cuh - causal attention of many query rows with wgmma (sm_90a); see tiles.cuh.
 *
 * The kernel has the structure of FlashAttention-3, over pages and lists. One warpgroup (the producer) locates tokens
 * and copies K and V into pipeline stages in shared memory: pages by tensor copies for dense rows, 16 bytes at a time
 * for sparse rows. The other warpgroups (the consumers) have 64 rows each. While the tensor cores multiply a tile's V,
 * the next tile's scores are already computed and become weights. K and V have separate barriers, because a tile's V is
 * copied after the next tile's K.
 */
#ifndef SKV_CUDA_PREFILL_SM90_CUH
#define SKV_CUDA_PREFILL_SM90_CUH

#include "kernels/cuda/runtime/barrier.cuh"
#include "kernels/cuda/prefill/output.cuh"
#include "kernels/cuda/runtime/tensor-map.cuh"
#include "kernels/cuda/runtime/wgmma.cuh"

#define STAGES 2u
#define RING 4u /* number of tiles whose tokens are located in advance */

template <int D, int GROUPS, int N> struct sm90_smem {
	static constexpr uint32_t matrix_descriptor = D / 64;
	static constexpr uint32_t rows = 64 * GROUPS, threads = 128 * (GROUPS + 1);
	static constexpr uint32_t q_group = matrix_descriptor * 64 * 128, tile = matrix_descriptor * N * 128;
	static constexpr uint32_t k_at = GROUPS * q_group, v_at = k_at + STAGES * tile;
	static constexpr uint32_t ring_at = v_at + STAGES * tile;
	static constexpr uint32_t barrier_at = (ring_at + RING * sizeof(struct located_tile<N>) + 7) / 8 * 8;
	static constexpr uint32_t bytes = barrier_at + 4 * STAGES * 8;
};

/* ---- the producer for sparse rows: tokens --------------------------------------------------- */

/*
 * Begins to copy K or V of a tile's tokens to a stage. From one copy of a thread to its next copy, neither the swizzled
 * piece nor the bank changes, so only the address is computed. `whole`: all tokens are resident; otherwise zeros are
 * stored for tokens that are not.
 */
template <int D, int N>
__device__ static void copy_rows(const uint8_t *pool, const uint32_t *row, bool whole, uint32_t to, uint32_t full)
{
	/* step: tokens from one copy of a thread to the next, 8 or 16 */
	constexpr uint32_t pieces = D / 8, step = 128 / pieces;
	const uint32_t t = threadIdx.x / pieces, p = threadIdx.x % pieces;
	const uint8_t *from = pool + p * 16;
	uint32_t r[N / step];
	to += p / 8 * (N * 128) + panel_at(t, p % 8);
#pragma unroll
	for (uint32_t k = 0; k < N / step; k++)
		r[k] = row[t + k * step];
	if (whole) {
#pragma unroll
		for (uint32_t k = 0; k < N / step; k++)
			cp_async16(to + k * step * 128, from + (size_t)r[k] * (D * 2), true);
	} else {
#pragma unroll
		for (uint32_t k = 0; k < N / step; k++) {
			const bool resident = r[k] != 0xffffffff;
			cp_async16(to + k * step * 128, from + (size_t)(resident ? r[k] : 0) * (D * 2), resident);
		}
	}
	asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(full) : "memory");
}

/* Barrier of the producer's threads. Returns true if x is true in all of them. */
DEVICE bool producers_all(bool x)
{
	uint32_t all;
	asm volatile("{ .reg .pred p, r; setp.ne.u32 p, %1, 0; barrier.red.and.pred r, 1, 128, p; selp.u32 %0, 1, 0, r; }"
	             : "=r"(all) : "r"((uint32_t)x) : "memory");
	return all;
}

template <int D, int GROUPS, int N>
__device__ static void produce_tokens(const struct prefill_params *c, uint8_t *memory)
{
	struct work_item x = {};
	using M = sm90_smem<D, GROUPS, N>;
	const uint32_t base = shared_address(memory), bar = base + M::barrier_at, lane = threadIdx.x % 32;
	const uint32_t page_rows = (uint32_t)(c->page_bytes / (D * 2));
	const uint8_t *values = c->pool + c->page_bytes / 2;
	struct located_tile<N> *ring = (struct located_tile<N> *)(memory + M::ring_at);
	struct work_cursor w = begin_cursor(c, &x);
	uint32_t n = 0, row = 0, j = 0;
	bool more = next_item<true, M::rows, N>(c, &w, &x), whole = true;

	if (more && threadIdx.x < N)
		row = token_row<D>(c, &x, page_rows, tile_token(&x.kv_range, j, threadIdx.x, N));
	for (; more || n > 0; n++) {
		const uint32_t stage = n % STAGES, was = (n - 1) % STAGES, located = n % RING;
		const bool last = !more, whole_was = whole;
		if (!last) {
			if (threadIdx.x < N) {
				ring[located].row[threadIdx.x] = row;
				const uint32_t seen = __ballot_sync(~0u, row != 0xffffffff);
				if (lane == 0)
					ring[located].resident[threadIdx.x / 32] = seen;
			}
			whole = producers_all(threadIdx.x >= N || row != 0xffffffff);
			if (++j == x.kv_range.tiles) {
				j = 0;
				more = next_item<true, M::rows, N>(c, &w, &x);
			}
			if (more && threadIdx.x < N)
				row = token_row<D>(c, &x, page_rows, tile_token(&x.kv_range, j, threadIdx.x, N));
			wait_phase(bar + 8 * (2 * STAGES + stage), n / STAGES % 2 ^ 1);
			copy_rows<D, N>(c->pool, ring[located].row, whole, base + M::k_at + stage * M::tile,
			                bar + 8 * stage);
			/* This arrival also makes the located tokens visible to the consumers. */
			if (threadIdx.x == 0)
				asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar + 8 * stage) : "memory");
		}
		if (n > 0) {
			wait_phase(bar + 8 * (3 * STAGES + was), (n - 1) / STAGES % 2 ^ 1);
			copy_rows<D, N>(values, ring[(n - 1) % RING].row, whole_was,
			                base + M::v_at + was * M::tile,
			                bar + 8 * (STAGES + was));
		}
		if (last)
			break;
	}
	asm volatile("cp.async.wait_all;" ::: "memory");
}

/* ---- the producer for dense rows: pages ------------------------------------------------------ */

/* Two pages of a tile, which a warp copies. A lane copies one panel of one of them; 2 * D / 64 lanes do so. */
struct page_pair {
	int32_t page;         /* the lane's page in the pool; -1: zeros are copied */
	uint32_t resident;    /* mask of the resident ones of the pages' 32 tokens */
	uint32_t part, there; /* a page that has only `there` tokens (0 or 1), the sequence's last one; else there = 0 */
};

/* Locates the pages of tokens [first, first + 32). */
template <int D>
__device__ static struct page_pair locate_pages(const struct prefill_params *c, const struct work_item *x, uint32_t first)
{
	constexpr uint32_t panels = D / 64;
	const skv_pte *table = x->s->table + (size_t)c->layer * x->s->layer_stride;
	const uint32_t token = first + threadIdx.x / panels % 2 * SKV_PAGE_TOKENS;
	const skv_pte entry = token < x->s->len ? table[token / SKV_PAGE_TOKENS] : 0;
	const uint32_t seen = __ballot_sync(~0u, skv_pte_resident(entry)), rest = x->s->len - min(x->s->len, first);
	struct page_pair p;
	p.page = skv_pte_resident(entry) ? (int32_t)skv_pte_id(entry) : -1;
	p.resident = (seen & 1 ? 0xffff : 0) | (seen >> panels & 1 ? 0xffff0000 : 0);
	p.part = rest / SKV_PAGE_TOKENS;
	p.there = p.part < 2 && seen >> p.part * panels & 1 ? rest % SKV_PAGE_TOKENS : 0;
	return p;
}

/* Begins to copy the pages' rows from `row` on to shared memory, except those of page `but`. */
template <int D, int N>
__device__ static void copy_pages(const CUtensorMap *pages, const struct page_pair *p, uint32_t row, uint32_t but,
                                  uint32_t to, uint32_t full)
{
	constexpr uint32_t panels = D / 64, bytes = SKV_PAGE_TOKENS * 128;
	const uint32_t lane = threadIdx.x % 32, panel = lane % panels, page = lane / panels;
	if (lane == 0)
		arrive_expect(full, (but < 2 ? 1 : 2) * panels * bytes);
	__syncwarp();
	if (page < 2 && page != but)
		copy_tensor(to + panel * (N * 128) + page * bytes, pages, panel * 64, (int32_t)row, p->page, full);
}

/* Copies the first `there` rows of a page's V, and zeros for the others. */
template <int D, int N> __device__ static void copy_part(const uint8_t *from, uint32_t there, uint32_t to)
{
	constexpr uint32_t pieces = D / 8;
	for (uint32_t i = threadIdx.x % 32; i < SKV_PAGE_TOKENS * pieces; i += 32) {
		const uint32_t t = i / pieces, p = i % pieces;
		const uint4 x = t < there ? ((const uint4 *)from)[i] : make_uint4(0, 0, 0, 0);
		store_shared16(to + p / 8 * (N * 128) + panel_at(t, p % 8), x);
	}
	fence_proxy_async();
	__syncwarp();
}

/*
 * Begins to copy the pages' V. Memory after a sequence's last token may hold NaNs. Scores of such tokens are masked, but
 * products of their V with weights of 0 would be NaN. So zeros take their place.
 */
template <int D, int N>
__device__ static void copy_values(const struct prefill_params *c, const CUtensorMap *pages, const struct page_pair *p,
                                   uint32_t row, uint32_t to, uint32_t full)
{
	if (p->there) {
		const size_t page = (size_t)__shfl_sync(~0u, p->page, p->part * (D / 64));
		copy_part<D, N>(c->pool + page * c->page_bytes + row * (D * 2), p->there, to + p->part * (SKV_PAGE_TOKENS * 128));
	}
	copy_pages<D, N>(pages, p, row, p->there ? p->part : 2, to, full);
}

template <int D, int GROUPS, int N>
__device__ static void produce_pages(const struct prefill_params *c, const CUtensorMap *pages, uint8_t *memory)
{
	struct work_item x = {};
	using M = sm90_smem<D, GROUPS, N>;
	static_assert(N == 4 * 2 * SKV_PAGE_TOKENS, "four warps copy two pages of a tile each");
	const uint32_t bar = shared_address(memory) + M::barrier_at, warp = threadIdx.x / 32;
	const uint32_t to = shared_address(memory) + warp * (2 * SKV_PAGE_TOKENS * 128);
	struct located_tile<N> *ring = (struct located_tile<N> *)(memory + M::ring_at);
	struct work_cursor w = begin_cursor(c, &x);
	const uint32_t keys = x.h * SKV_PAGE_TOKENS, values = keys + (uint32_t)(c->page_bytes / (D * 4));
	uint32_t n = 0, j = 0;
	bool more = next_item<false, M::rows, N>(c, &w, &x);
	struct page_pair next = {}, now = {};

	if (more)
		next = locate_pages<D>(c, &x, warp * 32);
	for (; more || n > 0; n++) {
		const uint32_t stage = n % STAGES, was = (n - 1) % STAGES;
		const struct page_pair before = now;
		const bool last = !more;
		if (!last) {
			now = next;
			if (++j == x.kv_range.tiles) {
				j = 0;
				more = next_item<false, M::rows, N>(c, &w, &x);
			}
			if (more)
				next = locate_pages<D>(c, &x, j * N + warp * 32);
			wait_phase(bar + 8 * (2 * STAGES + stage), n / STAGES % 2 ^ 1);
			if (threadIdx.x % 32 == 0)
				ring[n % RING].resident[warp] = now.resident;
			copy_pages<D, N>(pages, &now, keys, 2, to + M::k_at + stage * M::tile, bar + 8 * stage);
		}
		if (n > 0) {
			wait_phase(bar + 8 * (3 * STAGES + was), (n - 1) / STAGES % 2 ^ 1);
			copy_values<D, N>(c, pages, &before, values, to + M::v_at + was * M::tile, bar + 8 * (STAGES + was));
		}
		if (last)
			break;
	}
}

/* ---- the consumers --------------------------------------------------------------------------- */

/* Keeps the compiler from using accumulators before the products are done. */
template <int n> DEVICE void accumulators_ready(float (&d)[n])
{
#pragma unroll
	for (int i = 0; i < n; i++)
		asm volatile("" : "+f"(d[i])::"memory");
}

/*
 * Keeps the order of two things: x, which is never negative, is computed before what follows. Without this call ptxas
 * moves the next wgmma_wait() up. The softmax would then run after the products, and not at the same time.
 */
DEVICE void keep_order(float x)
{
	asm volatile("{ .reg .pred p; setp.lt.f32 p, %0, 0f00000000; @p nanosleep.u32 0; }" ::"f"(x) : "memory");
}

/* Loads the queries of a warpgroup's rows into shared memory. */
template <bool SPARSE, class T, int D, int GROUPS, int N>
__device__ static void load_queries(const struct prefill_params *c, const struct work_item *x, uint32_t group,
                                    uint8_t *memory)
{
	using M = sm90_smem<D, GROUPS, N>;
	constexpr uint32_t pieces = D / 8;
	const uint32_t tid = threadIdx.x % 128, p = tid % pieces;
	uint8_t *to = memory + group * M::q_group + p / 8 * (64 * 128);
#pragma unroll 4
	for (uint32_t r = tid / pieces; r < 64; r += 128 / pieces) {
		const struct pair_row row = pair_row<SPARSE, M::rows>(c, x, group * 64 + r);
		uint4 piece = {};
		if (row.at != 0xffffffff) {
			const struct vec8 e = io_read8(c->io_dtype, c->q, row.q + p * 8);
			uint32_t w[4];
#pragma unroll
			for (int k = 0; k < 4; k++) {
				const float2 pair = io_pair(c->io_dtype, &e, k);
				w[k] = T::pair(pair.x, pair.y);
			}
			piece = make_uint4(w[0], w[1], w[2], w[3]);
		}
		*(uint4 *)(to + panel_at(r, p % 8)) = piece;
	}
	fence_proxy_async();
	warps_sync(3 + group, 128);
}

template <bool SPARSE, int D, int ROWS>
__device__ static void sm90_begin(const struct prefill_params *c, const struct work_item *x, uint32_t group,
                                  struct out_rows<D> *r)
{
	const uint32_t lane = threadIdx.x % 32, first = group * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
	for (int y = 0; y < 2; y++) {
		const struct pair_row row = pair_row<SPARSE, ROWS>(c, x, first + 8 * y);
		r->p[y] = row.p;
		r->at[y] = row.at;
		r->low[y] = SPARSE ? window_start(c, row.p) : 0;
		r->max[y] = -INFINITY;
		r->sum[y] = 0;
	}
#pragma unroll
	for (int i = 0; i < D / 2; i++)
		r->o[i] = 0;
}

template <int N> DEVICE bool all_resident(const struct located_tile<N> *t)
{
	uint32_t all = ~0u;
#pragma unroll
	for (uint32_t i = 0; i < N / 32; i++)
		all &= t->resident[i];
	return all == ~0u;
}

/*
 * Applies the softcap to products q·k, and sets them to -infinity for tokens that a row does not attend to or that are
 * not resident.
 */
template <int D, int N>
__device__ static void sm90_mask(const struct prefill_params *c, const struct work_item *x,
                                 const struct out_rows<D> *r, uint32_t j,
                                 const struct located_tile<N> *located, float (&s)[N / 2])
{
	const bool listed = tile_listed(&x->kv_range, j);
	const uint32_t first = tile_first(&x->kv_range, j, N), sinks = c->kinds ? 0 : c->sparse.sinks;
	const uint32_t column = threadIdx.x % 4 * 2;
	bool all = all_resident(located);
	if (c->scale.cap != 0)
#pragma unroll
		for (int i = 0; i < N / 2; i++)
			s[i] = soft_cap(c->scale.cap, s[i]);
#pragma unroll
	for (int y = 0; y < 2; y++)
		all &= listed || (first + N - 1 <= r->p[y] && (first >= r->low[y] || first + N <= sinks));
	if (__all_sync(~0u, all))
		return;
#pragma unroll
	for (int i = 0; i < N / 2; i++) {
		const int y = i / 2 % 2;
		const uint32_t at = i / 4 * 8 + column + i % 2, t = first + at;
		const bool seen = listed | ((t <= r->p[y]) & ((t >= r->low[y]) | (t < sinks)));
		s[i] = seen & (located->resident[i / 16] >> at % 32 & 1) ? s[i] : -INFINITY;
	}
}

/*
 * Performs an online softmax step for a tile: s becomes weights; the rows' maximum and sum are updated. Sets fix[] to
 * the factors by which the output so far must be multiplied.
 */
template <int D, int N> DEVICE void sm90_softmax_step(const struct prefill_params *c, struct out_rows<D> *r,
                                                      float (&s)[N / 2], float (&fix)[2])
{
#pragma unroll
	for (int y = 0; y < 2; y++) {
		float max = s[2 * y], sum = 0;
#pragma unroll
		for (int i = 0; i < N / 8; i++)
			max = fmaxf(max, fmaxf(s[4 * i + 2 * y], s[4 * i + 2 * y + 1]));
		max = fmaxf(max, __shfl_xor_sync(~0u, max, 1));
		max = fmaxf(max, __shfl_xor_sync(~0u, max, 2));
		max = fmaxf(r->max[y], max * c->scale.scale);
		const float base = max == -INFINITY ? 0 : max;
		fix[y] = exp2_fast(r->max[y] - base);
		r->max[y] = max;
#pragma unroll
		for (int i = 0; i < N / 8; i++)
#pragma unroll
			for (int z = 0; z < 2; z++) {
				float *e = &s[4 * i + 2 * y + z];
				*e = exp2_fast(fmaf(*e, c->scale.scale, -base));
				sum += *e;
			}
		r->sum[y] = r->sum[y] * fix[y] + sum;
	}
}

template <class T, int N> DEVICE void sm90_pack(const float (&s)[N / 2], uint32_t (&w)[N / 16][4])
{
#pragma unroll
	for (int k = 0; k < N / 16; k++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			w[k][i] = T::pair(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
}

/* Multiplies the rows' outputs by fix[]. In most tiles no row has a new maximum, and all factors are 1. */
template <int D> DEVICE void sm90_rescale(struct out_rows<D> *r, const float (&fix)[2])
{
	if (__all_sync(~0u, fix[0] == 1 && fix[1] == 1))
		return;
#pragma unroll
	for (int i = 0; i < D / 2; i++)
		r->o[i] *= fix[i / 2 % 2];
}

/* `tokens`: K was copied by cp.async. The tensor cores see such copies only after a fence. */
template <class T, int D, int GROUPS, int N>
DEVICE void sm90_scores(bool tokens, uint32_t base, uint32_t group, uint32_t stage, float (&s)[N / 2])
{
	using M = sm90_smem<D, GROUPS, N>;
	const uint64_t q = matrix_descriptor(base + group * M::q_group, 0);
	const uint64_t k = matrix_descriptor(base + M::k_at + stage * M::tile, 0);
	if (tokens)
		fence_proxy_async();
	wgmma_fence();
#pragma unroll
	for (int d = 0; d < D / 16; d++)
		wgmma_scores<T>(s, q + (d / 4 * (64 * 128) + d % 4 * 32) / 16,
		                k + (d / 4 * (N * 128) + d % 4 * 32) / 16, d > 0);
	wgmma_commit();
}

template <class T, int D, int GROUPS, int N>
DEVICE void sm90_values(bool tokens, uint32_t base, uint32_t stage, const uint32_t (&w)[N / 16][4], float (&o)[D / 2])
{
	using M = sm90_smem<D, GROUPS, N>;
	const uint64_t v = matrix_descriptor(base + M::v_at + stage * M::tile, N * 128);
	if (tokens)
		fence_proxy_async();
	wgmma_fence();
#pragma unroll
	for (int k = 0; k < N / 16; k++)
		wgmma_values<T>(o, w[k], v + k * (16 * 128) / 16);
	wgmma_commit();
}

/* Signals that this warp no longer needs a stage. */
DEVICE void stage_free(uint32_t at)
{
	if (threadIdx.x % 32 == 0)
		asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

/*
 * Attends to all tiles of a work item. The item's first tile is number n of the tiles that the block attends to. The
 * compiler must see that n and `tiles` are the same in all threads: it then computes addresses once a warp.
 */
template <bool SPARSE, class T, int D, int GROUPS, int N>
__device__ static void sm90_tiles(const struct prefill_params *c, const struct work_item *x, uint32_t group,
                                  uint32_t n, uint32_t tiles, uint8_t *memory, struct out_rows<D> *r)
{
	using M = sm90_smem<D, GROUPS, N>;
	const uint32_t base = shared_address(memory), bar = base + M::barrier_at;
	const struct located_tile<N> *ring = (const struct located_tile<N> *)(memory + M::ring_at);
	float s[N / 2], fix[2];
	uint32_t w[N / 16][4];

	wait_phase(bar + 8 * (n % STAGES), n / STAGES % 2);
	sm90_scores<T, D, GROUPS, N>(SPARSE, base, group, n % STAGES, s);
	wgmma_wait<0>();
	accumulators_ready(s);
	stage_free(bar + 8 * (2 * STAGES + n % STAGES));
	sm90_mask<D, N>(c, x, r, 0, &ring[n % RING], s);
	sm90_softmax_step<D, N>(c, r, s, fix);
	sm90_pack<T, N>(s, w);
	for (uint32_t j = 1; j < tiles; j++) {
		const uint32_t k = n + j, v = k - 1;
		wait_phase(bar + 8 * (k % STAGES), k / STAGES % 2);
		if (GROUPS == 2)
			warps_sync(5 + group, 256);
		sm90_scores<T, D, GROUPS, N>(SPARSE, base, group, k % STAGES, s);
		wait_phase(bar + 8 * (STAGES + v % STAGES), v / STAGES % 2);
		sm90_values<T, D, GROUPS, N>(SPARSE, base, v % STAGES, w, r->o);
		if (GROUPS == 2)
			asm volatile("bar.arrive %0, 256;" ::"r"(5 + (group ^ 1)) : "memory");
		wgmma_wait<1>();
		accumulators_ready(s);
		stage_free(bar + 8 * (2 * STAGES + k % STAGES));
		sm90_mask<D, N>(c, x, r, j, &ring[k % RING], s);
		sm90_softmax_step<D, N>(c, r, s, fix);
		keep_order(r->sum[0] + r->sum[1]);
		wgmma_wait<0>();
		accumulators_ready(r->o);
		stage_free(bar + 8 * (3 * STAGES + v % STAGES));
		sm90_rescale<D>(r, fix);
		sm90_pack<T, N>(s, w);
	}
	const uint32_t v = n + tiles - 1;
	wait_phase(bar + 8 * (STAGES + v % STAGES), v / STAGES % 2);
	sm90_values<T, D, GROUPS, N>(SPARSE, base, v % STAGES, w, r->o);
	wgmma_wait<0>();
	accumulators_ready(r->o);
	stage_free(bar + 8 * (3 * STAGES + v % STAGES));
#pragma unroll
	for (int y = 0; y < 2; y++) {
		float sum = r->sum[y];
		sum += __shfl_xor_sync(~0u, sum, 1);
		sum += __shfl_xor_sync(~0u, sum, 2);
		r->sum[y] = sum;
		const float share = row_share<D>(c, r, y);
#pragma unroll
		for (int i = 0; i < D / 4; i++)
			r->o[i / 2 * 4 + 2 * y + i % 2] *= share;
	}
}

template <bool SPARSE, class T, int D, int GROUPS, int N>
__device__ static void consume(const struct prefill_params *c, uint8_t *memory)
{
	struct work_item x = {};
	using M = sm90_smem<D, GROUPS, N>;
	const uint32_t group = __shfl_sync(~0u, threadIdx.x / 128 - 1, 0);
	struct out_rows<D> r;
	struct work_cursor w = begin_cursor(c, &x);
	uint32_t n = 0;

	if (GROUPS == 2 && group == 1) /* lets the first warpgroup begin */
		asm volatile("bar.arrive 5, 256;" ::: "memory");
	while (next_item<SPARSE, M::rows, N>(c, &w, &x)) {
		load_queries<SPARSE, T, D, GROUPS, N>(c, &x, group, memory);
		sm90_begin<SPARSE, D, M::rows>(c, &x, group, &r);
		const uint32_t tiles = __shfl_sync(~0u, x.kv_range.tiles, 0);
		sm90_tiles<SPARSE, T, D, GROUPS, N>(c, &x, group, n, tiles, memory, &r);
		n += tiles;
		if (SPARSE)
			store_sparse<D, 128 * GROUPS>(c, &x, &r);
		else
			store_dense<D>(c, &x, &r);
	}
}

template <bool SPARSE, class T, int D, int GROUPS, int N>
__global__ void __launch_bounds__(128 * (GROUPS + 1), 3 - GROUPS)
prefill_sm90_kernel(const __grid_constant__ struct prefill_params c, const __grid_constant__ CUtensorMap pages)
{
	extern __shared__ __align__(1024) uint8_t memory[];
	using M = sm90_smem<D, GROUPS, N>;
	if (threadIdx.x == 0) {
		barrier *b = (barrier *)(memory + M::barrier_at);
		for (uint32_t i = 0; i < STAGES; i++) {
			barrier_init(b + i, SPARSE ? 129 : 4);          /* K is full */
			barrier_init(b + STAGES + i, SPARSE ? 128 : 4); /* V is full */
			barrier_init(b + 2 * STAGES + i, 4 * GROUPS);   /* K is free */
			barrier_init(b + 3 * STAGES + i, 4 * GROUPS);   /* V is free */
		}
		asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
	}
	__syncthreads();
	if (threadIdx.x < 128) {
		asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
		if constexpr (SPARSE)
			produce_tokens<D, GROUPS, N>(&c, memory);
		else
			produce_pages<D, GROUPS, N>(&c, &pages, memory);
	} else {
		asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(GROUPS == 2 ? 224 : 192));
		consume<SPARSE, T, D, GROUPS, N>(&c, memory);
	}
}

#endif
