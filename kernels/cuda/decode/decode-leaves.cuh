/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/decode/decode-leaves.cuh - the decode kernel whose warps attend to whole leaves, and its launch: see
 * decode.cuh.
 */
#ifndef SKV_CUDA_DECODE_LEAVES_CUH
#define SKV_CUDA_DECODE_LEAVES_CUH

#include "kernels/cuda/runtime/barrier.cuh"
#include "kernels/cuda/runtime/overlap.cuh"
#include "kernels/cuda/decode/parts.cuh"
#include "kernels/cuda/decode/leaf.cuh"

/*
 * A run of leaves, and its place among the runs of its block, of which it is number `nth`. The run's work item is
 * number `turn` of the block and number `id` of the launch; the item consists of the block's runs [begin, end).
 */
struct run : work_item {
	uint32_t id, turn, begin, end, nth;
};

#define RUN_SLOTS (2 * ITEM_RUNS)
#define TURNS 32 /* max items of a block that are tracked at a time */

/*
 * A block's shared memory. After this struct follow run_slots sums of runs that wait for the other sum of their pair,
 * item_runs for each item, and then, for each warp, the waiting sums of leaves (waiting_sums()).
 */
template <int D, enum decode_mode mode> struct leaves_smem {
	/*
	 * Number of sums of a pair that have arrived, including those of earlier items, at the slot of the first run of
	 * the pair's later sum. The first sum to arrive waits.
	 */
	uint32_t come[RUN_SLOTS];
	barrier waits[RUN_SLOTS];
	/*
	 * For each place: number of items whose runs have all been added. This is a counter, not a barrier, because a
	 * warp without a run of an item must not mistake that item for the next one.
	 */
	uint32_t added[RUN_SLOTS];
	/*
	 * item: the block's items, by turn. asked: the last turn for which an item was requested. known: the last turn
	 * whose item is known. looked_up: the last turn whose item each warp has looked up.
	 */
	uint32_t item[TURNS], asked, known, looked_up[warps<D, mode>];
	struct request_plan plan;
	/* KV slots of the tokens of a warp's current run, and of its next run. */
	uint32_t slots[mode >= MODE_TOKENS ? warps<D, mode> : 1][2][run_leaves<D, mode> * LEAF_TILES * 16];
	/* A warp's current run and its next one. They are not in registers, which tiles in flight need. */
	struct run run[warps<D, mode>][2];
	bool last; /* is this block the last of its request to store its result? */
	alignas(16) float4 sums[1];
};

/* Number of pairs of columns with results, of the four pairs that a product has. */
static inline __host__ __device__ uint32_t result_pairs(const struct decode_params *c)
{
	return (c->result_heads + 1) / 2;
}

/* Number of a lane's accumulators; each of them has four elements. */
template <int D, enum decode_mode mode> static constexpr int accumulators = result_dims<D, mode> / 16;

/* Number of float4 of a waiting sum: the states of lanes, [accumulators, then maxima and sums][lane]. */
template <int D, enum decode_mode mode> static inline __host__ __device__ constexpr uint32_t waiting_sums(uint32_t pairs)
{
	return (accumulators<D, mode> + 1) * 8 * pairs;
}

/* Number of levels of pairs in a run, at each of which one sum of leaves may wait. */
template <int D, enum decode_mode mode> static constexpr uint32_t run_levels = run_leaves<D, mode> > 2 ? 2 : 1;

template <int D, enum decode_mode mode> static size_t leaves_smem_bytes(const struct decode_params *c)
{
	const size_t sums = c->run_slots + (size_t)warps<D, mode> * run_levels<D, mode>;

	return sizeof(struct leaves_smem<D, mode>) + sums * waiting_sums<D, mode>(result_pairs(c)) * sizeof(float4);
}

/*
 * Returns the number, in the launch, of the block's item of this turn; if it is not below `all`, the number of items in
 * the launch, there is no such item. A block's first item is fixed. Afterwards a block takes the next item when its
 * warps get to it, since some SMs read faster than others and some items are short.
 */
