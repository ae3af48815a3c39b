/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/sketch-topk.cu - the best tokens of each kv head by the sketches of all: scan and selection at once.
 *
 * A token's key is its weight in log2, in 1 / 2^10ths: 16 bits, two digits. Weights that differ by less are equal, and of equals
 * the lower id comes first. The heads' denominators come from a sample, which each block reads for itself, so a token's key is
 * known as soon as its scores are, and is all that is kept of them: in the shared memory of the block that made it.
 *
 * The blocks that scan a list, a kv head of a sequence, are a cluster. They meet twice, and read each other's shared memory
 * after that:
 *
 *   1. histograms of the keys' upper digits: each block finds the digit of the k-th key;
 *   2. histograms of the lower digits, of keys with that upper one: each finds the k-th key, and how many ids come before its own.
 *
 * Nothing depends on how many blocks there are. Clusters, and with them this file's kernel, are Hopper's and later.
 */
#include <cooperative_groups.h>
#include "kernels/cuda/select/sketch-sample.cuh"
#include "kernels/cuda/select/sketch.h"

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
	bool sum;       /* a token's weight is the sum over its group, else the largest */
	uint32_t units; /* that a block has room for */
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
/* ---- keys ---------------------------------------------------------------------------------------- */

/* What is added to a head's score, both over KEY_RANGE, to have its weight's place in the keys. */
DEVICE float key_offset(uint32_t len, float lse)
{
	return (KEY_UNIFORM + log2f((float)len) - lse) / KEY_RANGE;
}

/* From denominators to what makes keys of scores; a thread a head. Of heads that are not there nothing counts. */
DEVICE void scale_query(const struct topk_params *c, uint32_t len, struct topk_smem *smem)
{
	struct sketch_query::sketch_head *head = &smem->query.head[threadIdx.x];

	if (threadIdx.x >= c->s.group) {
		*head = {0, NO_SCORE, MAGIC_BITS};
		smem->offset[threadIdx.x] = NO_SCORE;
		return;
	}
	smem->offset[threadIdx.x] = key_offset(len, smem->sample.lse[threadIdx.x]);
	if (c->s.scale.cap != 0)
		return;
	head->unit /= KEY_RANGE;
	head->base = head->base / KEY_RANGE + smem->offset[threadIdx.x];
}

/* Of all lanes that have a token, in the lane that keeps it: its group's weights reduced. */
template <int split, enum way way> DEVICE float reduce_group(const struct topk_params *c, const struct topk_smem *smem, float s[4])
{
	const bool odd = threadIdx.x & 1, sum = way == OTHER_WAYS && c->sum;
	float first, second;

	if (way == OTHER_WAYS && c->s.scale.cap != 0)
#pragma unroll
		for (int k = 0; k < 4; k++)
			s[k] = s[k] / KEY_RANGE + smem->offset[threadIdx.x % (4 / split) * 2 + k % 2];
	if (sum) {
		first = exp2_fast(KEY_RANGE * s[0]) + exp2_fast(KEY_RANGE * s[1]);
		second = exp2_fast(KEY_RANGE * s[2]) + exp2_fast(KEY_RANGE * s[3]);
	} else {
		first = fmaxf(s[0], s[1]);
		second = fmaxf(s[2], s[3]);
	}
	const float other = __shfl_xor_sync(~0u, odd ? first : second, 1), own = odd ? second : first;
	float all = sum ? own + other : fmaxf(own, other);
	if (split == 1) {
		const float rest = __shfl_xor_sync(~0u, all, 2);
		all = sum ? all + rest : fmaxf(all, rest);
	}
	return sum ? log2f(all) / KEY_RANGE : all;
}

