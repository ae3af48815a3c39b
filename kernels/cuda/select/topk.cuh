/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/topk.cuh - the best units of one list, by radix select, for a team of warps of a block.
 *
 * Scores become keys whose order as integers is theirs as numbers, 0 for what must not be chosen. Counts of the
 * keys by ranges, each time of one of the ranges before, find the key of the last one chosen; one more pass
 * collects what is better, and of its equals as many as are wanted, in ascending order. The first count is made
 * along with the keys, by ranges that are fine where softmax weights are.
 *
 * Keys are held in shared memory where they fit, and read four at a time: one by one, the team would wait for
 * each.
 */
#ifndef SKV_CUDA_SELECT_CUH
#define SKV_CUDA_SELECT_CUH

#include "kernels/cuda/runtime/convert.cuh"
#include "kernels/cuda/runtime/cuda.h"

#define BITS 11
#define BINS (1u << BITS)
#define KEY_BYTES 131072u /* of keys that fit shared memory: 32,768 units, on sm_80 too */
#define KEY_ALWAYS 0xffffffffu /* pinned and recent: above the key of every number */

/* The first count: 32 ranges to a power of two from 2^-55 to 2^9, the outer ones with all that is beyond. */
#define FIRST_KEY (0x80000000u + ((127u - 55) << 23))
#define FIRST_SHIFT 18

/* `threads` of a block from thread `first` on, which meet at a barrier of their own. */
template <int threads_, int first, int barrier> struct team {
	static constexpr int threads = threads_;
	static __device__ uint32_t me(void)
	{
		return threadIdx.x - first;
	}
	static __device__ void sync(void)
	{
		asm volatile("bar.sync %0, %1;" ::"n"(barrier), "n"(threads_) : "memory");
	}
};

#define KEY_QUAD 4u /* keys to a read; an array of keys has whole ones */

/* Bytes of the keys of so many units; if they do not fit, they are put in place of the scores. */
static inline size_t key_bytes(uint32_t units)
{
	return ceil_div(units, KEY_QUAD) * KEY_QUAD * sizeof(uint32_t);
}

static inline bool select_fits(uint32_t units)
{
	return key_bytes(units) <= KEY_BYTES;
}

/* What a team needs in shared memory. */
struct select_room {
	uint32_t bins[BINS];
	uint64_t warp_sum[32];
	uint32_t bin, want, here; /* the range found, and of its keys: wanted, there */
};

__device__ static struct skv_topk_counts choice_of(const struct skv_select *s, bool tokens, uint32_t len)
{
	return skv_choice_of(s, tokens ? len : skv_pages_of(len));
}

