/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/topk.cuh - radix top-k: selects the best ids of one list, by a team of warps of a block.
 *
 * Scores become integer keys in the same order; ids that must not be selected have key 0. Histograms of the keys, each
 * over one bin of the previous histogram, find the k-th largest key. One more pass collects the ids with larger keys
 * and, of the ids with an equal key, as many as are wanted, in ascending order. The first histogram is made along with
 * the keys; its bins are narrow where softmax weights lie.
 *
 * Keys are in shared memory if they fit. They are read four at a time: if they were read one by one, the team would
 * wait for each of them.
 */
#ifndef SKV_CUDA_SELECT_TOPK_CUH
#define SKV_CUDA_SELECT_TOPK_CUH

#include "kernels/cuda/runtime/barrier.cuh"
#include "kernels/cuda/runtime/convert.cuh"
#include "kernels/cuda/runtime/cuda.h"

#define BITS 11
#define BINS (1u << BITS)
#define KEY_BYTES 131072u /* max bytes of keys in shared memory: 32,768 keys, also on sm_80 */
#define KEY_ALWAYS 0xffffffffu /* key of pinned and recent ids: above the key of every score */

/*
 * Bins of the first histogram: 32 bins per power of two from 2^-55 to 2^9. The first and last bins also have all scores
 * beyond.
 */
#define FIRST_KEY (0x80000000u + ((127u - 55) << 23))
#define FIRST_SHIFT 18

/* A team: `threads` threads of a block, beginning with thread `first`, which have a named barrier of their own. */
template <int threads_, int first, int barrier> struct team {
	static constexpr int threads = threads_;
	static __device__ uint32_t me(void)
	{
		return threadIdx.x - first;
	}
	static __device__ void sync(void)
	{
		warps_sync(barrier, threads_);
	}
};

#define KEY_QUAD 4u /* number of keys per load; arrays of keys are padded to a multiple of it */

/*
 * Bytes of the keys of `units` pages or tokens. If the keys do not fit in shared memory, they take the place of the
 * scores.
 */
static inline size_t key_bytes(uint32_t units)
{
	return ceil_div(units, KEY_QUAD) * KEY_QUAD * sizeof(uint32_t);
}

static inline bool keys_fit_shared(uint32_t units)
{
	return key_bytes(units) <= KEY_BYTES;
}

/* The shared memory that a team needs for a selection. */
struct topk_smem {
	uint32_t bins[BINS];
	uint64_t warp_sum[32];
	/* The bin found; the number of its keys that are wanted; the number of its keys. */
	uint32_t bin, want, here;
};

__device__ static struct skv_topk_counts topk_counts_of(const struct skv_select *s, bool tokens, uint32_t len)
{
	return skv_topk_counts_of(s, tokens ? len : skv_pages_of(len));
}

