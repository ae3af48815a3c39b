/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/decode/decode-teams.cuh - decode attention for kv heads that have more columns than a head tile: several
 * rows of a sequence, or large groups. See decode.cuh.
 *
 * The warps of a team read the same tokens, each warp for its own head tile. So K and V are staged in shared memory: a
 * team has a ring of stages, to which all of its warps copy and which all of them read. A leaf has four stages: K of
 * two tiles, K of the other two tiles, and V likewise. From the stages, K and V are loaded into the same registers as
 * in other decode kernels, so results have the same bits. A team takes one run after the other, and each run is a work
 * item: results have many columns, so there should be few results. Sums of leaves wait in registers for the sum that
 * they are added to, or in shared memory if they wait for long.
 */
#ifndef SKV_CUDA_DECODE_TEAMS_CUH
#define SKV_CUDA_DECODE_TEAMS_CUH

#include "kernels/cuda/decode/decode-leaves.cuh"
#include "kernels/cuda/runtime/async-copy.cuh"

#define TEAM_STAGES 12 /* stages in shared memory, of all teams of a block together */
#define STAGE_TILES 2
#define LEAF_STAGES (2 * LEAF_TILES / STAGE_TILES)
/* Number of levels of sums that wait in shared memory: sums of four leaves, and of eight leaves. */
#define TEAM_LEVELS 2

/*
 * Layout of a stage in shared memory: rows of K or of V, and, for fp8 and K, the scales of K's rows and then of V's.
 * The distances of rows, K_ROW and V_ROW, make lanes that load at the same time use different banks: loads of K read
 * several rows and four pieces, loads of V read every other row and several pieces.
 */
template <class T, int D> struct stage {
	static constexpr uint32_t ROWS = STAGE_TILES * SKV_PAGE_TOKENS, ROW = D * element_bytes<T>;
	static constexpr uint32_t K_ROW = ROW + (32 * element_bytes<T> + 128 - ROW % 128) % 128, V_ROW = ROW + 16;
	static constexpr uint32_t SCALES = ROWS * (K_ROW > V_ROW ? K_ROW : V_ROW), BYTES = SCALES + (is_fp8<T> ? 2 * ROWS : 0);
};

/*
 * Copies this warp's part of tile k, of K or of V, to the rows of a stage. All tokens of the tile's page are copied,
 * even those that do not count, unless none of them counts.
 */
