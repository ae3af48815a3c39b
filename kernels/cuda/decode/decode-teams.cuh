/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/decode/decode-teams.cuh - decode attention where a kv head has more columns than a head tile: of several rows of a
 * sequence, or of large groups. See decode.cuh.
 *
 * Warps of a team read the same tokens, each for a head tile of its own. So K and V are staged in shared memory: a team has a ring of
 * tiles, which all of its warps copy to and read. From there they go to the registers that they go to elsewhere, and so results have
 * the same bits. A team takes one run after the other, and each run is a work item: results have many columns, so what counts is that
 * there are few. Sums of leaves wait in registers, and in shared memory where they wait for long.
 */
#ifndef SKV_CUDA_DECODE_TEAMS_CUH
#define SKV_CUDA_DECODE_TEAMS_CUH

#include "kernels/cuda/decode/decode-leaves.cuh"
#include "kernels/cuda/runtime/async-copy.cuh"

#define TEAM_TILES 12 /* of a block's teams together, in shared memory */
#define TEAM_LEVELS 2 /* of sums that wait in shared memory: those of four leaves, and of eight */

/*
 * A tile in shared memory: rows of K, rows of V, and of fp8 the scales of both. They lie so far apart that the lanes that load at a time
 * have different banks: for K those of several rows and four pieces, for V those of every other row and several pieces.
 */
template <class T, int D> struct staged_tile {
	static constexpr uint32_t ROW = D * element_bytes<T>, CHUNKS = ROW; /* of 16 bytes, in 16 rows */
	static constexpr uint32_t K_ROW = ROW + (32 * element_bytes<T> + 128 - ROW % 128) % 128, V_ROW = ROW + 16;
	static constexpr uint32_t V = 16 * K_ROW, SCALES = V + 16 * V_ROW, BYTES = SCALES + (is_fp8<T> ? 32 : 0);
};

/* Copy this warp's part of tile k: all of its page's tokens, also those that the request does not attend to, if it does to any. */
template <class T, int D>
__device__ static void copy_tile(const struct decode_params *c, const struct work_item *j, struct tile_batch ts, uint32_t k, uint32_t to)
{
	typedef staged_tile<T, D> tile;
	constexpr uint32_t per = tile::ROW / 16;
	const uint32_t mask = __shfl_sync(~0u, ts.mask, k), page = __shfl_sync(~0u, ts.page, k), n = 32 * c->team;
	const size_t all = (size_t)c->n_kv_heads * SKV_PAGE_TOKENS;
	const uint8_t *from = c->pool + page * c->page_bytes, *const rows = from + (size_t)j->h * SKV_PAGE_TOKENS * tile::ROW;
	if (!mask)
		return;
#pragma unroll 2
	for (uint32_t x = threadIdx.x % n; x < tile::CHUNKS; x += n) {
		cp_async16(to + x / per * tile::K_ROW + x % per * 16, rows + x * 16, true);
		cp_async16(to + tile::V + x / per * tile::V_ROW + x % per * 16, rows + all * tile::ROW + x * 16, true);
	}
	if (is_fp8<T> && threadIdx.x % n < 2)
		cp_async16(to + tile::SCALES + threadIdx.x % n * 16, from + 2 * all * D + threadIdx.x % n * all + j->h * SKV_PAGE_TOKENS, true);
}

DEVICE void take_piece(uint4 *to, uint32_t at)
{
	*to = load_shared16(at);
}
DEVICE void take_piece(uint2 *to, uint32_t at)
{
	*to = load_shared8(at);
}
DEVICE void take_piece(uint32_t *to, uint32_t at)
{
	*to = load_shared4(at);
}

/* From shared memory to the registers that load_k() and load_scales() load. */
template <class T, int D> __device__ static void take_keys(struct warp_state<T, D> *w, uint32_t mask, uint32_t tile)
{
	const uint32_t g = threadIdx.x % 32 / 4, at = tile + threadIdx.x % 4 * 8 * element_bytes<T>;
#pragma unroll
	for (int b = 0; b < D / 32; b++)
#pragma unroll
		for (int half = 0; half < 2; half++)
			take_piece(&w->k[0][b][half], at + (g + 8 * half) * staged_tile<T, D>::K_ROW + b * 32 * element_bytes<T>);
	if (is_fp8<T>)
		w->scale[0] = mask >> threadIdx.x % 16 & 1 ? load_shared1(tile + staged_tile<T, D>::SCALES + threadIdx.x % 32) : 0;
}

