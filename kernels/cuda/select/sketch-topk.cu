/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/sketch-topk.cu - the best tokens of each kv head by the sketches of all: scan and selection at once.
 *
 * The scores of a list, a kv head of a sequence, never go to memory: the blocks that scan it keep them in shared memory
 * until the selection is made. How many blocks that is follows from the load: a list is cut into items of units
 * (sketch-scan.cuh), an item is a block's turn, and a block takes every gridDim-th of them. Blocks of a list wait for each
 * other, so all are resident (a cooperative launch), and items are taken in the order of their numbers: a block that waits
 * has nothing left from before that list. Three times they meet:
 *
 *   1. the units' largest scores and sums are in memory: each block makes the denominators of the heads from all of them,
 *      in the same order, and from these and the scores the keys of its tokens;
 *   2. histograms of the keys' upper digits: the block that comes last finds the digit of the k-th key;
 *   3. histograms of the lower digits, of keys with that upper one: the last one finds the k-th key, and where in the list
 *      the ids of each block begin.
 *
 * A key is the token's weight in log2, in 1 / 2^14ths: 20 bits, two digits. Weights that differ by less are equal, and of
 * equals the lower id comes first. Denominators are made of units, so that nothing depends on how a list was cut.
 */
#include "kernels/cuda/select/sketch-scan.cuh"
#include "kernels/cuda/select/sketch.h"

#define THREADS 512u
#define WARPS (THREADS / 32)
#define MAX_ITEM_UNITS 32u
#define MIN_ITEM_UNITS 4u
#define ITEM_BYTES 86016u /* of an item's records, at most: two blocks an SM */
#define MAX_SEQS 256u     /* of a launch */

#define DIGIT_BITS 10
#define BINS (1u << DIGIT_BITS)
#define ROW_WORDS (BINS / 2 + 4) /* a histogram of counts of 16 bits, and how many are selected anyway */
#define KEY_ANYWAY (1u << 2 * DIGIT_BITS) /* recent and pinned ones */
#define KEY_STEPS 16384.0f
#define KEY_FLOOR -60.0f /* log2 of weights below this are equal; a sum over a group may be above 1 */
#define NO_BIN 0xffffffffu

struct topk_params {
	struct sketch_params s;
	struct skv_select select;
	struct skv_index_list list;
	bool sum;               /* a token's weight is the sum over its group, else the largest */
	uint32_t first_seq, n;  /* sequences of this launch */
	uint32_t records; /* records of a pair: heads / 2 */
	uint32_t units, max_item_units; /* of a list, and of an item, at most */
	struct meeting *meeting;  /* [n][kv heads] */
	float2 *peaks;            /* [n][kv heads][units][group] */
	uint32_t *row;            /* [gridDim][ROW_WORDS]: of the block's item */
	uint2 *begin;             /* [gridDim]: ids of earlier blocks of the list; of these, equals of the k-th */
};

/* An item, as its block sees it. */
struct item {
	uint32_t i, h, list;
	uint32_t nth, blocks; /* of the list's */
	uint32_t first, end;  /* units */
	uint32_t slot;        /* of the list's first block, among all blocks */
	uint32_t phase;       /* meetings so far */
	struct skv_topk_counts counts;
};

struct topk_smem {
	struct sketch_query query;
	float4 head[HEAD_TILE]; /* what makes weights of a head's products: struct sketch_head */
	uint32_t bins[BINS], anyway;
	uint32_t warp_sum[WARPS];
	uint32_t bin, want, here, last; /* results of a meeting */
	uint32_t first[MAX_SEQS + 1];   /* items before a sequence's */
	uint32_t item_units;
	struct item item; /* the block's */
	alignas(16) uint32_t memory[]; /* records, and then scales */
};

/* ---- a block's sums ---------------------------------------------------------------------------- */

DEVICE uint32_t warp_scan(uint32_t mine)
{
#pragma unroll
	for (int x = 1; x < 32; x *= 2) {
		const uint32_t other = __shfl_up_sync(~0u, mine, x);
		mine += threadIdx.x % 32 >= x ? other : 0;
	}
	return mine;
}

