/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/cluster-select.cuh - selection of the best tokens of a list by 16-bit keys, by the blocks of a
 * cluster. Each block has made the keys of its own share of the list. The functions here find the k-th largest key of
 * all blocks, and write the ids that each block selects. sketch-topk.cu and topk-scores.cu use them.
 *
 * A key is the log2 of a weight in units of 2^-10, as two digits (bytes). Weights that differ by less have equal keys,
 * and of equal keys the one with the lower id comes first. The blocks synchronize twice, and each time they then read
 * each other's shared memory:
 *
 *   1. histograms of the keys' upper digits: each block finds the upper digit of the k-th key;
 *   2. histograms of the lower digits of keys with that upper digit: each block finds the k-th key, and how many ids
 *      come before its own.
 *
 * The result does not depend on the number of blocks. Clusters need Hopper or later.
 */
#ifndef SKV_CUDA_SELECT_CLUSTER_SELECT_CUH
#define SKV_CUDA_SELECT_CLUSTER_SELECT_CUH

#include <cooperative_groups.h>
#include "kernels/cuda/runtime/convert.cuh"
#include "kernels/cuda/runtime/cuda.h"

namespace cg = cooperative_groups;

#define WARPS 24u /* warps of a block: as many as the registers allow */
#define THREADS (32 * WARPS)
#define MAX_CLUSTER 16u

#define BINS 256u            /* number of values of a digit */
#define LANE_KEYS 8u         /* number of keys that a lane compares at a time */
#define KEY_ANYWAY 65535u    /* key of recent and pinned ids, which is in no bin */
#define KEY_LAST 65534u      /* largest key of a weight; the smallest is 1, also without a weight; 0: never selected */
#define KEY_RANGE 64.0f      /* the range of keys, in log2 of weights */
#define KEY_UNIFORM 31.0f    /* the place in this range of a weight that all tokens have, if weights are equal */

#define EQUAL 0x8000u /* flag of a candidate whose key equals the k-th key */
#define SHARE_TOKENS (WARPS * (EQUAL - LANE_KEYS)) /* max tokens of a block: fewer than EQUAL per warp */

/* A block's share of the keys of a list. */
struct key_share {
	uint32_t rank, blocks; /* rank of the block in its cluster; number of blocks */
	uint32_t token, n;     /* first token of the share; number of its tokens, in whole pages */
	/* [n] keys, at a multiple of 16 bytes; write_ids() overwrites them. */
	uint16_t *key;
};

/*
 * A digit of the k-th key, found in a histogram. `left`: number of wanted keys with this digit. `above` and `same`:
 * numbers of keys of earlier blocks whose digit is larger, and equal.
 */
struct found {
	bool enough; /* false: there are fewer keys than wanted */
	uint32_t digit, left, above, same;
};

/*
 * A histogram: the number of keys for each value of a digit. For upper digits, element BINS is the number of keys
 * KEY_ANYWAY.
 */
struct bins {
	uint32_t n[BINS + 4];
};

struct select_smem {
	/* Histograms of upper and of lower digits: of this block, of the whole cluster, and of earlier blocks. */
	alignas(16) struct bins own[2], all[2], before[2];
	uint32_t warp_sum[WARPS];
	struct found found[2];
};

/* ---- how a list is divided ------------------------------------------------------------------------ */

/*
 * Returns the number of clusters of `blocks` blocks that the device can run at a time; 0 for sizes that the device
 * refuses. Devices need not support sizes above 8.
 */
template <class Params> static uint32_t clusters_of(void (*kernel)(Params), uint32_t blocks, uint32_t smem)
{
	cudaLaunchAttribute attr = {};
	cudaLaunchConfig_t config = {};
	int n = 0;

	attr.id = cudaLaunchAttributeClusterDimension;
	attr.val.clusterDim = {blocks, 1, 1};
	config.gridDim = blocks;
	config.blockDim = THREADS;
	config.dynamicSmemBytes = smem;
	config.attrs = &attr;
	config.numAttrs = 1;
	if (cudaOccupancyMaxActiveClusters(&n, kernel, &config) != cudaSuccess) {
		cudaGetLastError();
		return 0;
	}
	return (uint32_t)n;
}

/* Permits a kernel clusters of all sizes, and `smem` bytes of shared memory. */
template <class Params> static cudaError_t allow_clusters(void (*kernel)(Params), uint32_t smem)
{
	const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);

	if (cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) != cudaSuccess)
		cudaGetLastError(); /* clusters of such sizes then do not fit */
	return e;
}

/*
 * Chooses the number of blocks for each of `lists` lists of `units` units, so that the last block is done soonest. A
 * block takes the time of its units plus that of `fixed` more. fit: for each cluster size, how many clusters the device
 * has room for. most: number of units that a block has room for. Returns 0 if there is no room for so many units.
 */
