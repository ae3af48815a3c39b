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
#include "kernels/cuda/runtime/overlap.cuh"
#include "kernels/cuda/select/sketch-select.cuh"
#include "kernels/cuda/select/sketch.h"
#include "kernels/device.h"

#if __CUDA_ARCH__ >= 900
/* ---- keys ---------------------------------------------------------------------------------------- */

/* What is added to a head's score, both over KEY_RANGE, to have its weight's place in the keys. */
DEVICE float key_offset(uint32_t len, float lse)
{
	return (KEY_UNIFORM + log2f((float)len) - lse) * (1 / KEY_RANGE);
}

/* From a head's denominator to what makes keys of its scores. Of heads that are not there nothing counts. */
DEVICE void scale_head(const struct topk_params *c, uint32_t len, uint32_t g, float lse, struct topk_smem *smem)
{
	struct sketch_query::sketch_head *head = &smem->query.head[g];

	if (g >= c->s.group) {
		*head = {0, NO_SCORE, MAGIC_BITS};
		smem->offset[g] = NO_SCORE;
		return;
	}
	smem->offset[g] = key_offset(len, lse);
	if (c->s.scale.cap != 0)
		return;
	head->unit *= 1 / KEY_RANGE;
	head->base = head->base * (1 / KEY_RANGE) + smem->offset[g];
}