/* Exclusive prefix sum over the block's threads, and the sum. */
__device__ static uint32_t block_scan(struct topk_smem *smem, uint32_t mine, uint32_t *ret_total)
{
	const uint32_t sum = warp_scan(mine), warp = threadIdx.x / 32;
	uint32_t before = 0, total = 0;

	__syncthreads(); /* the last call's sums have been read */
	if (threadIdx.x % 32 == 31)
		smem->warp_sum[warp] = sum;
	__syncthreads();
#pragma unroll
	for (uint32_t w = 0; w < WARPS; w++) {
		before += w < warp ? smem->warp_sum[w] : 0;
		total += smem->warp_sum[w];
	}
	*ret_total = total;
	return before + sum - mine;
}

/* ---- meetings ---------------------------------------------------------------------------------- */

DEVICE uint32_t load_acquire(const uint32_t *p)
{
	uint32_t x;
	asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
	return x;
}
DEVICE void store_release(uint32_t *p, uint32_t x)
{
	asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
}

/* What this block has written is seen by those that come later. True: it is the last one. */
__device__ static bool arrive(struct topk_smem *smem, struct meeting *m)
{
	struct item *it = &smem->item;
	__syncthreads();
	if (threadIdx.x == 0) {
		it->phase++;
		smem->last = 1;
		if (it->blocks > 1) {
			__threadfence();
			smem->last = atomicAdd(&m->arrived, 1) == it->phase * it->blocks - 1;
			__threadfence();
		}
	}
	__syncthreads();
	return smem->last;
}

__device__ static void wait_until(const struct topk_smem *smem, const uint32_t *word, uint32_t least)
{
	if (smem->item.blocks > 1 && threadIdx.x == 0)
		while (load_acquire(word) < least)
			;
	__syncthreads();
}

/* ---- items ------------------------------------------------------------------------------------- */

DEVICE uint32_t units_of(const struct skv_kseq *s)
{
	return (s->len + SKETCH_UNIT - 1) / SKETCH_UNIT;
}

DEVICE uint32_t divide_up(uint32_t a, uint32_t b)
{
	return (a + b - 1) / b;
}

/* How many blocks a list gets. */
DEVICE uint32_t blocks_of(const struct topk_smem *smem, const struct skv_kseq *s)
{
	return divide_up(units_of(s), smem->item_units);
}

/* Every block comes to the same plan: items of a size that lets all blocks have as many, about. */
__device__ static void plan_items(const struct topk_params *c, struct topk_smem *smem)
{
	const struct skv_kseq *s = &c->s.seq[c->first_seq + min(threadIdx.x, c->n - 1)];
	const uint32_t units = threadIdx.x < c->n ? units_of(s) : 0;
	uint32_t all, items, most = __reduce_max_sync(~0u, units);

	block_scan(smem, units, &all);
	all *= c->s.n_kv_heads;
	__syncthreads();
	if (threadIdx.x % 32 == 0)
		smem->warp_sum[threadIdx.x / 32] = most;
	__syncthreads();
	for (uint32_t w = 0; w < WARPS; w++)
		most = max(most, smem->warp_sum[w]);
	if (threadIdx.x == 0) {
		const uint32_t rounds = max(1u, divide_up(all, gridDim.x * c->max_item_units));
		const uint32_t even = max(divide_up(all, gridDim.x * rounds), divide_up(most, gridDim.x));
		smem->item_units = min(max(even, MIN_ITEM_UNITS), c->max_item_units);
	}
	__syncthreads();
	const uint32_t before = block_scan(smem, threadIdx.x < c->n ? blocks_of(smem, s) * c->s.n_kv_heads : 0, &items);
	if (threadIdx.x < c->n)
		smem->first[threadIdx.x] = before;
	if (threadIdx.x == 0)
		smem->first[c->n] = items;
	__syncthreads();
}