static inline uint32_t blocks_of_list(const uint32_t fit[MAX_CLUSTER + 1], uint32_t lists, uint32_t units, uint32_t most, uint32_t fixed)
{
	uint64_t least = UINT64_MAX;
	uint32_t best = 0;

	for (uint32_t blocks = 1; blocks <= MAX_CLUSTER; blocks++) {
		const uint32_t own = ceil_div(units, blocks);
		const uint64_t time = fit[blocks] ? ceil_div(lists, fit[blocks]) * (uint64_t)(own + fixed) : UINT64_MAX;
		if (time < least && own <= most) {
			least = time;
			best = blocks;
		}
	}
	return best;
}

#if __CUDA_ARCH__ >= 900
/* ---- keys ---------------------------------------------------------------------------------------- */

/*
 * Returns the offset that is added to a weight's log2 to give its place in the range of keys; both are divided by
 * KEY_RANGE. `lse` is log2 of the denominator by which the weight is still to be divided.
 */
DEVICE float key_offset(uint32_t len, float lse)
{
	return (KEY_UNIFORM + log2f((float)len) - lse) * (1 / KEY_RANGE);
}

/*
 * Returns the key, which is not 0, of a weight as placed by key_offset(). w must not be NaN. The key is the last bits
 * of a float.
 */
DEVICE uint32_t key_of(float w)
{
	return __float_as_uint(__saturatef(w) * (float)(KEY_LAST - 1) + (8388608.0f + 1)) & 0xffff;
}

/* Sets all counts to 0, before keys are counted. The caller then synchronizes the block. */
DEVICE void clear_counts(struct select_smem *smem)
{
	for (uint32_t b = threadIdx.x; b < sizeof(struct bins) / 4 * 6; b += THREADS)
		smem->own[0].n[b] = 0;
}

/* Counts a key's upper digit, unless the key is 0 and so never selected. */
DEVICE void count_upper(struct select_smem *smem, uint32_t key)
{
	if (key)
		atomicAdd(&smem->own[0].n[key == KEY_ANYWAY ? BINS : key / BINS], 1);
}

/* ---- the k-th key -------------------------------------------------------------------------------- */

/* Returns the inclusive prefix sum over a warp. */
DEVICE uint32_t warp_scan(uint32_t mine)
{
#pragma unroll
	for (int x = 1; x < 32; x *= 2) {
		const uint32_t other = __shfl_up_sync(~0u, mine, x);
		mine += threadIdx.x % 32 >= x ? other : 0;
	}
	return mine;
}

DEVICE void meet(void)
{
	cg::this_cluster().sync();
}

/*
 * Adds up the histograms of one digit: of all blocks, and of the blocks before this one. Each thread adds up four bins
 * of some of the blocks.
 */
__device__ static void sum_bins(const struct key_share *it, struct select_smem *smem, uint32_t digit)
{
	constexpr uint32_t quads = BINS / 4 + 1, sharers = THREADS / quads, most = (MAX_CLUSTER + sharers - 1) / sharers;
	const uint32_t at = threadIdx.x % quads, first = threadIdx.x / quads;
	uint4 x[most];

#pragma unroll
	for (uint32_t k = 0; k < most; k++) {
		const uint32_t rank = first + k * sharers;
		x[k] = make_uint4(0, 0, 0, 0);
		if (first < sharers && rank < it->blocks)
			x[k] = ((const uint4 *)cg::this_cluster().map_shared_rank(&smem->own[digit], rank))[at];
	}
#pragma unroll
	for (uint32_t k = 0; k < most; k++) {
		const uint32_t n[4] = {x[k].x, x[k].y, x[k].z, x[k].w};
#pragma unroll
		for (int i = 0; i < 4; i++) {
			if (!n[i])
				continue;
			atomicAdd(&smem->all[digit].n[4 * at + i], n[i]);
			if (first + k * sharers < it->rank)
				atomicAdd(&smem->before[digit].n[4 * at + i], n[i]);
		}
	}
	__syncthreads();
}

/*
 * Finds the bin with the want-th largest key. Called by one warp: a lane has eight bins, the first lane the last eight.
 */