/* Makes keys of the scan's scores, and counts their upper digits. Of a step, each of the lanes has a token, or half of them. */
template <int split, enum way way> struct key_sink {
	const struct topk_params *c;
	struct topk_smem *smem;
	uint16_t *key; /* of token 0: only the block's own are there */
	uint32_t n, pin, recent;

	/* A float's last bits are the key. */
	__device__ __forceinline__ uint32_t key_of(float s[4]) const
	{
		const float w = reduce_group<split, way>(c, smem, s);
		const uint32_t k = __float_as_uint(__saturatef(w) * (float)(KEY_LAST - 1) + (8388608.0f + 1)) & 0xffff;
		return w == w ? k : 0;
	}
	__device__ __forceinline__ void add(uint32_t unit, uint32_t x, float s[4]) const
	{
		const uint32_t k = key_of(s);
		if (split == 1 && threadIdx.x % 4 >= 2)
			return;
		key[step_token<split>(unit, x) + threadIdx.x % 2] = (uint16_t)k;
		if (k)
			atomicAdd(&smem->own[0].n[k / BINS], 1);
	}
	__device__ __forceinline__ void add_any(uint32_t unit, uint32_t x, float s[4], const enum sketch_kind kind[2]) const
	{
		const uint32_t token = step_token<split>(unit, x) + threadIdx.x % 2;
		const enum sketch_kind own = threadIdx.x % 2 ? kind[1] : kind[0];
		uint32_t k = key_of(s);

		if (split == 1 && threadIdx.x % 4 >= 2)
			return;
		if (own == SKETCH_ABSENT)
			k = 0;
		else if (token < pin || token >= n - recent)
			k = KEY_ANYWAY;
		else if (own == SKETCH_NONE)
			k = 1;
		key[token] = (uint16_t)k;
		if (k)
			atomicAdd(&smem->own[0].n[k == KEY_ANYWAY ? BINS : k / BINS], 1);
	}
};

/* ---- the k-th key -------------------------------------------------------------------------------- */

DEVICE void meet(void)
{
	cg::this_cluster().sync();
}