/* By one thread. */
__device__ static void begin_item(const struct topk_params *c, struct topk_smem *smem, uint32_t id)
{
	uint32_t lo = 0, hi = c->n;
	while (hi - lo > 1) {
		const uint32_t mid = (lo + hi) / 2;
		if (smem->first[mid] <= id)
			lo = mid;
		else
			hi = mid;
	}
	const uint32_t units = units_of(&c->s.seq[c->first_seq + lo]), blocks = (smem->first[lo + 1] - smem->first[lo]) / c->s.n_kv_heads;
	const uint32_t h = (id - smem->first[lo]) / blocks, nth = (id - smem->first[lo]) % blocks;
	struct item *it = &smem->item;
	it->i = c->first_seq + lo;
	it->h = h;
	it->list = lo * c->s.n_kv_heads + h;
	it->nth = nth;
	it->blocks = blocks;
	it->first = units * nth / blocks;
	it->end = units * (nth + 1) / blocks;
	it->slot = (id - nth) % gridDim.x;
	it->phase = 0;
	it->counts = skv_topk_counts_of(&c->select, c->s.seq[it->i].len);
}

DEVICE uint32_t slot_of(const struct item *it, uint32_t block)
{
	return (it->slot + block) % gridDim.x;
}

/* ---- keys -------------------------------------------------------------------------------------- */

/* log2 of the denominators of a tile's heads, a warp each, from all units in order. */
__device__ static void make_denominators(const struct topk_params *c, const struct item *it, struct topk_smem *smem)
{
	const uint32_t g = threadIdx.x / 32, units = units_of(&c->s.seq[it->i]), group = c->s.group;
	const float2 *peaks = c->peaks + (size_t)it->list * c->units * group;

	if (g < group) {
		struct partial_softmax all = {-INFINITY, 0};
#pragma unroll 8
		for (uint32_t u = threadIdx.x % 32; u < units; u += 32) {
			const float2 x = __ldcg(&peaks[u * group + g]);
			all = merge_softmax(all, {x.x, x.y});
		}
		all = warp_merge_softmax(all);
		if (threadIdx.x % 32 == 0)
			smem->head[g] = head_weights_of(&smem->query, g, add_sink(c->s.sinks, it->h * group + g, denominator(all)));
	}
	__syncthreads();
}

/* The key of a token: of its weight in log2, unless it is selected anyway, or never. */
DEVICE uint32_t key_of(const struct skv_topk_counts *x, uint32_t token, uint32_t scale, float weight)
{
	if (scale == SCALE_ABSENT)
		return 0;
	if (token < x->pin || token >= x->n - x->recent)
		return KEY_ANYWAY;
	if (scale == SCALE_NO_SKETCH)
		return 1;
	if (weight != weight)
		return 0;
	return (uint32_t)fminf(fmaxf((weight - KEY_FLOOR) * KEY_STEPS, 1), (float)(KEY_ANYWAY - 1));
}

/* Two tokens' weights in log2, reduced over the group. */
template <int shift>
DEVICE float2 pair_weights(const struct topk_params *c, const struct topk_smem *smem, const uint2 *record, uint32_t scales)
{
	const uint32_t group = c->s.group;
	const float low = bf16_low(scales), high = bf16_high(scales);
	float2 w = c->sum ? make_float2(0, 0) : make_float2(-INFINITY, -INFINITY);

	for (uint32_t g = 0; g < group; g++) {
		const uint2 two = g % 2 ? make_uint2(record[g / 2].x >> 16, record[g / 2].y >> 16) : record[g / 2];
		const float x = head_weight(&c->s.scale, smem->head[g], product<shift>(two.x), low);
		const float y = head_weight(&c->s.scale, smem->head[g], product<shift>(two.y), high);
		if (c->sum) {
			w.x += exp2_fast(x);
			w.y += exp2_fast(y);
		} else { /* a NaN stays one */
			w.x = x > w.x || x != x ? x : w.x;
			w.y = y > w.y || y != y ? y : w.y;
		}
	}
	return c->sum ? make_float2(log2f(w.x), log2f(w.y)) : w;
}