template <int D, enum decode_mode mode>
__device__ static uint32_t item_of_turn(const struct decode_params *c, struct leaves_smem<D, mode> *s, uint32_t turn, uint32_t all)
{
	const uint32_t lane = threadIdx.x % 32;
	bool asks = false;

	if (turn == 0)
		return blockIdx.x;
	if (all <= gridDim.x)
		return all;
	if (lane == 0)
		asks = atomicMax(&s->asked, turn) < turn;
	if (__any_sync(~0u, asks)) {
		if (turn > TURNS && lane < warps<D, mode>)
			count_await(&s->looked_up[lane], turn - TURNS); /* a warp may be TURNS behind */
		__syncwarp();
		if (lane == 0) { /* each block asks one time too often; then the counter wraps to 0 */
			atomicExch(&s->item[turn % TURNS], gridDim.x + atomicInc(c->taken, all - 1));
			count_store(&s->known, turn);
		}
	}
	__syncwarp();
	count_await(&s->known, turn);
	const uint32_t item = atomicOr(&s->item[turn % TURNS], 0);
	__syncwarp();
	if (lane == 0)
		count_store(&s->looked_up[threadIdx.x / 32], turn);
	return item;
}

/*
 * Finds run number `nth` of the block, going on from run `from`, and stores it in *to. Returns false if there is no
 * such run. Consecutive items are neighbouring head tiles, since these read the same pages.
 */
template <int D, enum decode_mode mode>
DEVICE bool find_run(const struct decode_params *c, struct leaves_smem<D, mode> *s, uint32_t nth, const struct run *from, struct run *to)
{
	const struct request_plan *p = &s->plan;
	const uint32_t heads = c->request_head_tiles, each = c->by.run_tiles, all = p->first[c->n_requests] * heads;
	uint32_t turn = from->turn, begin = from->begin, end = from->end, id = from->id, lo = 0, item;

	for (;;) {
		if (end == begin) /* a new work item */
			id = item_of_turn<D, mode>(c, s, turn, all);
		if (id >= all)
			return false;
		item = id / heads;
		lo = request_of(c, p, item);
		if (end == begin)
			end = begin + min(c->by.item_runs, n_units(p->tiles[lo], each) - (item - p->first[lo]) * c->by.item_runs);
		if (nth < end)
			break;
		turn++;
		begin = end;
	}
	const uint32_t request = c->first_request + lo;
	__syncwarp(); /* all lanes have read the old contents; all lanes write the same values */
	head_tile(c, request / c->list.rows, request % c->list.rows * heads + id % heads, to);
	to->len = p->len[lo];
	to->table = p->table[lo];
	to->request = request;
	if (mode == MODE_TOPK_KEYS)
		to->entry = lo;
	to->chunk = item - p->first[lo];
	to->chunks = p->first[lo + 1] - p->first[lo];
	to->first = (to->chunk * c->by.item_runs + nth - begin) * each;
	to->n = min(each, p->tiles[lo] - to->first);
	to->id = id;
	to->turn = turn;
	to->begin = begin;
	to->end = end;
	to->nth = nth;
	__syncwarp();
	return true;
}

/* ---- leaves of a run -------------------------------------------------------------------------- */

/* Adds a waiting sum to the warp's own sum. `earlier`: the waiting sum is that of earlier tokens. */
template <enum decode_mode mode, int D> DEVICE void add_waiting(struct columns<D> *w, const float4 *from, uint32_t pairs, bool earlier)
{
	constexpr int accs = accumulators<D, mode>;
	const uint32_t lane = threadIdx.x % 32 / 4 * pairs + threadIdx.x % 4, lanes = 8 * pairs;
	if (threadIdx.x % 4 >= pairs)
		return;
	const float4 top = from[accs * lanes + lane];
	const float max[2] = {top.x, top.y}, sum[2] = {top.z, top.w};
	struct part_scale by[2];
	const auto add = [&](int x, float waits, float own) { return earlier ? by[x].add(waits, own) : by[x].add(own, waits); };

#pragma unroll
	for (int x = 0; x < 2; x++)
		by[x] = earlier ? part_scale_of(max[x], w->max[x]) : part_scale_of(w->max[x], max[x]);
#pragma unroll
	for (int a = 0; a < accs; a++) {
		asm volatile("" ::: "memory"); /* one accumulator at a time, as tiles in flight use most registers */
		const float4 waits = from[a * lanes + lane];
		w->acc[a][0] = add(0, waits.x, w->acc[a][0]);
		w->acc[a][1] = add(1, waits.y, w->acc[a][1]);
		w->acc[a][2] = add(0, waits.z, w->acc[a][2]);
		w->acc[a][3] = add(1, waits.w, w->acc[a][3]);
	}
#pragma unroll
	for (int x = 0; x < 2; x++) {
		w->sum[x] = add(x, sum[x], w->sum[x]);
		w->max[x] = by[x].max;
	}
}