/* The same of load_v(). */
template <class T, int D> __device__ static void take_values(struct warp_state<T, D> *w, uint32_t tile)
{
	const uint32_t g = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
#pragma unroll
	for (int t = 0; t < 4; t++) {
		const uint32_t at = tile + staged_tile<T, D>::V + (pair + t % 2 + t / 2 * 8) * staged_tile<T, D>::V_ROW;
#pragma unroll
		for (int b = 0; b < w->WIDE; b++)
			take_piece(&w->v[0][b][t], at + (b * 64 + g * 8) * element_bytes<T>);
		if (w->REST)
			take_piece(&w->v_rest[0][t], at + (w->WIDE * 64 + g * 4) * element_bytes<T>);
	}
}

/* Scores of a warp's columns: scaled, and -infinity of tokens that are not there, or that a column's row does not attend to. */
DEVICE void mask_scores(const struct decode_params *c, const struct work_item *j, uint32_t tile, uint32_t mask, float s[4])
{
	const uint32_t g = threadIdx.x % 32 / 4, col = threadIdx.x % 4 * 2;
	const bool all = c->rows == 1 || (tile + 1) * SKV_PAGE_TOKENS <= j->len - (c->rows - 1);
#pragma unroll
	for (int x = 0; x < 4; x++) {
		const uint32_t t = g + x / 2 * 8;
		const bool seen = (mask >> t & 1) && (all || tile * SKV_PAGE_TOKENS + t < end_of(c, j, col + x % 2));
		s[x] = seen ? s[x] * c->scale.scale : -INFINITY;
	}
}

/* attend_tile() of a tile in shared memory. `number`: in the request's count. */
template <class T, int D>
__device__ static void attend_staged(struct warp_state<T, D> *w, const struct decode_params *c, const struct work_item *j, uint32_t mask,
                                     uint32_t number, uint32_t tile)
{
	float s[4], k_unit[2], v_unit[2];
	uint32_t p[2];
	take_keys(w, mask, tile);
	take_units<0>(w, false, k_unit);
	take_units<0>(w, true, v_unit);
	scores<0>(w, w, s);
	cap_products<T>(c, k_unit, s);
	mask_scores(c, j, number, mask, s);
	softmax_step<T>(w, s, v_unit, p);
	take_values(w, tile);
	if (mask != 0xffff)
		clear_v<0>(w, mask);
	add_values<0>(w, w, p);
}

/* ---- sums of a run's leaves -------------------------------------------------------------------- */

/* A sum that waits in registers. */
template <int D> struct waiting_sum {
	float acc[columns<D>::ACC][4], max[2], sum[2];
};

template <int D> DEVICE void add_sum(struct columns<D> *w, const struct waiting_sum<D> *from)
{
	const struct part_scale by[2] = {part_scale_of(from->max[0], w->max[0]), part_scale_of(from->max[1], w->max[1])};
#pragma unroll
	for (int a = 0; a < w->ACC; a++)
#pragma unroll
		for (int x = 0; x < 4; x++)
			w->acc[a][x] = by[x % 2].add(from->acc[a][x], w->acc[a][x]);
#pragma unroll
	for (int x = 0; x < 2; x++) {
		w->sum[x] = by[x].add(from->sum[x], w->sum[x]);
		w->max[x] = by[x].max;
	}
}

template <int D> DEVICE void keep_sum(struct waiting_sum<D> *to, const struct columns<D> *w)
{
#pragma unroll
	for (int a = 0; a < w->ACC; a++)
#pragma unroll
		for (int x = 0; x < 4; x++)
			to->acc[a][x] = w->acc[a][x];
#pragma unroll
	for (int x = 0; x < 2; x++) {
		to->max[x] = w->max[x];
		to->sum[x] = w->sum[x];
	}
}

/* Sums of one leaf, and of two. */
template <int D> struct waiting_sums_of_two {
	struct waiting_sum<D> one, two;
};