/* Returns the key of id u; 0, which is never selected, if the id is not resident. */
DEVICE uint32_t topk_key(const struct skv_topk_counts *x, uint32_t u, bool resident, float score)
{
	const uint32_t bits = __float_as_uint(score + 0.0f); /* adding 0 makes -0 equal to 0 */
	if (!resident || u >= x->n)
		return 0;
	if (u < x->pin || u >= x->n - x->recent)
		return KEY_ALWAYS;
	if (isnan(score) || score == -INFINITY)
		return 0;
	return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

/* Begins a histogram: sets all bins to 0. */
template <class T> __device__ static void clear_bins(struct topk_smem *smem)
{
	for (uint32_t b = T::me(); b < BINS; b += T::threads)
		smem->bins[b] = 0;
	if (T::me() == 0)
		smem->bin = BINS;
	T::sync();
}

/*
 * Counts a key in the first histogram. For a key that cannot be selected, or is selected in any case, 0 is added: with
 * a branch or a constant increment, the atomic would be slow when all lanes hit different bins.
 */
DEVICE void count_first_digit(struct topk_smem *smem, uint32_t key)
{
	const uint32_t range = key < FIRST_KEY ? 0 : min((key - FIRST_KEY) >> FIRST_SHIFT, BINS - 1);
	atomicAdd(&smem->bins[range], (uint32_t)(key - 1 < KEY_ALWAYS - 1));
}

/* Stores the keys of ids u to u + 3, and counts them in the first histogram. */
DEVICE void put_keys(struct topk_smem *smem, uint32_t *key, uint32_t u, uint4 k)
{
	*(uint4 *)&key[u] = k;
	count_first_digit(smem, k.x);
	count_first_digit(smem, k.y);
	count_first_digit(smem, k.z);
	count_first_digit(smem, k.w);
}

/* Returns the exclusive prefix sum of `mine` over the team; *ret_total is the sum. A word may hold two counts. */
template <class T> __device__ static uint64_t team_scan(struct topk_smem *smem, uint64_t mine, uint64_t *ret_total)
{
	const uint32_t lane = T::me() % 32, warp = T::me() / 32;
	uint64_t sum = mine, before = 0, total = 0;
#pragma unroll
	for (int x = 1; x < 32; x *= 2) {
		const uint64_t other = __shfl_up_sync(~0u, sum, x);
		sum += lane >= x ? other : 0;
	}
	T::sync(); /* all threads have read the sums of the last call */
	if (lane == 31)
		smem->warp_sum[warp] = sum;
	T::sync();
#pragma unroll
	for (int w = 0; w < T::threads / 32; w++) {
		before += w < warp ? smem->warp_sum[w] : 0;
		total += smem->warp_sum[w];
	}
	*ret_total = total;
	return before + sum - mine;
}

/*
 * Finds the bin with the `want`th largest key, and how many keys of that bin are wanted. If there are fewer keys,
 * nothing changes: smem->bin stays BINS.
 */
template <class T> __device__ static void find_bin(struct topk_smem *smem)
{
	constexpr uint32_t per = BINS / T::threads;
	const uint32_t want = smem->want, top = BINS - 1 - T::me() * per;
	uint64_t mine = 0, total;
#pragma unroll
	for (uint32_t b = 0; b < per; b++)
		mine += smem->bins[top - b];
	uint64_t above = team_scan<T>(smem, mine, &total);
#pragma unroll
	for (uint32_t b = 0; b < per; b++) {
		const uint32_t here = smem->bins[top - b];
		if (above < want && above + here >= want) {
			smem->bin = top - b;
			smem->want = want - (uint32_t)above;
			smem->here = here;
		}
		above += here;
	}
	T::sync();
}

DEVICE void count_key(struct topk_smem *smem, uint32_t key, uint32_t from, uint32_t size, uint32_t shift)
{
	if (key - from < size)
		atomicAdd(&smem->bins[(key - from) >> shift], 1);
}

/* Makes a histogram of the keys in [from, from + size), with bins of 1 << shift keys. */
template <class T>
__device__ static void count_digit(struct topk_smem *smem, const uint4 *key, uint32_t quads, uint32_t from,
                                   uint32_t size, uint32_t shift)
{
	constexpr int deep = 4; /* number of loads in flight */
	clear_bins<T>(smem);
	for (uint32_t first = T::me(); first < quads; first += deep * T::threads) {
		uint4 k[deep];
#pragma unroll
		for (int d = 0; d < deep; d++) {
			const uint32_t q = first + d * T::threads;
			k[d] = q < quads ? key[q] : make_uint4(0, 0, 0, 0);
		}
#pragma unroll
		for (int d = 0; d < deep; d++) {
			count_key(smem, k[d].x, from, size, shift);
			count_key(smem, k[d].y, from, size, shift);
			count_key(smem, k[d].z, from, size, shift);
			count_key(smem, k[d].w, from, size, shift);
		}
	}
	T::sync();
}

/*
 * Finds the k-th largest key, k = `want`. Ids with keys above *ret_last are selected, and *ret_equal of the ids with
 * keys equal to it. If all keys equal to the k-th key are wanted, *ret_last is a smaller key and *ret_equal is 0.
 */
template <class T>
__device__ static void find_kth(const uint4 *key, uint32_t quads, uint32_t want, struct topk_smem *smem,
                                uint32_t *ret_last, uint32_t *ret_equal)
{
	if (T::me() == 0)
		smem->want = want;
	T::sync();
	find_bin<T>(smem);
	*ret_last = *ret_equal = 0;
	if (smem->bin == BINS) /* fewer keys than wanted: all are selected */
		return;
	const uint32_t bin = smem->bin;
	uint32_t from = bin ? FIRST_KEY + (bin << FIRST_SHIFT) : 1;
	uint32_t end = bin < BINS - 1 ? FIRST_KEY + ((bin + 1) << FIRST_SHIFT) : KEY_ALWAYS;
	while (end - from > 1 && smem->want < smem->here) {
		const uint32_t shift = max(BITS, 32 - __clz(end - from - 1)) - BITS;
		T::sync(); /* all threads have read the result of the last histogram */
		count_digit<T>(smem, key, quads, from, end - from, shift);
		find_bin<T>(smem);
		from += smem->bin << shift;
		end = min(end - from, 1u << shift) + from;
	}
	const bool all = smem->want == smem->here;
	*ret_last = all ? from - 1 : from;
	*ret_equal = all ? 0 : smem->want;
}

/* Counts the keys of a quad that are larger than the k-th key, and those that equal it. */
DEVICE void compare(uint4 k, uint32_t last, uint32_t *better, uint32_t *same)
{
	*better += (k.x > last) + (k.y > last) + (k.z > last) + (k.w > last);
	*same += (k.x == last) + (k.y == last) + (k.z == last) + (k.w == last);
}

/*
 * Returns the number of bits of four words that are set for lower lanes; *ret_all is the number of bits for all lanes.
 */
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

/*
 * Writes the selected ids of a warp's quads of keys to ids[], beginning at ids[*at]. This lane's quad has the keys of
 * ids u to u + 3. *rank is the number of keys so far that equal the k-th key.
 */
DEVICE void collect_quads(uint4 quad, uint32_t u, uint32_t last, uint32_t equal, uint32_t *rank, uint32_t *ids,
                          uint32_t *at)
{
	const uint32_t k[KEY_QUAD] = {quad.x, quad.y, quad.z, quad.w};
	uint32_t mask[KEY_QUAD], all, rest = 0;
	bool take[KEY_QUAD];

	if (equal) { /* of the ids with the k-th key, the lowest ones are selected */
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

/*
 * Collects the ids with keys above the k-th key, and the first `equal` ids with keys equal to it, in ascending order. A
 * warp takes consecutive quads. Returns the number of ids.
 */
template <class T>
__device__ static uint32_t collect(const uint4 *key, uint32_t quads, struct topk_smem *smem, uint32_t last,
                                   uint32_t equal, uint32_t *ids)
{
	/* per: number of quads of a warp. */
	const uint32_t lane = T::me() % 32, per = (quads + T::threads - 1) / T::threads * 32;
	const uint32_t from = min(quads, T::me() / 32 * per), to = min(quads, from + per);
	uint32_t better = 0, same = 0;
	uint64_t total;

#pragma unroll 4
	for (uint32_t q = from + lane; q < to; q += 32)
		compare(key[q], last, &better, &same);
	const uint64_t mine = team_scan<T>(smem, (uint64_t)better << 32 | same, &total);
	const uint64_t before = __shfl_sync(~0u, mine, 0); /* counts of the earlier warps */
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

/*
 * Selects ids by the keys that the team has stored since clear_bins(). Writes the selection to ids[] and returns the
 * number of ids.
 */
template <class T>
__device__ static uint32_t select_topk(const uint32_t *keys, const struct skv_topk_counts *x, struct topk_smem *smem,
                                       uint32_t *ids)
{
	const uint4 *key = (const uint4 *)keys;
	const uint32_t quads = (x->n + KEY_QUAD - 1) / KEY_QUAD;
	uint32_t last = KEY_ALWAYS - 1, equal = 0;

	T::sync(); /* all keys are stored */
	if (x->want)
		find_kth<T>(key, quads, x->want, smem, &last, &equal);
	return collect<T>(key, quads, smem, last, equal, ids);
}

#endif