__device__ static void find_digit(struct select_smem *smem, uint32_t digit, uint32_t want)
{
	constexpr uint32_t each = BINS / 32;
	const uint32_t lane = threadIdx.x, first = BINS - each - lane * each;
	struct found *to = &smem->found[digit];
	uint32_t all[each], before[each], mine = 0, above = 0;

#pragma unroll
	for (uint32_t b = 0; b < each; b += 4) {
		*(uint4 *)&all[b] = *(const uint4 *)&smem->all[digit].n[first + b];
		*(uint4 *)&before[b] = *(const uint4 *)&smem->before[digit].n[first + b];
	}
#pragma unroll
	for (uint32_t b = 0; b < each; b++)
		mine += all[b];
	uint32_t sum = warp_scan(mine);
	const bool enough = want > 0 && __shfl_sync(~0u, sum, 31) >= want;
	uint32_t found = want > 0 ? 0 : BINS, left = 0;
	sum -= mine;
	bool here = false;
#pragma unroll
	for (int b = (int)each - 1; b >= 0; b--) {
		if (enough && sum < want && sum + all[b] >= want) {
			here = true;
			found = first + (uint32_t)b;
			left = want - sum;
		}
		sum += all[b];
	}
	const uint32_t owner = __ballot_sync(~0u, here);
	if (owner) {
		found = __shfl_sync(~0u, found, __ffs(owner) - 1);
		left = __shfl_sync(~0u, left, __ffs(owner) - 1);
	}
	uint32_t same = 0;
#pragma unroll
	for (uint32_t b = 0; b < each; b++) {
		above += first + b > found ? before[b] : 0;
		same += first + b == found ? before[b] : 0;
	}
	above = __reduce_add_sync(~0u, above);
	same = __reduce_add_sync(~0u, same);
	if (lane == 0)
		*to = {enough, found, left, above, same};
}

/* Sets bit 7 of each byte that is 0, and clears all other bits. */
DEVICE uint32_t zero_bytes(uint32_t x)
{
	return ~(((x & 0x7f7f7f7f) + 0x7f7f7f7f) | x | 0x7f7f7f7f);
}

/* Makes the block's histogram of the lower digits of keys whose upper digit is `upper`. */
__device__ static void count_lower(const struct key_share *it, struct select_smem *smem, uint32_t upper)
{
	for (uint32_t at = threadIdx.x * LANE_KEYS; at < it->n; at += THREADS * LANE_KEYS) {
		const uint4 x = *(const uint4 *)&it->key[at];
		const uint32_t first = zero_bytes(__byte_perm(x.x, x.y, 0x7531) ^ upper * 0x01010101u);
		const uint32_t last = zero_bytes(__byte_perm(x.z, x.w, 0x7531) ^ upper * 0x01010101u);
		/* Key i's bit is bit 8 (i % 4) + i / 4. */
		for (uint32_t any = first >> 7 | last >> 6; any; any &= any - 1) {
			const uint32_t bit = __ffs(any) - 1, key = it->key[at + bit / 8 + bit % 2 * 4];
			if (key != 0 && key != KEY_ANYWAY)
				atomicAdd(&smem->own[1].n[key % BINS], 1);
		}
	}
}

/*
 * The k-th key; the number of keys equal to it that are wanted; the numbers of keys of earlier blocks that are above
 * it, and equal to it. If there are fewer keys than wanted, all keys above 0 are selected; if none is wanted, only keys
 * KEY_ANYWAY.
 */
struct kth {
	uint32_t key, left, above, same;
};

/*
 * Finds the k-th key of all blocks, k = `want`. Called once all keys of the block are stored and their upper digits are
 * counted.
 */
__device__ static struct kth find_key(const struct key_share *it, struct select_smem *smem, uint32_t want)
{
	meet();
	sum_bins(it, smem, 0);
	if (threadIdx.x < 32)
		find_digit(smem, 0, want);
	__syncthreads();
	const struct found upper = smem->found[0];
	const uint32_t anyway = smem->before[0].n[BINS];
	if (upper.enough)
		count_lower(it, smem, upper.digit);
	meet();
	if (!upper.enough)
		return {want ? 0 : KEY_LAST, 0, anyway + upper.above + upper.same, 0};
	sum_bins(it, smem, 1);
	if (threadIdx.x < 32)
		find_digit(smem, 1, upper.left);
	__syncthreads();
	const struct found lower = smem->found[1];
	return {upper.digit * BINS + lower.digit, lower.left, anyway + upper.above + lower.above, lower.same};
}

/* ---- ids ----------------------------------------------------------------------------------------- */

/*
 * Returns a bit mask of those of a lane's 8 keys that are at least `least`; bit i is key i. `below` has least - 1 in
 * both halves.
 */
DEVICE uint32_t keys_from(uint4 x, uint32_t below)
{
	const uint32_t two[LANE_KEYS / 2] = {x.x, x.y, x.z, x.w};
	uint32_t r = 0;

#pragma unroll
	for (int i = LANE_KEYS / 2 - 1; i >= 0; i--)
		/* Even keys have bits from bit 0 up, odd keys have bits from bit 16 up. */
		r = 2 * r + __vminu2(__vmaxu2(two[i], below) ^ below, 0x00010001);
	r = (r | r << 2) & 0x00330033;
	r = (r | r << 1) & 0x00550055;
	return (r | r >> 15) & 0xff;
}
DEVICE uint32_t key_in(uint4 x, uint32_t i)
{
	const uint32_t two = i & 4 ? i & 2 ? x.w : x.z : i & 2 ? x.y : x.x;
	return i & 1 ? two >> 16 : two & 0xffff;
}