/* Where a pair's keys are: in place of its first record. */
DEVICE uint2 *keys_at(const struct topk_params *c, struct topk_smem *smem, uint32_t p)
{
	return (uint2 *)smem->memory + (size_t)p * c->records;
}

DEVICE uint32_t *scales_at(const struct topk_params *c, struct topk_smem *smem)
{
	return smem->memory + (size_t)c->max_item_units * SKETCH_PAIRS * c->records * 2;
}

DEVICE void clear_bins(struct topk_smem *smem)
{
	for (uint32_t b = threadIdx.x; b < BINS; b += THREADS)
		smem->bins[b] = 0;
	if (threadIdx.x == 0)
		smem->anyway = 0;
	__syncthreads();
}

DEVICE void count_upper(struct topk_smem *smem, uint32_t key)
{
	if (key - 1 < KEY_ANYWAY - 1)
		atomicAdd(&smem->bins[key >> DIGIT_BITS], 1);
	else if (key)
		atomicAdd(&smem->anyway, 1);
}

/* Keys in place of scores, and their first histogram. */
template <int shift>
__device__ static void make_keys(const struct topk_params *c, const struct item *it, struct topk_smem *smem)
{
	const struct skv_topk_counts *x = &it->counts;
	const uint32_t *scales = scales_at(c, smem), pairs = (it->end - it->first) * SKETCH_PAIRS;

	clear_bins(smem);
	for (uint32_t p = threadIdx.x; p < pairs; p += THREADS) {
		const uint32_t token = it->first * SKETCH_UNIT + 2 * p, scale = scales[p];
		const float2 w = pair_weights<shift>(c, smem, keys_at(c, smem, p), scale);
		const uint2 k = make_uint2(key_of(x, token, scale & 0xffff, w.x), key_of(x, token + 1, scale >> 16, w.y));
		*keys_at(c, smem, p) = k;
		count_upper(smem, k.x);
		count_upper(smem, k.y);
	}
	__syncthreads();
}

/* The second histogram, of keys with this upper digit. */
__device__ static void count_lower(const struct topk_params *c, const struct item *it, uint32_t upper, struct topk_smem *smem)
{
	const uint32_t pairs = (it->end - it->first) * SKETCH_PAIRS;

	clear_bins(smem);
	for (uint32_t p = threadIdx.x; p < pairs; p += THREADS) {
		const uint2 k = *keys_at(c, smem, p);
		if (k.x >> DIGIT_BITS == upper && k.x)
			atomicAdd(&smem->bins[k.x % BINS], 1);
		if (k.y >> DIGIT_BITS == upper && k.y)
			atomicAdd(&smem->bins[k.y % BINS], 1);
	}
	__syncthreads();
}

/* ---- histograms of all blocks -------------------------------------------------------------------- */

DEVICE void write_row(const struct topk_params *c, const struct topk_smem *smem)
{
	uint32_t *row = c->row + (size_t)blockIdx.x * ROW_WORDS;
	for (uint32_t w = threadIdx.x; w < BINS / 2; w += THREADS)
		row[w] = smem->bins[2 * w] | smem->bins[2 * w + 1] << 16;
	if (threadIdx.x == 0)
		row[BINS / 2] = smem->anyway;
}

/*
 * The bin, from the top, in which the want-th key of all blocks lies; smem->want: how many of that bin are wanted, and
 * smem->here how many there are. NO_BIN: there are fewer keys.
 */
__device__ static void find_bin(const struct topk_params *c, const struct item *it, uint32_t want, struct topk_smem *smem)
{
	static_assert(THREADS == BINS / 2, "a thread has two bins");
	const uint32_t w = BINS / 2 - 1 - threadIdx.x;
	uint32_t low = 0, high = 0, total;

#pragma unroll 8
	for (uint32_t b = 0; b < it->blocks; b++) {
		const uint32_t two = __ldcg(&c->row[(size_t)slot_of(it, b) * ROW_WORDS + w]);
		low += two & 0xffff;
		high += two >> 16;
	}
	const uint32_t above = block_scan(smem, low + high, &total);
	if (threadIdx.x == 0)
		smem->bin = NO_BIN;
	__syncthreads();
	if (above < want && above + low + high >= want) {
		const bool upper = above + high >= want;
		smem->bin = 2 * w + upper;
		smem->want = want - above - (upper ? 0 : high);
		smem->here = upper ? high : low;
	}
	__syncthreads();
}