template <enum decode_mode mode, int D> DEVICE void leave_waiting(const struct columns<D> *w, float4 *to, uint32_t pairs)
{
	constexpr int accs = accumulators<D, mode>;
	const uint32_t lane = threadIdx.x % 32 / 4 * pairs + threadIdx.x % 4, lanes = 8 * pairs;
	if (threadIdx.x % 4 >= pairs)
		return;
#pragma unroll
	for (int a = 0; a < accs; a++)
		to[a * lanes + lane] = make_float4(w->acc[a][0], w->acc[a][1], w->acc[a][2], w->acc[a][3]);
	to[accs * lanes + lane] = make_float4(w->max[0], w->max[1], w->sum[0], w->sum[1]);
}

/*
 * Adds a warp's sum, number i of a run, to the waiting sums of its pairs, or leaves the result waiting. The run's last
 * sum is added to all waiting sums.
 */
template <enum decode_mode mode, int D>
DEVICE void add_levels(const struct decode_params *c, struct columns<D> *w, float4 *waiting, uint32_t i, bool last)
{
	const uint32_t pairs = result_pairs(c), each = waiting_sums<D, mode>(pairs);

	for (; last ? i > 0 : i & 1; i /= 2, waiting += each)
		if (i & 1)
			add_waiting<mode>(w, waiting, pairs, true);
	if (!last)
		leave_waiting<mode>(w, waiting, pairs);
}

/*
 * Completes leaf i of a run: its sum is added to the sum of its pair, then to that of its pair's pair, and so on, until
 * a sum must wait. The run's last leaf is added to all waiting sums.
 */
template <enum decode_mode mode, int D>
DEVICE void end_leaf(const struct decode_params *c, struct columns<D> *w, float4 *waiting, uint32_t i, bool last)
{
	total_sums(w);
	add_levels<mode>(c, w, waiting, i, last);
}

/* Attends to a run's leaves. After its tiles, the first tiles of the next run are loaded, if there is a next run. */
template <enum decode_mode mode, class T, int D>
__device__ static void attend_run(struct leaf_state<T, D, mode> *w, const struct decode_params *c, const struct run *j,
                                  const struct tile_batch *ts, const struct run *next, const struct tile_batch *next_tiles, float4 *waiting)
{
	const uint32_t n = n_units(ts->n, LEAF_TILES);
	for (uint32_t i = 0; i < n; i++) {
		const bool last = i + 1 == n;
		const struct leaf now = {j, *ts, i * LEAF_TILES}, then = {last ? next : j, last ? *next_tiles : *ts, last ? 0 : (i + 1) * LEAF_TILES};
		attend_leaf<mode>(w, c, &now, &then);
		end_leaf<mode>(c, w, waiting, i, last);
	}
}

/* ---- runs of an item -------------------------------------------------------------------------- */

/*
 * Adds the sum of run `at` to those of its item, which has n runs. Of a pair of sums, in whichever order they arrive,
 * the second to arrive adds the waiting one and goes on to the next pair. Returns true if this warp has the item's
 * complete sum. `slot` is the index of the item's first slot.
 */