/* The key of unit u, which is there or not. */
DEVICE uint32_t key_of(const struct skv_topk_counts *x, uint32_t u, bool there, float score)
{
	const uint32_t bits = __float_as_uint(score + 0.0f); /* -0 is 0 */
	if (!there || u >= x->n)
		return 0;
	if (u < x->pin || u >= x->n - x->recent)
		return KEY_ALWAYS;
	if (isnan(score) || score == -INFINITY)
		return 0;
	return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

/* A count begins. */
template <class T> __device__ static void count_clear(struct select_room *room)
{
	for (uint32_t b = T::me(); b < BINS; b += T::threads)
		room->bins[b] = 0;
	if (T::me() == 0)
		room->bin = BINS;
	T::sync();
}

/*
 * The first count of a key. What is not to be chosen, or is already, adds nothing: an addition of a constant
 * would be one that is slow when all lanes have different ranges.
 */
DEVICE void count_first(struct select_room *room, uint32_t key)
{
	const uint32_t range = key < FIRST_KEY ? 0 : min((key - FIRST_KEY) >> FIRST_SHIFT, BINS - 1);
	atomicAdd(&room->bins[range], (uint32_t)(key - 1 < KEY_ALWAYS - 1));
}

/* Keep a quad of keys from unit u on. */
DEVICE void keep_keys(struct select_room *room, uint32_t *key, uint32_t u, uint4 k)
{
	*(uint4 *)&key[u] = k;
	count_first(room, k.x);
	count_first(room, k.y);
	count_first(room, k.z);
	count_first(room, k.w);
}

/* Exclusive prefix sum over the team; *ret_total is the sum. Two counts in one word. */
template <class T> __device__ static uint64_t scan(struct select_room *room, uint64_t mine, uint64_t *ret_total)
{
	const uint32_t lane = T::me() % 32, warp = T::me() / 32;
	uint64_t sum = mine, before = 0, total = 0;
#pragma unroll
	for (int x = 1; x < 32; x *= 2) {
		const uint64_t other = __shfl_up_sync(~0u, sum, x);
		sum += lane >= x ? other : 0;
	}
	T::sync(); /* the last call's sums have been read */
	if (lane == 31)
		room->warp_sum[warp] = sum;
	T::sync();
#pragma unroll
	for (int w = 0; w < T::threads / 32; w++) {
		before += w < warp ? room->warp_sum[w] : 0;
		total += room->warp_sum[w];
	}
	*ret_total = total;
	return before + sum - mine;
}

/*
 * The range, from the top, in which the `want`th key lies, and how many of that range are still wanted. Nothing
 * when there are fewer keys: room->bin stays.
 */
template <class T> __device__ static void find_range(struct select_room *room)
{
	constexpr uint32_t per = BINS / T::threads;
	const uint32_t want = room->want, top = BINS - 1 - T::me() * per;
	uint64_t mine = 0, total;
#pragma unroll
	for (uint32_t b = 0; b < per; b++)
		mine += room->bins[top - b];
	uint64_t above = scan<T>(room, mine, &total);
#pragma unroll
	for (uint32_t b = 0; b < per; b++) {
		const uint32_t here = room->bins[top - b];
		if (above < want && above + here >= want) {
			room->bin = top - b;
			room->want = want - (uint32_t)above;
			room->here = here;
		}
		above += here;
	}
	T::sync();
}

DEVICE void count_key(struct select_room *room, uint32_t key, uint32_t from, uint32_t size, uint32_t shift)
{
	if (key - from < size)
		atomicAdd(&room->bins[(key - from) >> shift], 1);
}

/* Count the keys of [from, from + size) by ranges of 1 << shift. */
template <class T>
__device__ static void count_again(struct select_room *room, const uint4 *key, uint32_t quads, uint32_t from,
                                   uint32_t size, uint32_t shift)
{
	constexpr int deep = 4; /* reads on their way */
	count_clear<T>(room);
	for (uint32_t first = T::me(); first < quads; first += deep * T::threads) {
		uint4 k[deep];
#pragma unroll
		for (int d = 0; d < deep; d++) {
			const uint32_t q = first + d * T::threads;
			k[d] = q < quads ? key[q] : make_uint4(0, 0, 0, 0);
		}
#pragma unroll
		for (int d = 0; d < deep; d++) {
			count_key(room, k[d].x, from, size, shift);
			count_key(room, k[d].y, from, size, shift);
			count_key(room, k[d].z, from, size, shift);
			count_key(room, k[d].w, from, size, shift);
		}
	}
	T::sync();
}

/*
 * The key of the last one chosen and how many of its equals; or a key below the last one and none, where all
 * above it are wanted.
 */
template <class T>
__device__ static void find_last(const uint4 *key, uint32_t quads, uint32_t want, struct select_room *room,
                                 uint32_t *ret_last, uint32_t *ret_equal)
{
	if (T::me() == 0)
		room->want = want;
	T::sync();
	find_range<T>(room);
	*ret_last = *ret_equal = 0;
	if (room->bin == BINS) /* fewer than wanted: all of them */
		return;
	const uint32_t bin = room->bin;
	uint32_t from = bin ? FIRST_KEY + (bin << FIRST_SHIFT) : 1;
	uint32_t end = bin < BINS - 1 ? FIRST_KEY + ((bin + 1) << FIRST_SHIFT) : KEY_ALWAYS;
	while (end - from > 1 && room->want < room->here) {
		const uint32_t shift = max(BITS, 32 - __clz(end - from - 1)) - BITS;
		T::sync(); /* all have read the last count's result */
		count_again<T>(room, key, quads, from, end - from, shift);
		find_range<T>(room);
		from += room->bin << shift;
		end = min(end - from, 1u << shift) + from;
	}
	const bool all = room->want == room->here;
	*ret_last = all ? from - 1 : from;
	*ret_equal = all ? 0 : room->want;
}

/* Keys of a quad that are better than the last, and those that equal it. */
DEVICE void compare(uint4 k, uint32_t last, uint32_t *better, uint32_t *same)
{
	*better += (k.x > last) + (k.y > last) + (k.z > last) + (k.w > last);
	*same += (k.x == last) + (k.y == last) + (k.z == last) + (k.w == last);
}

/* How many bits of four words are set: those of lower lanes, and all. */
DEVICE uint32_t bits_before(const uint32_t word[KEY_QUAD], uint32_t *ret_all)
{
	const uint32_t lower = (1u << threadIdx.x % 32) - 1;
	uint32_t n = 0;
	*ret_all = 0;
#pragma unroll
	for (int x = 0; x < KEY_QUAD; x++) {
		n += __popc(word[x] & lower);
		*ret_all += __popc(word[x]);
	}
	return n;
}

/* A warp's quads, unit u on in this lane: what is chosen goes to ids[*at] on. *rank: equals of the last so far. */
DEVICE void collect_quads(uint4 quad, uint32_t u, uint32_t last, uint32_t equal, uint32_t *rank, uint32_t *ids,
                          uint32_t *at)
{
	const uint32_t k[KEY_QUAD] = {quad.x, quad.y, quad.z, quad.w};
	uint32_t mask[KEY_QUAD], all, rest = 0;
	bool take[KEY_QUAD];

	if (equal) { /* the lowest units of those that equal the last */
#pragma unroll
		for (int x = 0; x < KEY_QUAD; x++)
			mask[x] = __ballot_sync(~0u, k[x] == last);
		rest = *rank + bits_before(mask, &all);
		*rank += all;
	}
#pragma unroll
	for (int x = 0; x < KEY_QUAD; x++) {
		take[x] = k[x] > last || (equal && k[x] == last && rest++ < equal);
		mask[x] = __ballot_sync(~0u, take[x]);
	}
	uint32_t to = *at + bits_before(mask, &all);
#pragma unroll
	for (int x = 0; x < KEY_QUAD; x++)
		if (take[x])
			ids[to++] = u + x;
	*at += all;
}

/* Units above the last, and the first `equal` of its equals, ascending. A warp takes a run of quads. */
template <class T>
__device__ static uint32_t collect(const uint4 *key, uint32_t quads, struct select_room *room, uint32_t last,
                                   uint32_t equal, uint32_t *ids)
{
	const uint32_t lane = T::me() % 32, per = (quads + T::threads - 1) / T::threads * 32; /* of a warp */
	const uint32_t from = min(quads, T::me() / 32 * per), to = min(quads, from + per);
	uint32_t better = 0, same = 0;
	uint64_t total;

#pragma unroll 4
	for (uint32_t q = from + lane; q < to; q += 32)
		compare(key[q], last, &better, &same);
	const uint64_t mine = scan<T>(room, (uint64_t)better << 32 | same, &total);
	const uint64_t before = __shfl_sync(~0u, mine, 0); /* of the warps before */
	uint32_t rank = (uint32_t)before, at = (uint32_t)(before >> 32) + min(rank, equal);
	const uint4 none = make_uint4(0, 0, 0, 0);
	uint4 next = from + lane < to ? key[from + lane] : none;
	for (uint32_t q = from; q < to; q += 32) {
		const uint4 quad = next;
		next = q + 32 + lane < to ? key[q + 32 + lane] : none;
		collect_quads(quad, (q + lane) * KEY_QUAD, last, equal, &rank, ids, &at);
	}
	return (uint32_t)(total >> 32) + min((uint32_t)total, equal);
}

/* Choose by keys that the team has kept since count_clear(); ids[] gets the units. Returns how many. */
template <class T>
__device__ static uint32_t choose(const uint32_t *keys, const struct skv_topk_counts *x, struct select_room *room, uint32_t *ids)
{
	const uint4 *key = (const uint4 *)keys;
	const uint32_t quads = (x->n + KEY_QUAD - 1) / KEY_QUAD;
	uint32_t last = KEY_ALWAYS - 1, equal = 0;

	T::sync(); /* all keys are there */
	if (x->want)
		find_last<T>(key, quads, x->want, room, &last, &equal);
	return collect<T>(key, quads, room, last, equal, ids);
}

#endif