/* Of a row, in a warp: keys above a bin (NO_BIN: all), and in it. */
DEVICE uint2 count_row(const uint32_t *row, uint32_t bin)
{
	uint32_t above = 0, in = 0;
#pragma unroll
	for (uint32_t w = threadIdx.x % 32; w < BINS / 2; w += 32) {
		const uint32_t two = __ldcg(&row[w]);
		above += (bin == NO_BIN || 2 * w > bin ? two & 0xffff : 0) + (bin == NO_BIN || 2 * w + 1 > bin ? two >> 16 : 0);
		in += 2 * w == bin ? two & 0xffff : 2 * w + 1 == bin ? two >> 16 : 0;
	}
	return make_uint2(__reduce_add_sync(~0u, above), __reduce_add_sync(~0u, in));
}

/* What each block selects by this digit: more ids, and how many equals of the bin it has. */
__device__ static void count_rows(const struct topk_params *c, const struct item *it, uint32_t bin, bool first)
{
	for (uint32_t b = threadIdx.x / 32; b < it->blocks; b += WARPS) {
		const uint32_t *row = c->row + (size_t)slot_of(it, b) * ROW_WORDS;
		const uint2 n = count_row(row, bin);
		uint2 *to = &c->begin[slot_of(it, b)];
		if (threadIdx.x % 32 == 0)
			*to = make_uint2(n.x + (first ? __ldcg(&row[BINS / 2]) : __ldcg(&to->x)), first ? 0 : n.y);
	}
	__syncthreads();
}

/* From counts of blocks to where their ids begin: a warp's work. `equal`: how many of the k-th's equals are wanted. */
__device__ static void place_blocks(const struct topk_params *c, const struct item *it, uint32_t equal)
{
	uint32_t ids = 0, equals = 0;

	for (uint32_t from = 0; from < it->blocks; from += 32) {
		const uint32_t b = from + threadIdx.x;
		uint2 *at = &c->begin[slot_of(it, min(b, it->blocks - 1))];
		const uint2 n = b < it->blocks ? make_uint2(__ldcg(&at->x), __ldcg(&at->y)) : make_uint2(0, 0);
		const uint32_t to_here = warp_scan(n.y) + equals, before = to_here - n.y;
		const uint32_t mine = n.x + min(to_here, equal) - min(before, equal), ids_to_here = warp_scan(mine) + ids;
		if (b < it->blocks)
			*at = make_uint2(ids_to_here - mine, before);
		ids = __shfl_sync(~0u, ids_to_here, 31);
		equals = __shfl_sync(~0u, to_here, 31);
	}
	if (threadIdx.x == 0)
		c->list.count[(size_t)c->first_seq * c->s.n_kv_heads + it->list] = ids;
}

/* The selection is made but for the ids: the last block's work, which says so. */
__device__ static void conclude(const struct topk_params *c, const struct item *it, struct meeting *m, uint32_t last,
                                uint32_t equal)
{
	if (threadIdx.x < 32)
		place_blocks(c, it, equal);
	if (threadIdx.x == 0) {
		m->last = last;
		m->equal = equal;
		m->done = 1;
	}
	__syncthreads();
	if (threadIdx.x == 0) {
		__threadfence();
		store_release(&m->ready, it->phase);
	}
}