template <enum decode_mode mode, int D>
__device__ static bool add_runs(struct leaves_smem<D, mode> *s, struct columns<D> *w, const struct decode_params *c, uint32_t slot, uint32_t at,
                                uint32_t n)
{
	const uint32_t pairs = result_pairs(c), each = waiting_sums<D, mode>(pairs);

	for (uint32_t half = 1; half < n; half *= 2) {
		const uint32_t own = slot + (at & ~(half - 1)), other = slot + (at & ~(half - 1) ^ half), pair = max(own, other);
		uint32_t come = 0;
		if (other - slot >= n)
			continue;
		if (threadIdx.x % 32 == 0)
			come = atomicAdd(&s->come[pair], 1);
		come = __shfl_sync(~0u, come, 0);
		if (come % 2 == 0) {
			leave_waiting<mode>(w, s->sums + own * each, pairs);
			barrier_arrive(&s->waits[pair]);
			return false;
		}
		barrier_wait(&s->waits[pair], come / 2);
		add_waiting<mode>(w, s->sums + other * each, pairs, other < own);
	}
	return true;
}

/*
 * Stores the sum of a work item: as output if the request has no other items, else as a partial result. A pass for
 * scores alone always stores a partial result.
 */
template <enum decode_mode mode, class T, int D>
__device__ static void store_item(const struct columns<D> *w, const struct decode_params *c, const struct work_item *j)
{
	float *const to = partial_of(c, j, j->chunk, result_dims<D, mode>);
#pragma unroll
	for (int x = 0; x < 2; x++) {
		const uint32_t head = threadIdx.x % 4 * 2 + x;
		if (head >= j->heads)
			continue;
		if (mode != MODE_TOPK_KEYS && j->chunks == 1) {
			if (!has_row(c, j))
				continue;
			const struct output_row row = output_row_of(c, j, head, D, w->max[x], w->sum[x]);
			each_four<T>(w, x, [&](uint32_t d, float4 acc) { write_four(c, row, d, acc); });
			if (threadIdx.x % 32 / 4 == 0)
				finish_head(c, j, head, w->max[x], w->sum[x]);
			continue;
		}
		if (threadIdx.x % 32 / 4 == 0) {
			to[head] = w->max[x];
			to[HEAD_TILE + head] = w->sum[x];
		}
		if constexpr (mode != MODE_TOPK_KEYS)
			each_four<T>(w, x, [&](uint32_t d, float4 acc) { store16(to + 2 * HEAD_TILE + head * D + d, acc, evict_last_policy()); });
	}
}

/*
 * Adds the sum of a run to those of its item; the warp that completes the last pair stores the item's result. Items use
 * places in shared memory in turn, for the sums of their runs. Each place has slots for as many runs as an item may
 * have, even if its item has fewer, because the items of neighbouring places may be unfinished for longer.
 */
template <enum decode_mode mode, class T, int D>
__device__ static void submit_run(struct leaves_smem<D, mode> *s, struct leaf_state<T, D, mode> *w, const struct decode_params *c,
                                  const struct run *j)
{
	const uint32_t runs = c->by.item_runs, places = c->run_slots / runs, place = j->turn % places, round = j->turn / places;

	if (round > 0)
		count_await(&s->added[place], round);
	if (!add_runs<mode, D>(s, w, c, place * runs, j->nth - j->begin, j->end - j->begin))
		return;
	store_item<mode, T, D>(w, c, j);
	__syncwarp();
	if (threadIdx.x % 32 == 0)
		count_store(&s->added[place], round + 1);
}

/* ---- items of a request ------------------------------------------------------------------------ */

/*
 * Called when the block has stored the result of its only item, if it has one. The last block of a request and head
 * tile to arrive merges the results of all its blocks.
 */
template <int D, enum decode_mode mode> __device__ static void merge_blocks(const struct decode_params *c, struct leaves_smem<D, mode> *s)
{
	const uint32_t stride = partial_floats(c->tile_heads, D);
	struct run *j = &s->run[0][0];

	__threadfence();
	__syncthreads();
	if (threadIdx.x < 32) {
		s->run[0][1].turn = s->run[0][1].begin = s->run[0][1].end = 0;
		__syncwarp();
		const bool has = find_run<D, mode>(c, s, 0, &s->run[0][1], j) && j->chunks > 1;
		if (threadIdx.x == 0)
			s->last = has && atomicInc(&c->arrived[j->i * c->heads + j->x], j->chunks - 1) == j->chunks - 1;
	}
	__syncthreads();
	if (!s->last)
		return;
	__threadfence();
	for (uint32_t at = threadIdx.x * 4; at < j->heads * D; at += blockDim.x * 4)
		write_part(c, j, at / D, D, at % D, add_parts_at(partial_of(c, j, 0, D), stride, j->chunks, at / D, at));
}