/* Numbers of a warp's candidates: of keys above the k-th key, and of keys equal to it. */
struct candidates {
	uint32_t above, same;
};

/*
 * Replaces a warp's part of the block's keys, the n keys at `key`, by the list of its candidates, as ascending offsets
 * in this part. The list never overtakes the keys that have been read. n is less than EQUAL.
 */
__device__ static struct candidates list_candidates(uint16_t *key, uint32_t n, const struct kth *k)
{
	const uint32_t lane = threadIdx.x % 32, least = k->left ? k->key : k->key + 1, below = (least - 1) * 0x00010001u;
	uint32_t listed = 0, same = 0;

	for (uint32_t row = 0; row < n; row += 32 * LANE_KEYS) {
		const uint32_t at = row + lane * LANE_KEYS;
		const uint4 x = at < n ? *(const uint4 *)&key[at] : make_uint4(0, 0, 0, 0);
		uint32_t any = keys_from(x, below);
		const uint32_t upto = warp_scan(__popc(any));
		uint32_t to = listed + upto - __popc(any);
		__syncwarp(); /* all lanes have read the row's keys */
		for (; any; any &= any - 1) {
			const uint32_t i = __ffs(any) - 1;
			const bool equal = key_in(x, i) == k->key;
			key[to++] = (uint16_t)(at + i | (equal ? EQUAL : 0));
			same += equal;
		}
		listed += __shfl_sync(~0u, upto, 31);
	}
	same = __reduce_add_sync(~0u, same);
	__syncwarp();
	return {listed - same, same};
}

/*
 * Returns the sums, over earlier warps, of the numbers of candidates above the k-th key (x) and equal to it (y);
 * *ret_total is the sums over all warps. A word in shared memory holds both numbers of a warp, each less than 65,536.
 */
DEVICE uint2 block_scan(struct select_smem *smem, uint2 mine, uint2 *ret_total)
{
	uint2 before = make_uint2(0, 0), total = make_uint2(0, 0);

	if (threadIdx.x % 32 == 0)
		smem->warp_sum[threadIdx.x / 32] = mine.x | mine.y << 16;
	__syncthreads();
#pragma unroll
	for (uint32_t w = 0; w < WARPS; w++) {
		const uint32_t x = smem->warp_sum[w];
		before.x += w < threadIdx.x / 32 ? x & 0xffff : 0;
		before.y += w < threadIdx.x / 32 ? x >> 16 : 0;
		total.x += x & 0xffff;
		total.y += x >> 16;
	}
	*ret_total = total;
	return before;
}

/* The part of the list that a block's ids take: index of the first one, and their number. */
struct id_range {
	uint32_t first, n;
};

/*
 * Writes the ids that the block selects, ascending, to their place in the list `ids`. Each warp writes those of a run
 * of keys. The last block writes the number of all ids.
 */
__device__ static struct id_range write_ids(const struct key_share *it, struct select_smem *smem, const struct kth *k, uint32_t *ids,
                                            uint32_t *count)
{
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const uint32_t each = (it->n + WARPS * LANE_KEYS - 1) / (WARPS * LANE_KEYS) * LANE_KEYS;
	const uint32_t from = min(it->n, warp * each), n = min(it->n - from, each);
	const struct candidates mine = list_candidates(it->key + from, n, k);
	uint2 total;
	const uint2 before = block_scan(smem, make_uint2(mine.above, mine.same), &total);
	const uint32_t earlier_same = min(k->same, k->left), all_same = min(k->same + total.y, k->left);
	uint32_t above = k->above + before.x, same = k->same + before.y;

	if (it->rank + 1 == it->blocks && threadIdx.x == 0)
		*count = k->above + total.x + all_same;
	for (uint32_t first = 0; first < mine.above + mine.same; first += 32) {
		const uint32_t left = mine.above + mine.same - first, candidate = lane < left ? it->key[from + first + lane] : EQUAL;
		const uint32_t equals = __ballot_sync(~0u, candidate & EQUAL), earlier = (1u << lane) - 1;
		const uint32_t own_same = same + __popc(equals & earlier), own_above = above + __popc(~equals & earlier);
		if (lane < left && (!(candidate & EQUAL) || own_same < k->left))
			ids[own_above + min(own_same, k->left)] = it->token + from + (candidate & (EQUAL - 1));
		same += __popc(equals);
		above += __popc(~equals);
	}
	return {k->above + earlier_same, total.x + all_same - earlier_same};
}
#endif

#endif