/* The last block of the second meeting: the upper digit of the k-th key, or that all keys or none are wanted. */
__device__ static void find_upper(const struct topk_params *c, const struct item *it, struct meeting *m,
                                  struct topk_smem *smem)
{
	const struct skv_topk_counts *x = &it->counts;
	if (x->want)
		find_bin(c, it, x->want, smem);
	const uint32_t bin = x->want ? smem->bin : BINS;
	count_rows(c, it, bin, true);
	if (bin >= BINS) {
		conclude(c, it, m, x->want ? 0 : KEY_ANYWAY - 1, 0);
		return;
	}
	if (threadIdx.x == 0) {
		m->bin = bin;
		m->want = smem->want;
		m->done = 0;
		__threadfence();
		store_release(&m->ready, it->phase);
	}
}

/* The last block of the third: the k-th key. */
__device__ static void find_lower(const struct topk_params *c, const struct item *it, struct meeting *m,
                                  struct topk_smem *smem)
{
	const uint32_t upper = __ldcg(&m->bin);

	find_bin(c, it, __ldcg(&m->want), smem);
	const uint32_t bin = smem->bin, want = smem->want;
	count_rows(c, it, bin, false);
	conclude(c, it, m, upper << DIGIT_BITS | bin, want);
}

/* ---- ids --------------------------------------------------------------------------------------- */

/* The block's ids, ascending, from where the list has its. A warp takes a contiguous run of pairs. */
__device__ static void write_ids(const struct topk_params *c, const struct item *it, const struct meeting *m,
                                 struct topk_smem *smem)
{
	const uint32_t pairs = (it->end - it->first) * SKETCH_PAIRS, per = divide_up(pairs, THREADS) * 32, lane = threadIdx.x % 32;
	const uint32_t from = min(pairs, threadIdx.x / 32 * per), to = min(pairs, from + per), lower = (1u << lane) - 1;
	const uint32_t last = __ldcg(&m->last), equal = __ldcg(&m->equal);
	const uint2 *begin = &c->begin[blockIdx.x];
	uint32_t *ids = c->list.ids + ((size_t)c->first_seq * c->s.n_kv_heads + it->list) * c->list.stride;
	uint32_t same = 0, better = 0, total;

	for (uint32_t p = from + lane; p < to; p += 32) {
		const uint2 k = *keys_at(c, smem, p);
		better += (k.x > last) + (k.y > last);
		same += (k.x == last) + (k.y == last);
	}
	same = equal ? same : 0;
	/* both in a word: there are at most 8,192 of each in a block */
	const uint32_t before = __shfl_sync(~0u, block_scan(smem, better | same << 16, &total), 0);
	uint32_t rank = __ldcg(&begin->y) + (before >> 16);
	uint32_t at = __ldcg(&begin->x) + (before & 0xffff) + min(rank, equal) - min(__ldcg(&begin->y), equal);
	for (uint32_t p = from; p < to; p += 32) {
		const uint2 k = p + lane < to ? *keys_at(c, smem, p + lane) : make_uint2(0, 0);
		const bool e0 = equal && k.x == last, e1 = equal && k.y == last;
		const uint32_t m0 = __ballot_sync(~0u, e0), m1 = __ballot_sync(~0u, e1);
		const uint32_t mine = rank + __popc(m0 & lower) + __popc(m1 & lower);
		const bool t0 = k.x > last || (e0 && mine < equal), t1 = k.y > last || (e1 && mine + e0 < equal);
		const uint32_t s0 = __ballot_sync(~0u, t0), s1 = __ballot_sync(~0u, t1);
		const uint32_t here = at + __popc(s0 & lower) + __popc(s1 & lower);
		const uint32_t id = it->first * SKETCH_UNIT + 2 * (p + lane);
		if (t0)
			ids[here] = id;
		if (t1)
			ids[here + t0] = id + 1;
		at += __popc(s0) + __popc(s1);
		rank += __popc(m0) + __popc(m1);
	}
}

/* ---- the kernel -------------------------------------------------------------------------------- */