/* end_leaf() of a run of more leaves: what waits longer than these two is in shared memory. */
template <int D>
DEVICE void end_team_leaf(const struct decode_params *c, struct columns<D> *w, struct waiting_sums_of_two<D> *wait, float4 *waiting, uint32_t i,
                          bool last)
{
	total_sums(w);
	if (i & 1) {
		add_sum(w, &wait->one);
	} else if (!last) {
		keep_sum(&wait->one, w);
		return;
	}
	if (i & 2) {
		add_sum(w, &wait->two);
	} else if (!last) {
		keep_sum(&wait->two, w);
		return;
	}
	add_levels<MODE_TEAMS>(c, w, waiting, i / 4, last);
}

/* ---- runs --------------------------------------------------------------------------------------- */

/* Look up run number `id`, if there is one, into this warp's own copy: it has one of the run's head tiles, which may have no columns. */
__device__ static bool begin_team_run(const struct decode_params *c, const struct request_plan *p, uint32_t id, struct work_item *j)
{
	const uint32_t heads = c->request_head_tiles / c->team, at = id / heads, member = threadIdx.x / 32 % c->team;
	if (at >= p->first[c->n_requests])
		return false;
	const uint32_t lo = request_of(c, p, at), request = c->first_request + lo;
	__syncwarp(); /* the previous run has been read; all lanes write the same */
	head_tile(c, request / c->list.rows, (request % c->list.rows * heads + id % heads) * c->team + member, j);
	j->len = p->len[lo];
	j->table = p->table[lo];
	j->request = request;
	j->chunk = at - p->first[lo];
	j->chunks = p->first[lo + 1] - p->first[lo];
	j->first = j->chunk * c->by.run_tiles;
	j->n = min(c->by.run_tiles, p->tiles[lo] - j->first);
	__syncwarp();
	return true;
}

/* Copies of all tiles but the newest `but` are there. */
DEVICE void await_tiles(uint32_t but)
{
	if (but == TEAM_TILES - 2)
		cp_async_wait<TEAM_TILES - 2>();
	else if (but == TEAM_TILES / 2 - 2)
		cp_async_wait<TEAM_TILES / 2 - 2>();
	else
		cp_async_wait<TEAM_TILES / 4 - 2>();
}

/* The warp's columns of a run, from nothing to their sums. `ring`: the team's tiles. */
template <class T, int D>
__device__ static void attend_team_run(struct warp_state<T, D> *w, const struct decode_params *c, const struct work_item *j, uint32_t ring,
                                       float4 *waiting)
{
	const uint32_t slots = TEAM_TILES * c->team / warps<D, MODE_TEAMS>, ahead = slots - 1, threads = 32 * c->team;
	const uint32_t barrier = 1 + threadIdx.x / threads;
	struct tile_batch now = {}, next = {};
	struct waiting_sums_of_two<D> wait;
	uint32_t to = 0, at = 0; /* slots */

	locate_tiles<D, MODE_TEAMS>(c, j, 0, &now);
	if (j->n > BATCH)
		locate_tiles<D, MODE_TEAMS>(c, j, BATCH, &next);
	warps_sync(barrier, threads); /* all have read the last run's tiles */
	for (; to < ahead; to++) {
		if (to < j->n)
			copy_tile<T, D>(c, j, now, to, ring + to * staged_tile<T, D>::BYTES);
		cp_async_commit();
	}
	begin_sum<MODE_TEAMS>(w);
	for (uint32_t k = 0; k < j->n; k++) {
		const uint32_t newest = k + ahead, in = k % BATCH;
		await_tiles(slots - 2);
		warps_sync(barrier, threads); /* tile k is there, and what all have read makes room */
		if (newest < j->n)
			copy_tile<T, D>(c, j, in + ahead < BATCH ? now : next, newest % BATCH, ring + to * staged_tile<T, D>::BYTES);
		cp_async_commit();
		to = to + 1 < slots ? to + 1 : 0;
		if (j->heads)
			attend_staged(w, c, j, __shfl_sync(~0u, now.mask, in), j->first + k, ring + at * staged_tile<T, D>::BYTES);
		at = at + 1 < slots ? at + 1 : 0;
		if (in == BATCH - 1) {
			now = next;
			if (k + 1 + BATCH < j->n)
				locate_tiles<D, MODE_TEAMS>(c, j, k + 1 + BATCH, &next);
		}
		if (k + 1 >= j->n || (k + 1) % LEAF_TILES)
			continue;
		end_team_leaf(c, w, &wait, waiting, k / LEAF_TILES, false);
		begin_sum<MODE_TEAMS>(w);
	}
	end_team_leaf(c, w, &wait, waiting, (max(j->n, 1u) - 1) / LEAF_TILES, true);
	cp_async_wait<0>();
}

