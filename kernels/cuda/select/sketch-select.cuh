/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/sketch-select.cuh - the best tokens by keys in the shared memory of a cluster's blocks, for sketch-topk.cu:
 * parameters, a block's shared memory, the k-th key of all blocks, and the ids of a block.
 */
#ifndef SKV_CUDA_SELECT_SKETCH_SELECT_CUH
#define SKV_CUDA_SELECT_SKETCH_SELECT_CUH

#include <cooperative_groups.h>
#include "kernels/cuda/select/sketch-sample.cuh"

namespace cg = cooperative_groups;

#define THREADS SAMPLE_THREADS
#define WARPS (THREADS / 32)
#define MAX_CLUSTER 16u

#define BINS 256u            /* of a digit */
#define KEY_ANYWAY 65535u    /* recent and pinned ones; in no bin */
#define KEY_LAST 65534u      /* of a weight; 1 is the first one, and what has no sketch; 0 is never selected */
#define KEY_RANGE 64.0f      /* log2 of weights, ... */
#define KEY_UNIFORM 31.0f    /* ... of which that of equal weights for all tokens is here */

struct topk_params {
	struct sketch_params s;
	struct skv_select select;
	struct skv_index_list list;
	bool sum; /* a token's weight is the sum over its group, else the largest */
};

/*
 * How keys are made: of nearly all models with a softmax of plain scores, and of the largest weight; or the other ways, with a
 * softcap or the sum of weights, which are not to cost those anything.
 */
enum way { PLAIN_WAY, OTHER_WAYS };

/* A block's part of a list. */
struct item {
	const struct skv_kseq *s;
	uint32_t i, h, rank, blocks;
	uint32_t first, end; /* units */
};

/* A digit of the k-th key: how many keys with it are wanted, and how many of earlier blocks are above it, and have it. */
struct found {
	bool enough; /* else fewer are there than wanted */
	uint32_t digit, left, above, same;
};

/* Counts of keys by a digit; the last element has those with KEY_ANYWAY, among upper digits. */
struct bins {
	uint32_t n[BINS + 4];
};

struct topk_smem {
	struct sketch_query query;
	struct sample_smem sample;
	float offset[HEAD_TILE]; /* key_scale() of a head's weights, where a softcap keeps it from being in `query` */
	alignas(16) struct bins own[2], all[2], before[2]; /* of upper and lower digits: this block's, the cluster's, of earlier blocks */
	uint32_t warp_sum[WARPS];
	struct found found[2];
	struct sketch_at pages[WARPS][2 * UNIT_PAGES];
	alignas(16) uint16_t key[];
};

#if __CUDA_ARCH__ >= 900
/* ---- the k-th key -------------------------------------------------------------------------------- */

/* Inclusive sum over a warp. */
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

/* All blocks' counts of a digit, and those of the blocks before this one: each thread adds up four bins of some blocks. */
__device__ static void sum_bins(const struct item *it, struct topk_smem *smem, uint32_t digit)
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

/* The bin in which the want-th key from the top lies. A warp's work: a lane has eight bins, the first one the last eight. */
__device__ static void find_digit(struct topk_smem *smem, uint32_t digit, uint32_t want)
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

/* The lower digits of keys with this upper one. */
__device__ static void count_lower(const struct item *it, struct topk_smem *smem, uint32_t upper)
{
	const uint32_t pairs = (it->end - it->first) * SKETCH_UNIT / 2;

	for (uint32_t p = threadIdx.x; p < pairs; p += THREADS) {
		const uint32_t two = ((const uint32_t *)smem->key)[p], a = two & 0xffff, b = two >> 16;
		if (a / BINS == upper && a != 0 && a != KEY_ANYWAY)
			atomicAdd(&smem->own[1].n[a % BINS], 1);
		if (b / BINS == upper && b != 0 && b != KEY_ANYWAY)
			atomicAdd(&smem->own[1].n[b % BINS], 1);
	}
}