/* Of all lanes that have a token, in the lane that keeps it: its group's weights reduced. */
template <int split, enum way way> DEVICE float reduce_group(const struct topk_params *c, const struct topk_smem *smem, float s[4])
{
	const bool odd = threadIdx.x & 1, sum = way == OTHER_WAYS && c->sum;
	float first, second;

	if (way == OTHER_WAYS && c->s.scale.cap != 0)
#pragma unroll
		for (int k = 0; k < 4; k++)
			s[k] = s[k] * (1 / KEY_RANGE) + smem->offset[threadIdx.x % (4 / split) * 2 + k % 2];
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
	return sum ? log2f(all) * (1 / KEY_RANGE) : all;
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
		key[step_token<split>(unit, x) + threadIdx.x % 2 * TOKENS_APART] = (uint16_t)k;
		if (k)
			atomicAdd(&smem->own[0].n[k / BINS], 1);
	}
	__device__ __forceinline__ void add_any(uint32_t unit, uint32_t x, float s[4], const enum sketch_kind kind[2]) const
	{
		const uint32_t token = step_token<split>(unit, x) + threadIdx.x % 2 * TOKENS_APART;
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

/* ---- the kernel ---------------------------------------------------------------------------------- */

DEVICE struct item item_of(const struct topk_params *c)
{
	const uint32_t blocks = cg::this_cluster().num_blocks(), list = blockIdx.x / blocks, rank = cg::this_cluster().block_rank();
	const struct skv_kseq *s = &c->s.seq[list / c->s.n_kv_heads];
	const uint32_t units = (s->len + SKETCH_UNIT - 1) / SKETCH_UNIT;

	return {s, list / c->s.n_kv_heads, list % c->s.n_kv_heads, rank, blocks, units * rank / blocks, units * (rank + 1) / blocks};
}

template <int D, int bits, int split, enum way way, int per_sm>
__device__ static void scan_item(const struct topk_params *c, const struct item *it, const struct skv_topk_counts *counts,
                                 struct topk_smem *smem)
{
	const uint32_t warp = threadIdx.x / 32, group = c->s.group;
	const struct sketch_list list = sketch_list_of(&c->s, it->s, it->h);
	const struct key_sink<split, way> sink = {c, smem, smem->key - (size_t)it->first * SKETCH_UNIT, counts->n, counts->pin, counts->recent};
	sketch_scan<D, bits, split, way == OTHER_WAYS, per_sm == 2 ? 2 : 4> scan;
	{
		sketch_sample<D, bits, split> sample;

		sample.locate(&c->s, &list);
		scan.locate(&c->s, &list, it->first + warp, WARPS);
		await_previous();
		sample.begin();
		if (warp < group)
			make_sketch_query<D, bits, step_codes<D, bits, split>::factor>(&c->s, it->s, it->h, it->h * group, warp, &smem->query);
		__syncthreads();
		if (warp == 0)
			step_codes<D, bits, split>::query(&smem->query, group);
		__syncthreads();
		sample.run(&c->s, &list, &smem->query, &smem->sample);
	}
	scan.begin(smem->pages[warp], it->first + warp, it->end);
	scan.plain_from = counts->pin;
	scan.plain_to = counts->n - counts->recent;
	__syncthreads();
	const struct sampled_head head = sum_sample(&c->s, list.len, it->h * group, group, &smem->sample);
	if (head.mine)
		scale_head(c, list.len, head.g, head.lse, smem);
	__syncthreads();
	if (it->first + warp < it->end)
		scan.run(&smem->query, it->first + warp, WARPS, it->end, sink);
}
#endif

/*
 * Grid: blocks of a cluster, kv heads, sequences; all in one dimension. Where there are so few that an SM has one block, that may
 * have twice the registers, and twice as much in flight.
 */
template <int D, int bits, int split, enum way way, int per_sm>
__global__ void __launch_bounds__(THREADS, per_sm) topk_kernel(const __grid_constant__ struct topk_params c)
{
#if __CUDA_ARCH__ >= 900
	extern __shared__ __align__(16) uint8_t memory[];
	struct topk_smem *smem = (struct topk_smem *)memory;
	const struct item it = item_of(&c);
	const struct skv_topk_counts counts = skv_topk_counts_of(&c.select, it.s->len);

	for (uint32_t b = threadIdx.x; b < sizeof(struct bins) / 4 * 6; b += THREADS)
		smem->own[0].n[b] = 0;
	scan_item<D, bits, split, way, per_sm>(&c, &it, &counts, smem);
	let_next_begin();
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

/* How a list is divided. */
struct division {
	uint32_t blocks, per_sm; /* blocks of a list; and on an SM at a time */
};

/* Clusters of so many blocks that a device has room for, with one block on an SM, or two: GPCs have different numbers of SMs. */
static uint32_t clusters_that_fit[SKV_BACKEND_MAX_DEVICES][MAX_CLUSTER + 1][2];

/*
 * So that the last blocks are done soonest. In tenths of the time that a block by itself on its SM takes for a unit: two on an SM
 * take 2.1 times as long each, and every block takes the time of 44 units besides (measured on an H100).
 */
static struct division divide(uint32_t lists, uint32_t units)
{
	const uint32_t half = skv_cuda_max_shared_memory() / 2 - 1024;
	struct division best = {MAX_CLUSTER, 1};
	uint64_t least = UINT64_MAX;
	int device = 0;

	cudaGetDevice(&device);
	for (uint32_t blocks = 1; blocks <= MAX_CLUSTER; blocks++)
		for (uint32_t per_sm = 1; per_sm <= 2; per_sm++) {
			const uint32_t own = ceil_div(units, blocks), fit = clusters_that_fit[device][blocks][per_sm - 1];
			if (smem_bytes(own) > (per_sm == 2 ? half : skv_cuda_max_shared_memory()) || fit == 0)
				continue;
			const uint64_t time = ceil_div(lists, fit) * (uint64_t)(own * (per_sm == 2 ? 21 : 10) + 440);
			if (time < least) {
				least = time;
				best = {blocks, per_sm};
			}
		}
	return best;
}

bool skv_cuda_topk_of_sketches(const struct skv_shape *sh, uint32_t max_len)
{
	return sh->n_heads / sh->n_kv_heads <= HEAD_TILE && skv_cuda_overlaps() &&
	       smem_bytes(ceil_div(units_of_len(max_len), MAX_CLUSTER)) <= skv_cuda_max_shared_memory();
}

struct topk_launch {
	struct topk_params c;
	struct division by;
	uint32_t lists;
	size_t smem;
	cudaStream_t stream;

	template <int D, int bits, int split, enum way way, int per_sm> void start(void) const
	{
		launch_overlapped(topk_kernel<D, bits, split, way, per_sm>, c, by.blocks * lists, THREADS, smem, by.blocks, stream);
	}
	template <int D, int bits, int split> void split_by(void) const
	{
		if (c.sum || c.s.scale.cap != 0)
			start<D, bits, split, OTHER_WAYS, 2>();
		else if (by.per_sm == 1)
			start<D, bits, split, PLAIN_WAY, 1>();
		else
			start<D, bits, split, PLAIN_WAY, 2>();
	}
	template <int D, int bits> void run(void) const
	{
		if (c.s.group <= HEAD_TILE / 2)
			split_by<D, bits, D <= 128 ? 2 : 1>();
		else
			split_by<D, bits, 1>();
	}
};

void skv_cuda_launch_topk_of_sketches(const struct skv_shape *sh, const struct skv_batch *b, const void *q, bool sum,
                                      const struct skv_select *select, const struct skv_index_list *list,
                                      const struct skv_workspace *work)
{
	const uint32_t lists = b->n * sh->n_kv_heads, units = units_of_len(b->max_len);
	struct topk_launch launch = {.by = divide(lists, units), .lists = lists, .stream = stream_of(work)};
	struct topk_params *c = &launch.c;

	c->s = sketch_params_of(sh, b, q);
	c->select = *select;
	c->list = *list;
	c->sum = sum;
	launch.smem = smem_bytes(ceil_div(units, launch.by.blocks));
	if (b->n > 0)
		sketch_dispatch(sh, launch);
}

struct topk_init {
	cudaError_t *e;
	uint32_t room;

	/* With shared memory for one block an SM, or two. */
	static cudaError_t count_clusters(uint32_t blocks, uint32_t per_sm, uint32_t room, uint32_t *ret)
	{
		cudaLaunchAttribute attr = {};
		cudaLaunchConfig_t config = {};
		int n = 0;

		attr.id = cudaLaunchAttributeClusterDimension;
		attr.val.clusterDim = {blocks, 1, 1};
		config.gridDim = blocks;
		config.blockDim = THREADS;
		config.dynamicSmemBytes = per_sm == 1 ? room : room / 2 - 1024;
		config.attrs = &attr;
		config.numAttrs = 1;
		const cudaError_t e = cudaOccupancyMaxActiveClusters(&n, topk_kernel<128, 2, 2, PLAIN_WAY, 2>, &config);
		*ret = n > 0 ? (uint32_t)n : 0;
		return e;
	}

	template <int D, int bits, int split, enum way way, int per_sm> void allow(void) const
	{
		void (*const kernel)(struct topk_params) = topk_kernel<D, bits, split, way, per_sm>;
		*e = *e ? *e : cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
		                                    (int)room);
		*e = *e ? *e : cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
	}
	template <int D, int bits, int split> void allow_all(void) const
	{
		allow<D, bits, split, OTHER_WAYS, 2>();
		allow<D, bits, split, PLAIN_WAY, 1>();
		allow<D, bits, split, PLAIN_WAY, 2>();
	}
	template <int D, int bits> void run(void) const
	{
		allow_all<D, bits, 1>();
		allow_all<D, bits, D <= 128 ? 2 : 1>();
	}
};

/* On a device that launches overlap on. */
cudaError_t skv_cuda_sketch_topk_init(unsigned device, uint32_t room)
{
	cudaError_t e = cudaSuccess;
	const struct topk_init init = {&e, room};

	for (uint32_t bits = 1; bits <= 4; bits++) {
		sketch_dispatch_bits<64>(bits, init);
		sketch_dispatch_bits<96>(bits, init);
		sketch_dispatch_bits<128>(bits, init);
		sketch_dispatch_bits<256>(bits, init);
	}
	for (uint32_t blocks = 1; blocks <= MAX_CLUSTER; blocks++)
		for (uint32_t per_sm = 1; per_sm <= 2; per_sm++)
			e = e ? e : init.count_clusters(blocks, per_sm, room, &clusters_that_fit[device][blocks][per_sm - 1]);
	return e;
}