/* ---- the kernel ------------------------------------------------------------------------------- */

template <class T, int D, enum decode_mode mode>
__global__ void __launch_bounds__(32 * warps<D, mode>, 1) leaves_kernel(const __grid_constant__ struct decode_params c)
{
	SHARED_MEMORY(uint8_t, memory, 128);
	struct leaves_smem<D, mode> *s = (struct leaves_smem<D, mode> *)memory;
	const uint32_t warp = threadIdx.x / 32;
	const uint32_t slots = mode >= MODE_TOKENS ? warp : 0;
	struct tile_batch tiles = {.slots = s->slots[slots][0]}, next_tiles = {.slots = s->slots[slots][1]};
	struct run *const run = s->run[warp];
	float4 *const waiting = s->sums + (c.run_slots + warp * run_levels<D, mode>) * waiting_sums<D, mode>(result_pairs(&c));
	struct leaf_state<T, D, mode> w;

	if (threadIdx.x < RUN_SLOTS) {
		s->come[threadIdx.x] = s->added[threadIdx.x] = 0;
		barrier_init(&s->waits[threadIdx.x], 32);
	}
	if (threadIdx.x < warps<D, mode>)
		s->looked_up[threadIdx.x] = 0;
	if (threadIdx.x == 0)
		s->asked = s->known = 0;
	if (c.source == KV_PAGES || c.source == KV_TOKENS)
		await_previous(); /* the lists may have been written by the previous kernel */
	make_plan(&c, &s->plan);
	w.once = evict_first_policy();
	run[1].turn = run[1].begin = run[1].end = 0;
	__syncwarp();
	bool more = find_run<D, mode>(&c, s, warp, &run[1], &run[0]);
	if (more)
		locate_tiles<D, mode>(&c, &run[0], 0, &tiles);
	await_previous();
	let_next_begin();
	if (more) {
		const struct leaf first = {&run[0], tiles, 0};
		load_first_halves<mode>(&w, &c, &first);
		load_q<T>(&w, &c, &run[0], 0, run[0].heads);
	}
	for (uint32_t turn = 0; more; turn++) {
		const struct run *j = &run[turn % 2];
		struct run *next = &run[(turn + 1) % 2];
		/* Finding the next run overlaps with the loads of this run's first tiles. */
		more = find_run<D, mode>(&c, s, j->nth + warps<D, mode>, j, next);
		next_tiles.n = 0;
		if (more)
			locate_tiles<D, mode>(&c, next, 0, &next_tiles);
		attend_run<mode>(&w, &c, j, &tiles, next, &next_tiles, waiting);
		submit_run<mode>(s, &w, &c, j);
		if (more && (next->i != j->i || next->head != j->head))
			load_q<T>(&w, &c, next, 0, next->heads);
		uint32_t *const rows = tiles.slots;
		tiles = next_tiles;
		next_tiles.slots = rows;
	}
	if (mode != MODE_TOPK_KEYS && c.arrived)
		merge_blocks<D, mode>(&c, s);
}

template <class T, int D, enum decode_mode mode> static cudaError_t init_leaves(void)
{
	struct decode_params most = {};

	most.result_heads = HEAD_TILE;
	most.run_slots = 2 * max_item_runs(most.result_heads, dims_read(D, mode));
	return cudaFuncSetAttribute(leaves_kernel<T, D, mode>, cudaFuncAttributeMaxDynamicSharedMemorySize,
	                            (int)leaves_smem_bytes<D, mode>(&most));
}

template <class T, int D, enum decode_mode mode>
static void launch_leaves(const struct decode_params *c, uint32_t items, cudaStream_t stream)
{
	launch_overlapped(leaves_kernel<T, D, mode>, *c, min(items, c->blocks), 32 * warps<D, mode>,
	                  leaves_smem_bytes<D, mode>(c), 0, stream);
}

#endif