/* All blocks' counts of a digit, and those of the blocks before this one. */
__device__ static void sum_bins(const struct item *it, struct topk_smem *smem, uint32_t digit)
{
	constexpr uint32_t quads = BINS / 4 + 1;

	for (uint32_t i = threadIdx.x; i < it->blocks * quads; i += THREADS) {
		const uint32_t rank = i / quads, at = i % quads;
		const uint4 *from = (const uint4 *)cg::this_cluster().map_shared_rank(&smem->own[digit], rank);
		const uint4 x = from[at];
		const uint32_t n[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
		for (int k = 0; k < 4; k++) {
			if (!n[k])
				continue;
			atomicAdd(&smem->all[digit].n[4 * at + k], n[k]);
			if (rank < it->rank)
				atomicAdd(&smem->before[digit].n[4 * at + k], n[k]);
		}
	}
	__syncthreads();
}

/* The bin in which the want-th key from the top lies. A warp's work. */
__device__ static void find_digit(struct topk_smem *smem, uint32_t digit, uint32_t want)
{
	constexpr uint32_t each = BINS / 32;
	const uint32_t lane = threadIdx.x, top = BINS - 1 - lane * each;
	const uint32_t *all = smem->all[digit].n, *before = smem->before[digit].n;
	struct found *to = &smem->found[digit];
	uint32_t mine = 0, sum, above = 0;

#pragma unroll
	for (uint32_t b = 0; b < each; b++)
		mine += all[top - b];
	sum = mine;
#pragma unroll
	for (int x = 1; x < 32; x *= 2) {
		const uint32_t other = __shfl_up_sync(~0u, sum, x);
		sum += lane >= x ? other : 0;
	}
	if (lane == 0)
		*to = {want > 0, want > 0 ? 0 : BINS, 0, 0, 0};
	__syncwarp();
	if (lane == 31 && sum < want)
		*to = {false, 0, 0, 0, 0};
	sum -= mine;
#pragma unroll
	for (uint32_t b = 0; b < each; b++) {
		if (sum < want && sum + all[top - b] >= want) {
			to->digit = top - b;
			to->left = want - sum;
		}
		sum += all[top - b];
	}
	__syncwarp();
	const uint32_t found = to->digit;
#pragma unroll
	for (uint32_t b = 0; b < each; b++)
		above += top - b > found ? before[top - b] : 0;
	above = __reduce_add_sync(~0u, above);
	if (lane == 0) {
		to->above = above;
		to->same = found < BINS ? before[found] : 0;
	}
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

/* ---- the kernel ---------------------------------------------------------------------------------- */

DEVICE struct item item_of(const struct topk_params *c)
{
	const uint32_t blocks = cg::this_cluster().num_blocks(), list = blockIdx.x / blocks, rank = cg::this_cluster().block_rank();
	const struct skv_kseq *s = &c->s.seq[list / c->s.n_kv_heads];
	const uint32_t units = (s->len + SKETCH_UNIT - 1) / SKETCH_UNIT;

	return {s, list / c->s.n_kv_heads, list % c->s.n_kv_heads, rank, blocks, units * rank / blocks, units * (rank + 1) / blocks};
}

template <int D, int bits, int split, enum way way>
__device__ static void scan_item(const struct topk_params *c, const struct item *it, const struct skv_topk_counts *counts,
                                 struct topk_smem *smem)
{
	const uint32_t warp = threadIdx.x / 32, group = c->s.group;
	const struct sketch_list list = sketch_list_of(&c->s, it->s, it->h);
	const struct key_sink<split, way> sink = {c, smem, smem->key - (size_t)it->first * SKETCH_UNIT, counts->n, counts->pin, counts->recent};
	sketch_scan<D, bits, split, way == OTHER_WAYS> scan;
	{
		sketch_sample<D, bits, split> sample;

		sample.begin(&c->s, &list);
		if (warp < group)
			make_sketch_query<D, bits, step_codes<D, bits, split>::factor>(&c->s, it->s, it->h, it->h * group, warp, &smem->query);
		__syncthreads();
		if (warp == 0)
			step_codes<D, bits, split>::query(&smem->query, group);
		__syncthreads();
		sample.run(&c->s, &list, &smem->query, &smem->sample);
	}
	scan.begin(&c->s, &list, smem->pages[warp], it->first + warp, it->end);
	scan.plain_from = counts->pin;
	scan.plain_to = counts->n - counts->recent;
	__syncthreads();
	sum_sample(&c->s, list.len, it->h * group, group, &smem->sample);
	__syncthreads();
	if (threadIdx.x < HEAD_TILE)
		scale_query(c, list.len, smem);
	__syncthreads();
	if (it->first + warp < it->end)
		scan.run(&smem->query, it->first + warp, WARPS, it->end, sink);
}
#endif

/* Grid: blocks of a cluster, kv heads, sequences; all in one dimension. */
template <int D, int bits, int split, enum way way>
__global__ void __launch_bounds__(THREADS, 2) topk_kernel(const __grid_constant__ struct topk_params c)
{
#if __CUDA_ARCH__ >= 900
	extern __shared__ __align__(16) uint8_t memory[];
	struct topk_smem *smem = (struct topk_smem *)memory;
	const struct item it = item_of(&c);
	const struct skv_topk_counts counts = skv_topk_counts_of(&c.select, it.s->len);

	for (uint32_t b = threadIdx.x; b < sizeof(struct bins) / 4 * 6; b += THREADS)
		smem->own[0].n[b] = 0;
	scan_item<D, bits, split, way>(&c, &it, &counts, smem);
	const struct kth k = find_key(&it, smem, counts.want);
	/* other blocks' shared memory has been read; this one's stays until they have, too */
	asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
	write_ids(&c, &it, smem, &k);
	asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

/* ---- launches ---------------------------------------------------------------------------------- */

static uint32_t units_of_len(uint32_t max_len)
{
	return ceil_div(max_len, SKETCH_UNIT);
}

/* Shared memory of a block with so many units. */
static size_t smem_bytes(uint32_t units)
{
	return sizeof(struct topk_smem) + units * SKETCH_UNIT * sizeof(uint16_t);
}

/* About the units that a block could scan in the time that it takes besides. */
#define BLOCK_UNITS 40

/*
 * Blocks of a list: so many that the last of them are done soonest. An SM has room for two, if shared memory has, and one by itself
 * is nearly twice as fast.
 */
static uint32_t cluster_of(uint32_t lists, uint32_t units)
{
	const uint32_t sms = skv_cuda_sms(), half = skv_cuda_max_shared_memory() / 2 - 1024;
	uint32_t best = MAX_CLUSTER;
	double least = INFINITY;

	for (uint32_t blocks = 1; blocks <= MAX_CLUSTER; blocks *= 2) {
		const uint32_t own = ceil_div(units, blocks), each = smem_bytes(own) > half ? 1 : 2;
		const uint32_t on = ceil_div(lists * blocks, sms), side = on < each ? on : each;
		const double time = ceil_div(on, each) * (own * side + BLOCK_UNITS);
		if (smem_bytes(own) <= skv_cuda_max_shared_memory() && time < least) {
			least = time;
			best = blocks;
		}
	}
	return best;
}

bool skv_cuda_topk_of_sketches(const struct skv_shape *sh, uint32_t max_len)
{
	int device, clusters = 0;

	if (sh->n_heads / sh->n_kv_heads > HEAD_TILE || cudaGetDevice(&device) ||
	    cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, device))
		return false;
	return clusters && smem_bytes(ceil_div(units_of_len(max_len), MAX_CLUSTER)) <= skv_cuda_max_shared_memory();
}

struct topk_launch {
	struct topk_params c;
	uint32_t blocks, lists;
	size_t smem;
	cudaStream_t stream;

	template <int D, int bits, int split, enum way way> void start(void) const
	{
		cudaLaunchAttribute cluster = {};
		cudaLaunchConfig_t config = {};

		cluster.id = cudaLaunchAttributeClusterDimension;
		cluster.val.clusterDim = {blocks, 1, 1};
		config.gridDim = blocks * lists;
		config.blockDim = THREADS;
		config.dynamicSmemBytes = smem;
		config.stream = stream;
		config.attrs = &cluster;
		config.numAttrs = 1;
		cudaLaunchKernelEx(&config, topk_kernel<D, bits, split, way>, c);
	}
	template <int D, int bits> void run(void) const
	{
		constexpr int most = D <= 128 ? 2 : 1;
		const bool other = c.sum || c.s.scale.cap != 0;
		if (c.s.group <= HEAD_TILE / 2)
			other ? start<D, bits, most, OTHER_WAYS>() : start<D, bits, most, PLAIN_WAY>();
		else
			other ? start<D, bits, 1, OTHER_WAYS>() : start<D, bits, 1, PLAIN_WAY>();
	}
};

void skv_cuda_launch_topk_of_sketches(const struct skv_shape *sh, const struct skv_batch *b, const void *q, bool sum,
                                      const struct skv_select *select, const struct skv_index_list *list,
                                      const struct skv_workspace *work)
{
	const uint32_t lists = b->n * sh->n_kv_heads, units = units_of_len(b->max_len), blocks = cluster_of(lists, units);
	struct topk_launch launch = {.blocks = blocks, .lists = lists, .stream = stream_of(work)};
	struct topk_params *c = &launch.c;

	c->s = sketch_params_of(sh, b, q);
	c->select = *select;
	c->list = *list;
	c->sum = sum;
	c->units = ceil_div(units, blocks);
	launch.smem = smem_bytes(c->units);
	if (b->n > 0)
		sketch_dispatch(sh, launch);
}

struct topk_init {
	cudaError_t *e;
	uint32_t room;

	template <int D, int bits, int split, enum way way> void allow(void) const
	{
		void (*const kernel)(struct topk_params) = topk_kernel<D, bits, split, way>;
		*e = *e ? *e : cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
		                                    (int)room);
		*e = *e ? *e : cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
	}
	template <int D, int bits> void run(void) const
	{
		allow<D, bits, 1, PLAIN_WAY>();
		allow<D, bits, 1, OTHER_WAYS>();
		allow<D, bits, D <= 128 ? 2 : 1, PLAIN_WAY>();
		allow<D, bits, D <= 128 ? 2 : 1, OTHER_WAYS>();
	}
};

cudaError_t skv_cuda_sketch_topk_init(uint32_t room)
{
	cudaError_t e = cudaSuccess;
	const struct topk_init init = {&e, room};
	int device, clusters = 0;

	e = cudaGetDevice(&device);
	e = e ? e : cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, device);
	for (uint32_t bits = 1; bits <= 4 && clusters; bits++) {
		sketch_dispatch_bits<64>(bits, init);
		sketch_dispatch_bits<96>(bits, init);
		sketch_dispatch_bits<128>(bits, init);
		sketch_dispatch_bits<256>(bits, init);
	}
	return e;
}
