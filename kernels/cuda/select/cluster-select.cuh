/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/cluster-select.cuh - selection of the best tokens by 16-bit keys. Each block of a cluster has
 * made the keys of its own share of a list. This file finds the k-th key of all blocks, and the ids of each block. It
 * is used by sketch-topk.cu and topk-scores.cu.
 *
 * A key is a weight's log2 in units of 2^-10; it has two digits. Weights that differ by less are equal, and of equal
 * ones the lower id comes first. The blocks synchronize twice, and then read each other's shared memory:
 *
 *   1. histograms of the keys' upper digits: each block finds the digit of the k-th key;
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

#define WARPS 24u /* as many as there are registers for */
#define THREADS (32 * WARPS)
#define MAX_CLUSTER 16u

#define BINS 256u            /* per digit */
#define LANE_KEYS 8u         /* keys that a lane compares at a time */
#define KEY_ANYWAY 65535u    /* recent and pinned ids; in no bin */
#define KEY_LAST 65534u      /* largest key of a weight; the smallest is 1, also without a weight; 0: never selected */
#define KEY_RANGE 64.0f      /* the range of keys, in log2 of weights ... */
#define KEY_UNIFORM 31.0f    /* ... and in it, the place of equal weights for all tokens */

#define EQUAL 0x8000u /* flag of a candidate whose key is the k-th */
#define SHARE_TOKENS (WARPS * (EQUAL - LANE_KEYS)) /* max tokens of a block: a warp has fewer than EQUAL */

/* A block's share of a list's keys. */
struct key_share {
	uint32_t rank, blocks; /* in the cluster */
	uint32_t token, n;     /* its first token, and its tokens, which are whole pages */
	uint16_t *key;         /* [n], at a multiple of 16 bytes; write_ids() overwrites them */
};

/*
 * A digit of the k-th key, how many keys with this digit are wanted, and how many keys of earlier blocks are above it
 * or have it.
 */
struct found {
	bool enough; /* else there are fewer keys than wanted */
	uint32_t digit, left, above, same;
};

/* Counts of keys by a digit. For upper digits, element BINS counts those with KEY_ANYWAY. */
struct bins {
	uint32_t n[BINS + 4];
};

struct select_smem {
	/* For upper and lower digits: the counts of this block, of the cluster, of earlier blocks. */
	alignas(16) struct bins own[2], all[2], before[2];
	uint32_t warp_sum[WARPS];
	struct found found[2];
};

/* ---- how a list is divided ------------------------------------------------------------------------ */

/*
 * Clusters of `blocks` blocks that the device can run at a time; 0 for sizes that it refuses. Devices need not support
 * sizes above 8.
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

/* Allows a kernel clusters of all sizes, and `smem` bytes of shared memory. */
template <class Params> static cudaError_t allow_clusters(void (*kernel)(Params), uint32_t smem)
{
	const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);

	if (cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) != cudaSuccess)
		cudaGetLastError(); /* such clusters do not fit then */
	return e;
}

/*
 * Blocks for each of `lists` lists of `units` units, chosen so that the last ones are done soonest. A block takes the
 * time of its units plus that of `fixed` more. fit: for each cluster size, how many clusters the device has room for.
 * most: units that a block has room for. 0: there is no room for so many units.
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
 * The offset that gives a weight's log2 its place in the keys; both are divided by KEY_RANGE. `lse`: log2 of the
 * denominator by which the weight is still to be divided.
 */
DEVICE float key_offset(uint32_t len, float lse)
{
	return (KEY_UNIFORM + log2f((float)len) - lse) * (1 / KEY_RANGE);
}

/* The key of such a weight, which must be a number: the last bits of a float. It is not 0. */
DEVICE uint32_t key_of(float w)
{
	return __float_as_uint(__saturatef(w) * (float)(KEY_LAST - 1) + (8388608.0f + 1)) & 0xffff;
}

/* Called before keys are counted. The caller synchronizes the block. */
DEVICE void clear_counts(struct select_smem *smem)
{
	for (uint32_t b = threadIdx.x; b < sizeof(struct bins) / 4 * 6; b += THREADS)
		smem->own[0].n[b] = 0;
}

/* Counts a key's upper digit, if the key may be selected. */
DEVICE void count_upper(struct select_smem *smem, uint32_t key)
{
	if (key)
		atomicAdd(&smem->own[0].n[key == KEY_ANYWAY ? BINS : key / BINS], 1);
}

/* ---- the k-th key -------------------------------------------------------------------------------- */

/* Inclusive prefix sum over a warp. */
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
 * Adds up all blocks' counts of a digit, and those of the blocks before this one. Each thread adds up four bins of some
 * blocks.
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
 * Finds the bin of the want-th key from the top. One warp does it: a lane has eight bins, the first lane the last
 * eight.
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

/* Sets bit 7 for each byte that is 0. */
DEVICE uint32_t zero_bytes(uint32_t x)
{
	return ~(((x & 0x7f7f7f7f) + 0x7f7f7f7f) | x | 0x7f7f7f7f);
}

/* Counts the lower digits of keys with this upper digit. */
__device__ static void count_lower(const struct key_share *it, struct select_smem *smem, uint32_t upper)
{
	for (uint32_t at = threadIdx.x * LANE_KEYS; at < it->n; at += THREADS * LANE_KEYS) {
		const uint4 x = *(const uint4 *)&it->key[at];
		const uint32_t first = zero_bytes(__byte_perm(x.x, x.y, 0x7531) ^ upper * 0x01010101u);
		const uint32_t last = zero_bytes(__byte_perm(x.z, x.w, 0x7531) ^ upper * 0x01010101u);
		/* Key i's bit is 8 (i % 4) + i / 4. */
		for (uint32_t any = first >> 7 | last >> 6; any; any &= any - 1) {
			const uint32_t bit = __ffs(any) - 1, key = it->key[at + bit / 8 + bit % 2 * 4];
			if (key != 0 && key != KEY_ANYWAY)
				atomicAdd(&smem->own[1].n[key % BINS], 1);
		}
	}
}

/*
 * The k-th key; how many keys equal to it are wanted; how many keys of earlier blocks are above it, and equal to it. If
 * there are fewer keys than wanted, all keys above 0 are selected; if none is wanted, those that are selected anyway.
 */
struct kth {
	uint32_t key, left, above, same;
};

/* Called once all keys of the block are stored and their upper digits are counted. */
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
 * Which of a lane's 8 keys are at least `least`, as bits in the order of the keys. `below`: least - 1 in both halves.
 */
DEVICE uint32_t keys_from(uint4 x, uint32_t below)
{
	const uint32_t two[LANE_KEYS / 2] = {x.x, x.y, x.z, x.w};
	uint32_t r = 0;

#pragma unroll
	for (int i = LANE_KEYS / 2 - 1; i >= 0; i--)
		/* Even keys from bit 0 on, odd ones from bit 16 on. */
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

/* Numbers of a warp's candidates: above the k-th key, and equal to it. */
struct candidates {
	uint32_t above, same;
};

/*
 * Replaces a warp's part of the block's keys, n from `key` on, by the list of its candidates: offsets, ascending. There
 * are never more of them than keys that have been read. n is less than EQUAL.
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
		__syncwarp(); /* all lanes have read the row */
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
 * Sums over earlier warps, and over all, of the numbers of keys above and of equal ones. A word holds both: a warp has
 * fewer than 65,536 of each.
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

/* The place of a block's ids in the list. */
struct id_range {
	uint32_t first, n;
};

/*
 * Writes the block's ids, ascending, to their place in the list `ids`. Each warp writes those of a run of keys. The
 * last block writes the number of all ids.
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