/* Four of a row's dimensions, from d on, of the head of column 2 c + x: the output, if the request has no other run, or a part of it. */
template <class T, int D>
DEVICE void store_four(const struct decode_params *c, const struct work_item *j, const struct columns<D> *w, int x, uint32_t d, float4 acc)
{
	const uint32_t head = threadIdx.x % 4 * 2 + x;
	float *to = partial_of(c, j, j->chunk, D);

	acc = make_float4(acc.x / output_unit<T>, acc.y / output_unit<T>, acc.z / output_unit<T>, acc.w / output_unit<T>);
	if (j->chunks == 1) {
		write_part(c, j, head, D, d, part{w->max[x], w->sum[x], acc});
		return;
	}
	store16(to + 2 * HEAD_TILE + head * D + d, acc, evict_last_policy());
	if (d == 0) {
		to[head] = w->max[x];
		to[HEAD_TILE + head] = w->sum[x];
	}
}

template <class T, int D> __device__ static void store_team_run(const struct decode_params *c, const struct work_item *j, const struct columns<D> *w)
{
	constexpr int wide = warp_state<T, D>::WIDE;
	const uint32_t g = threadIdx.x % 32 / 4;
#pragma unroll
	for (int x = 0; x < 2; x++) {
		if (threadIdx.x % 4 * 2 + x >= j->heads)
			continue;
#pragma unroll
		for (int a = 0; a < w->ACC; a += 2)
			store_four<T, D>(c, j, w, x, a < 4 * wide ? a / 4 * 64 + 8 * g + a % 4 * 2 : 64 * wide + 4 * g,
			                 make_float4(w->acc[a][x], w->acc[a][x + 2], w->acc[a + 1][x], w->acc[a + 1][x + 2]));
	}
}

/* ---- the kernel --------------------------------------------------------------------------------- */

template <class T, int D> struct teams_smem {
	struct request_plan plan;
	struct work_item run[warps<D, MODE_TEAMS>];
	alignas(16) uint8_t tiles[TEAM_TILES * staged_tile<T, D>::BYTES];
	float4 waiting[warps<D, MODE_TEAMS>][TEAM_LEVELS * waiting_sums<D, MODE_TEAMS>(HEAD_TILE / 2)];
};

template <class T, int D>
__global__ void __launch_bounds__(32 * warps<D, MODE_TEAMS>, 1) teams_kernel(const __grid_constant__ struct decode_params c)
{
	SHARED_MEMORY(uint8_t, memory, 128);
	struct teams_smem<T, D> *s = (struct teams_smem<T, D> *)memory;
	const uint32_t warp = threadIdx.x / 32, teams = warps<D, MODE_TEAMS> / c.team, team = warp / c.team;
	const uint32_t ring = shared_address(s->tiles) + team * (TEAM_TILES / teams) * staged_tile<T, D>::BYTES;
	struct work_item *const j = &s->run[warp];
	struct warp_state<T, D> w;

	if (c.source == KV_PAGES)
		await_previous(); /* the lists */
	make_plan(&c, &s->plan);
	await_previous();
	let_next_begin();
	/* neighbours, which read the same pages, are in blocks side by side */
	for (uint32_t id = team * gridDim.x + blockIdx.x; begin_team_run(&c, &s->plan, id, j); id += gridDim.x * teams) {
		if (j->heads)
			load_q<T>(&w, &c, j, 0, j->heads);
		attend_team_run(&w, &c, j, ring, s->waiting[warp]);
		store_team_run<T>(&c, j, &w);
	}
}

template <class T, int D> static cudaError_t init_teams(void)
{
	return cudaFuncSetAttribute(teams_kernel<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(struct teams_smem<T, D>));
}

/* `runs`: of all head tiles of teams, at most. */
template <class T, int D> static void launch_teams(const struct decode_params *c, uint32_t runs, cudaStream_t stream)
{
	const uint32_t sms = skv_cuda_sms();
	launch_overlapped(teams_kernel<T, D>, *c, runs < sms ? runs : sms, 32 * warps<D, MODE_TEAMS>, sizeof(struct teams_smem<T, D>), 0, stream);
}

#endif