template <class T, int D, int team, bool v>
DEVICE void copy_tile(const struct decode_params *c, const struct work_item *j, const struct tile_batch *ts, uint32_t k, uint32_t rows,
                      uint32_t scales)
{
	constexpr uint32_t ROW = stage<T, D>::ROW, each = v ? stage<T, D>::V_ROW : stage<T, D>::K_ROW, n = 32 * team;
	const uint32_t mask = __shfl_sync(~0u, ts->mask, k), page = __shfl_sync(~0u, ts->page, k), mine = threadIdx.x % n;
	const uint32_t all = c->n_kv_heads * SKV_PAGE_TOKENS, first = (v ? all : 0) + j->h * SKV_PAGE_TOKENS;
	const uint8_t *const pool = c->pool + page * c->page_bytes, *const from = pool + first * ROW;
	if (!mask)
		return;
#pragma unroll
	for (uint32_t i = 0; i < ROW; i += n) { /* 16 rows have ROW pieces of 16 bytes */
		const uint32_t x = i + mine;
		if (ROW % n == 0 || x < ROW)
			cp_async16(rows + x / (ROW / 16) * each + x % (ROW / 16) * 16, from + x * 16, true);
	}
	if (is_fp8<T> && !v && mine < 2)
		cp_async16(scales + mine * stage<T, D>::ROWS, pool + 2 * all * D + mine * all + first, true);
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

/* Loads K of a tile from a stage to the registers that load_k() fills in other kernels. */
template <class T, int D> __device__ static void take_keys(struct half_tile<T, D> *to, uint32_t rows)
{
	const uint32_t at = rows + threadIdx.x % 32 / 4 * stage<T, D>::K_ROW + threadIdx.x % 4 * 8 * element_bytes<T>;
#pragma unroll
	for (int b = 0; b < D / 32; b++)
#pragma unroll
		for (int half = 0; half < 2; half++)
			take_piece(&to->k(b, half), at + 8 * half * stage<T, D>::K_ROW + b * 32 * element_bytes<T>);
}

/* Loads V of a tile from a stage to the registers that load_v() fills in other kernels. */
template <class T, int D> __device__ static void take_values(struct half_tile<T, D> *to, uint32_t rows)
{
	const uint32_t g = threadIdx.x % 32 / 4, at = rows + threadIdx.x % 4 * 2 * stage<T, D>::V_ROW;
#pragma unroll
	for (int t = 0; t < 4; t++) {
		const uint32_t row = at + (t % 2 + t / 2 * 8) * stage<T, D>::V_ROW;
#pragma unroll
		for (int b = 0; b < to->WIDE; b++)
			take_piece(&to->v(b, t), row + (b * 64 + g * 8) * element_bytes<T>);
		if (to->REST)
			take_piece(&to->rest(t), row + (to->WIDE * 64 + g * 4) * element_bytes<T>);
	}
}

/* Loads the scales of an fp8 tile from a stage, as load_scales() does from memory. */
template <class T, int D> DEVICE uint32_t take_scales(uint32_t scales, uint32_t mask)
{
	const uint32_t lane = threadIdx.x % 32;
	return is_fp8<T> && (mask >> lane % 16 & 1) ? load_shared1(scales + lane / 16 * stage<T, D>::ROWS + lane % 16) : 0;
}

/*
 * Sets scores of a leaf to -infinity where a column's row does not attend to the token. Called if the row of some
 * column does not attend to all tokens of the leaf. `tile` is the index of the leaf's first tile.
 */
__device__ static void mask_leaf(const struct decode_params *c, const struct work_item *j, uint32_t tile, const uint32_t mask[LEAF_TILES],
                                 float s[LEAF_TILES][4])
{
	const uint32_t g = threadIdx.x % 32 / 4, col = threadIdx.x % 4 * 2;
#pragma unroll
	for (uint32_t t = 0; t < LEAF_TILES; t++)
#pragma unroll
		for (int x = 0; x < 4; x++) {
			const uint32_t in = g + x / 2 * 8;
			const bool own = c->rows == 1 || (tile + t) * SKV_PAGE_TOKENS + in < end_of(c, j, col + x % 2);
			s[t][x] = own && (mask[t] >> in & 1) ? s[t][x] : -INFINITY;
		}
}

/* ---- sums of a run's leaves -------------------------------------------------------------------- */

/* A sum of leaves, kept in registers until the sum that it is added to is ready. */
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

/* The sums that wait in registers: a sum of one leaf, and a sum of two leaves. */
template <int D> struct waiting_sums_of_two {
	struct waiting_sum<D> one, two;
};

/*
 * Like end_leaf(), for the longer runs of teams: sums of one and of two leaves wait in registers, larger sums in shared
 * memory.
 */
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

/*
 * Looks up run number `id` and copies it to this warp's own *j. Returns false if there is no such run. The warp gets
 * one of the run's head tiles, which may have no columns.
 */
__device__ static bool begin_team_run(const struct decode_params *c, const struct request_plan *p, uint32_t id, struct work_item *j)
{
	const uint32_t heads = c->request_head_tiles / c->team, at = id / heads, member = threadIdx.x / 32 % c->team;
	if (at >= p->first[c->n_requests])
		return false;
	const uint32_t lo = request_of(c, p, at), request = c->first_request + lo;
	__syncwarp(); /* all lanes have read the previous run; all lanes write the same values */
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

/* Waits until all copied stages but the newest `but` are complete. */
DEVICE void await_stages(uint32_t but)
{
	if (but == TEAM_STAGES - 2)
		cp_async_wait<TEAM_STAGES - 2>();
	else if (but == TEAM_STAGES / 2 - 2)
		cp_async_wait<TEAM_STAGES / 2 - 2>();
	else
		cp_async_wait<TEAM_STAGES / 4 - 2>();
}

/* A warp's view of its team's run. Stages are numbered from 0 for the run's first. */
template <class T, int D, int team> struct team_run {
	static constexpr uint32_t SLOTS = TEAM_STAGES * team / warps<D, MODE_TEAMS>;
	const struct decode_params *c;
	const struct work_item *j;
	uint32_t ring;               /* shared memory address of the team's SLOTS stages */
	uint32_t leaf, leaves;       /* index of the leaf being read; number of leaves of the run */
	uint32_t copying, to;        /* index of the leaf that is copied next; address for its next stage */
	uint32_t from;               /* address of the next stage to read */
	struct tile_batch now, next; /* batch of tiles being read, and the batch after it */

	/* Begins to copy the next stage, if the run has one. `in` is the stage's index in its leaf. */
	template <int in> __device__ __forceinline__ void copy()
	{
		constexpr uint32_t each = (in < 2 ? stage<T, D>::K_ROW : stage<T, D>::V_ROW) * SKV_PAGE_TOKENS;
		const uint32_t first = copying * LEAF_TILES + in % 2 * STAGE_TILES, scales = to + stage<T, D>::SCALES;
		if (copying < leaves) {
			struct tile_batch ts = now;
			if (copying * LEAF_TILES / BATCH != leaf * LEAF_TILES / BATCH)
				ts = next;
#pragma unroll
			for (uint32_t k = 0; k < STAGE_TILES; k++)
				copy_tile<T, D, team, (in >= 2)>(c, j, &ts, (first + k) % BATCH, to + k * each, scales + k * SKV_PAGE_TOKENS);
		}
		cp_async_commit();
		copying += in == LEAF_STAGES - 1;
		to = to + stage<T, D>::BYTES < ring + SLOTS * stage<T, D>::BYTES ? to + stage<T, D>::BYTES : ring;
	}

	/* Begins to copy the run's first stages, until all slots of the ring but one are in use. */
	template <int in = 0> __device__ __forceinline__ void begin()
	{
		if constexpr (in < (int)SLOTS - 1) {
			copy<in % (int)LEAF_STAGES>();
			begin<in + 1>();
		}
	}

	/*
	 * Waits for stage `in` of the leaf and returns its address. Begins to copy another stage over the previous one,
	 * which all warps have read.
	 */
	template <int in> __device__ __forceinline__ uint32_t read()
	{
		const uint32_t at = from;
		cp_async_wait<(int)SLOTS - 2>();
		warps_sync(1 + threadIdx.x / (32 * team), 32 * team);
		copy<(in + (int)SLOTS - 1) % (int)LEAF_STAGES>();
		from = from + stage<T, D>::BYTES < ring + SLOTS * stage<T, D>::BYTES ? from + stage<T, D>::BYTES : ring;
		return at;
	}

	/* Goes on to the run's next leaf, and locates further tiles if needed. */
	__device__ __forceinline__ void advance()
	{
		leaf++;
		if (leaf * LEAF_TILES % BATCH)
			return;
		now = next;
		next.mask = 0;
		if (leaf * LEAF_TILES + BATCH < j->n)
			locate_tiles<D, MODE_TEAMS>(c, j, leaf * LEAF_TILES + BATCH, &next);
	}
};

template <int t, class T, int D, int team>
DEVICE void score_stage(const struct columns<D> *w, struct team_run<T, D, team> *run, const uint32_t mask[LEAF_TILES], float s[LEAF_TILES][4],
                        float unit[LEAF_TILES][2])
{
	const uint32_t rows = run->template read<t / STAGE_TILES>();
#pragma unroll
	for (int k = 0; k < STAGE_TILES; k++) {
		struct half_tile<T, D> keys;
		float k_unit[2];
		take_keys(&keys, rows + k * SKV_PAGE_TOKENS * stage<T, D>::K_ROW);
		const uint32_t scale = take_scales<T, D>(rows + stage<T, D>::SCALES + k * SKV_PAGE_TOKENS, mask[t + k]);
		take_units<T>(scale, false, k_unit);
		take_units<T>(scale, true, unit[t + k]);
		scores(&keys, w, s[t + k]);
		cap_products<T>(run->c, k_unit, s[t + k]);
#pragma unroll
		for (int x = 0; x < 4; x++)
			s[t + k][x] *= run->c->scale.scale;
	}
}

template <int t, class T, int D, int team>
DEVICE void add_stage(struct columns<D> *w, struct team_run<T, D, team> *run, const uint32_t mask[LEAF_TILES], const uint32_t p[LEAF_TILES][2])
{
	const uint32_t rows = run->template read<(LEAF_TILES + t) / STAGE_TILES>();
#pragma unroll
	for (int k = 0; k < STAGE_TILES; k++) {
		struct half_tile<T, D> values;
		take_values(&values, rows + k * SKV_PAGE_TOKENS * stage<T, D>::V_ROW);
		if (mask[t + k] != 0xffff)
			clear_v(&values, mask[t + k]);
		add_values(&values, w, p[t + k]);
	}
}

/* Attends to a leaf that is read from stages in shared memory, as attend_leaf() does from global memory. */
template <class T, int D, int team> DEVICE void attend_staged_leaf(struct columns<D> *w, struct team_run<T, D, team> *run)
{
	const struct decode_params *const c = run->c;
	const struct work_item *const j = run->j;
	const uint32_t first = run->leaf * LEAF_TILES, end = (j->first + first + LEAF_TILES) * SKV_PAGE_TOKENS;
	float s[LEAF_TILES][4], unit[LEAF_TILES][2];
	uint32_t mask[LEAF_TILES], p[LEAF_TILES][2], all = 0xffff;

#pragma unroll
	for (uint32_t t = 0; t < LEAF_TILES; t++) {
		mask[t] = __shfl_sync(~0u, run->now.mask, (first + t) % BATCH);
		all &= mask[t];
	}
	score_stage<0>(w, run, mask, s, unit);
	score_stage<STAGE_TILES>(w, run, mask, s, unit);
	if (all != 0xffff || (c->rows > 1 && end > j->len - (c->rows - 1)))
		mask_leaf(c, j, j->first + first, mask, s);
	softmax_of_leaf<MODE_TEAMS, T>(w, s, unit, p);
	clear_acc(w);
	add_stage<0>(w, run, mask, p);
	add_stage<STAGE_TILES>(w, run, mask, p);
}

/* Attends to all leaves of a run, for the warp's columns. `ring` is the address of the team's stages. */
template <class T, int D, int team>
__device__ static void attend_team_run(struct columns<D> *w, const struct decode_params *c, const struct work_item *j, uint32_t ring,
                                       float4 *waiting)
{
	struct team_run<T, D, team> run = {.c = c, .j = j, .ring = ring, .leaves = n_units(j->n, LEAF_TILES), .to = ring, .from = ring};
	struct waiting_sums_of_two<D> wait;

	locate_tiles<D, MODE_TEAMS>(c, j, 0, &run.now);
	if (j->n > BATCH)
		locate_tiles<D, MODE_TEAMS>(c, j, BATCH, &run.next);
	warps_sync(1 + threadIdx.x / (32 * team), 32 * team); /* all warps have read the previous run's stages */
	run.begin();
	while (run.leaf < run.leaves) {
		attend_staged_leaf(w, &run);
		end_team_leaf(c, w, &wait, waiting, run.leaf, run.leaf + 1 == run.leaves);
		run.advance();
	}
	cp_async_wait<0>();
}

/* ---- the kernel --------------------------------------------------------------------------------- */

template <class T, int D> struct teams_smem {
	struct request_plan plan;
	struct work_item run[warps<D, MODE_TEAMS>];
	alignas(16) uint8_t stages[TEAM_STAGES * stage<T, D>::BYTES];
	float4 waiting[warps<D, MODE_TEAMS>][TEAM_LEVELS * waiting_sums<D, MODE_TEAMS>(HEAD_TILE / 2)];
};

template <class T, int D, int team>
__global__ void __launch_bounds__(32 * warps<D, MODE_TEAMS>, 1) teams_kernel(const __grid_constant__ struct decode_params c)
{
	SHARED_MEMORY(uint8_t, memory, 128);
	struct teams_smem<T, D> *s = (struct teams_smem<T, D> *)memory;
	constexpr uint32_t teams = warps<D, MODE_TEAMS> / team;
	const uint32_t warp = threadIdx.x / 32, number = warp / team;
	const uint32_t ring = shared_address(s->stages) + number * team_run<T, D, team>::SLOTS * stage<T, D>::BYTES;
	struct work_item *const j = &s->run[warp];
	struct columns<D> w;

	if (c.source == KV_PAGES)
		await_previous(); /* the lists may have been written by the previous kernel */
	make_plan(&c, &s->plan);
	await_previous();
	let_next_begin();
	/* Consecutive runs, which read the same pages, go to neighbouring blocks. */
	for (uint32_t id = number * gridDim.x + blockIdx.x; begin_team_run(&c, &s->plan, id, j); id += gridDim.x * teams) {
		if (j->heads)
			load_q<T>(&w, &c, j, 0, j->heads);
		attend_team_run<T, D, team>(&w, &c, j, ring, s->waiting[warp]);
		store_item<MODE_TEAMS, T>(&w, &c, j);
	}
}

template <class T, int D, int team> static cudaError_t init_team(void)
{
	return cudaFuncSetAttribute(teams_kernel<T, D, team>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(struct teams_smem<T, D>));
}

template <class T, int D> static cudaError_t init_teams(void)
{
	cudaError_t e = init_team<T, D, 2>();
	e = e ? e : init_team<T, D, 4>();
	return e ? e : init_team<T, D, 8>();
}

/* `runs`: max runs of the launch, each for a team's head tiles. */
template <class T, int D> static void launch_teams(const struct decode_params *c, uint32_t runs, cudaStream_t stream)
{
	const auto kernel = c->team == 2 ? teams_kernel<T, D, 2> : c->team == 4 ? teams_kernel<T, D, 4> : teams_kernel<T, D, 8>;

	launch_overlapped(kernel, *c, min(runs, c->blocks), 32 * warps<D, MODE_TEAMS>, sizeof(struct teams_smem<T, D>), 0, stream);
}

#endif