/*
 * The k-th key; how many with it are wanted; how many keys of earlier blocks are above it, and are equal to it. All keys above
 * 0 where there are fewer, those that are selected anyway where none is wanted.
 */
struct kth {
	uint32_t key, left, above, same;
};

__device__ static struct kth find_key(const struct item *it, struct topk_smem *smem, uint32_t want)
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

#define ROW_KEYS 256u /* that a warp compares at a time, 8 a lane */

/* Which of a lane's 8 keys are above the k-th, and which equal it. */
struct chosen {
	uint32_t above, same;
};
DEVICE struct chosen compare(const struct topk_smem *smem, uint32_t first, uint32_t n, const struct kth *k)
{
	const uint32_t at = first + threadIdx.x % 32 * 8;
	const uint4 x = at < n ? *(const uint4 *)&smem->key[at] : make_uint4(0, 0, 0, 0);
	const uint32_t two[4] = {x.x, x.y, x.z, x.w};
	struct chosen r = {0, 0};

#pragma unroll
	for (int i = 0; i < 4; i++) {
		const uint32_t a = two[i] & 0xffff, b = two[i] >> 16;
		r.above |= (a > k->key) << 2 * i | (b > k->key) << (2 * i + 1);
		r.same |= (a == k->key) << 2 * i | (b == k->key) << (2 * i + 1);
	}
	r.same = k->left ? r.same : 0;
	return r;
}

/* Of keys above and equal ones, in a word: a warp has less than 65,536 of each. Sum over earlier warps, and over all. */
DEVICE uint2 block_scan(struct topk_smem *smem, uint2 mine, uint2 *ret_total)
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

/* The block's ids, ascending, from where the list has its; each warp those of a run of rows. The last block knows their number. */
__device__ static void write_ids(const struct topk_params *c, const struct item *it, struct topk_smem *smem, const struct kth *k)
{
	const uint32_t n = (it->end - it->first) * SKETCH_UNIT, rows = (n + ROW_KEYS - 1) / ROW_KEYS;
	const uint32_t each = (rows + WARPS - 1) / WARPS, warp = threadIdx.x / 32;
	const uint32_t from = min(rows, warp * each), to = min(rows, from + each);
	const size_t list = (size_t)it->i * c->s.n_kv_heads + it->h;
	uint32_t *ids = c->list.ids + list * c->list.stride, above = 0, same = 0;
	uint2 total;

	for (uint32_t r = from; r < to; r++) {
		const struct chosen x = compare(smem, r * ROW_KEYS, n, k);
		above += __popc(x.above);
		same += __popc(x.same);
	}
	const uint2 mine = make_uint2(__reduce_add_sync(~0u, above), __reduce_add_sync(~0u, same));
	const uint2 before = block_scan(smem, mine, &total);
	if (it->rank + 1 == it->blocks && threadIdx.x == 0)
		c->list.count[list] = k->above + total.x + min(k->same + total.y, k->left);
	above = k->above + before.x;
	same = k->same + before.y;
	for (uint32_t r = from; r < to; r++) {
		const struct chosen x = compare(smem, r * ROW_KEYS, n, k);
		const uint32_t both = __popc(x.above) | __popc(x.same) << 16, sum = warp_scan(both), last = __shfl_sync(~0u, sum, 31);
		const uint32_t a = above + (sum - both & 0xffff), first = same + (sum - both >> 16);
		uint32_t at = a + min(first, k->left), equal = first;
		for (uint32_t any = x.above | x.same; any; any &= any - 1) {
			const uint32_t bit = any & -any;
			if (x.same & bit && equal++ >= k->left)
				continue;
			ids[at++] = it->first * SKETCH_UNIT + r * ROW_KEYS + threadIdx.x % 32 * 8 + (__ffs(bit) - 1);
		}
		above += last & 0xffff;
		same += last >> 16;
	}
}
#endif

#endif