template <int D, int bits, int split>
__device__ static void scan_item(const struct topk_params *c, const struct item *it, struct topk_smem *smem)
{
	const struct skv_kseq *s = &c->s.seq[it->i];
	const uint32_t warp = threadIdx.x / 32, group = c->s.group;
	const struct sketch_records to = {(uint2 *)smem->memory, scales_at(c, smem), c->records};
	sketch_scan<D, bits, split> scan;

	scan.begin(&c->s, s, it->h, it->first + warp, it->end);
	if (warp < group)
		make_sketch_query<D, bits>(&c->s, s, it->h, it->h * group, warp, &smem->query);
	__syncthreads();
	if (warp == 0)
		scan.query(&smem->query, group);
	__syncthreads();
	if (it->first + warp < it->end)
		scan.run(&smem->query, group, it->first + warp, WARPS, it->end, to, warp,
		         c->peaks + (size_t)it->list * c->units * group, group);
}

/* An item, from the scan to its ids. */
template <int D, int bits, int split>
__device__ static void select_item(const struct topk_params *c, struct topk_smem *smem)
{
	const struct item *it = &smem->item;
	struct meeting *m = &c->meeting[it->list];

	scan_item<D, bits, split>(c, it, smem);
	arrive(smem, m);
	wait_until(smem, &m->arrived, it->blocks);
	make_denominators(c, it, smem);
	make_keys<sketch_shift<D, bits>>(c, it, smem);
	write_row(c, smem);
	if (arrive(smem, m))
		find_upper(c, it, m, smem);
	wait_until(smem, &m->ready, it->phase);
	if (!__ldcg(&m->done)) {
		count_lower(c, it, __ldcg(&m->bin), smem);
		write_row(c, smem);
		if (arrive(smem, m))
			find_lower(c, it, m, smem);
		wait_until(smem, &m->ready, it->phase);
	}
	write_ids(c, it, m, smem);
	if (arrive(smem, m) && threadIdx.x == 0)
		*m = {};
}

template <int D, int bits, int split>
__global__ void __launch_bounds__(THREADS, 2) topk_kernel(const __grid_constant__ struct topk_params c)
{
	extern __shared__ __align__(16) uint8_t memory[];
	struct topk_smem *smem = (struct topk_smem *)memory;

	plan_items(&c, smem);
	for (uint32_t id = blockIdx.x; id < smem->first[c.n]; id += gridDim.x) {
		if (threadIdx.x == 0)
			begin_item(&c, smem, id);
		__syncthreads();
		select_item<D, bits, split>(&c, smem);
	}
}

/* ---- launches ---------------------------------------------------------------------------------- */

static uint32_t records_of(const struct skv_shape *sh)
{
	return (sh->n_heads / sh->n_kv_heads + 1) / 2;
}

/* Units of an item, at most: what two blocks an SM have room for. */
static uint32_t max_item_units(const struct skv_shape *sh)
{
	const uint32_t fit = ITEM_BYTES / (SKETCH_PAIRS * (records_of(sh) * (uint32_t)sizeof(uint2) + (uint32_t)sizeof(uint32_t)));
	return fit < MAX_ITEM_UNITS ? fit : MAX_ITEM_UNITS;
}

static uint32_t max_blocks(void)
{
	return 2 * skv_cuda_sms();
}

static uint32_t units_of_len(uint32_t max_len)
{
	return ceil_div(max_len, SKETCH_UNIT);
}

/* Sequences of a launch. */
static uint32_t max_seqs(const struct skv_shape *sh)
{
	const uint32_t n = MAX_MEETINGS / sh->n_kv_heads;
	return n < MAX_SEQS ? n : MAX_SEQS;
}

bool skv_cuda_topk_of_sketches(const struct skv_shape *sh, uint32_t max_len)
{
	const uint32_t group = sh->n_heads / sh->n_kv_heads;
	/* one block an SM, if it comes to that */
	return group <= HEAD_TILE && units_of_len(max_len) <= skv_cuda_sms() * max_item_units(sh);
}

static size_t peaks_bytes(const struct skv_shape *sh, uint32_t n, uint32_t max_len)
{
	return (size_t)(n < max_seqs(sh) ? n : max_seqs(sh)) * sh->n_heads * units_of_len(max_len) * sizeof(float2);
}

size_t skv_cuda_topk_of_sketches_bytes(const struct skv_shape *sh, uint32_t n, uint32_t max_len)
{
	return max_blocks() * (ROW_WORDS * sizeof(uint32_t) + sizeof(uint2)) + peaks_bytes(sh, n, max_len);
}

static size_t smem_bytes(const struct skv_shape *sh)
{
	return sizeof(struct topk_smem) +
	       max_item_units(sh) * SKETCH_PAIRS * (records_of(sh) * sizeof(uint2) + sizeof(uint32_t));
}

struct topk_launch {
	const struct skv_shape *sh;
	struct topk_params c;
	cudaStream_t stream;

	/* Blocks that wait for each other need a cooperative launch. */
	template <int D, int bits, int split> void start(void) const
	{
		cudaLaunchAttribute at_once = {};
		cudaLaunchConfig_t config = {};
		int each = 1;

		cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, topk_kernel<D, bits, split>, THREADS, smem_bytes(sh));
		at_once.id = cudaLaunchAttributeCooperative;
		at_once.val.cooperative = 1;
		config.gridDim = skv_cuda_sms() * (each > 2 ? 2 : each < 1 ? 1 : each);
		config.blockDim = THREADS;
		config.dynamicSmemBytes = smem_bytes(sh);
		config.stream = stream;
		config.attrs = &at_once;
		config.numAttrs = 1;
		cudaLaunchKernelEx(&config, topk_kernel<D, bits, split>, c);
	}
	template <int D, int bits> void run(void) const
	{
		if (D <= 128 && c.s.group <= HEAD_TILE / 2)
			start<D, bits, D <= 128 ? 2 : 1>();
		else
			start<D, bits, 1>();
	}
};

void skv_cuda_launch_topk_of_sketches(const struct skv_shape *sh, const struct skv_batch *b, const void *q, bool sum,
                                      const struct skv_select *select, const struct skv_index_list *list,
                                      const struct skv_workspace *work)
{
	const struct workspace_layout l = workspace_layout_of(sh, b->n, b->max_len, 1);
	uint8_t *mem = (uint8_t *)work->mem;
	struct topk_launch launch = {.sh = sh, .stream = stream_of(work)};
	struct topk_params *c = &launch.c;

	c->s = sketch_params_of(sh, b, q);
	c->select = *select;
	c->list = *list;
	c->sum = sum;
	c->records = records_of(sh);
	c->units = units_of_len(b->max_len);
	c->max_item_units = max_item_units(sh);
	c->meeting = (struct meeting *)(mem + l.meetings);
	c->row = (uint32_t *)(mem + l.partial);
	c->begin = (uint2 *)(c->row + (size_t)max_blocks() * ROW_WORDS);
	c->peaks = (float2 *)(c->begin + max_blocks());
	for (uint32_t first = 0; first < b->n; first += c->n) {
		c->first_seq = first;
		c->n = b->n - first < max_seqs(sh) ? b->n - first : max_seqs(sh);
		sketch_dispatch(sh, launch);
	}
}

struct topk_init {
	cudaError_t *e;

	template <int D, int bits, int split> void allow(void) const
	{
		*e = *e ? *e : cudaFuncSetAttribute(topk_kernel<D, bits, split>, cudaFuncAttributeMaxDynamicSharedMemorySize,
		                                    (int)(sizeof(struct topk_smem) + ITEM_BYTES));
	}
	template <int D, int bits> void run(void) const
	{
		allow<D, bits, 1>();
		allow<D, bits, D <= 128 ? 2 : 1>();
	}
};

cudaError_t skv_cuda_sketch_topk_init(void)
{
	cudaError_t e = cudaSuccess;
	const struct topk_init init = {&e};

	for (uint32_t bits = 1; bits <= 4; bits++) {
		sketch_dispatch_bits<64>(bits, init);
		sketch_dispatch_bits<96>(bits, init);
		sketch_dispatch_bits<128>(bits, init);
		sketch_dispatch_bits<256>(bits, init);
	}
	return e;
}
