/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/sketch-topk.cu - the best tokens of each kv head by the sketches of all: scan and selection at once.
 *
 * The scores of a list, a kv head of a sequence, never go to memory: the blocks that scan it are a cluster, and keep them in
 * their shared memory until the selection is made. They meet four times (barriers of the cluster), and read each other's
 * shared memory after each:
 *
 *   1. the units' largest scores and sums (sketch-scan.cuh): each block makes the denominators of the heads from all of them,
 *      in the same order, and from these and the scores the keys of its tokens;
 *   2. histograms of the keys' upper digits: each block finds the digit of the k-th key;
 *   3. histograms of the lower digits, of keys with that upper one: each finds the k-th key;
 *   4. how many ids each block has, from which follows where in the list they begin.
 *
 * A key is the token's weight in log2, in 1 / 2^14ths: 20 bits, two digits. Weights that differ by less are equal, and of
 * equals the lower id comes first. Denominators are made of units, so that nothing depends on how many blocks there are.
 * Clusters, and with them this file's kernel, are Hopper's and later.
 */
#include "kernels/cuda/select/sketch-keys.cuh"
#include "kernels/cuda/select/sketch.h"

#if __CUDA_ARCH__ >= 900
/* ---- histograms of all blocks -------------------------------------------------------------------- */

/* The second histogram, of keys with this upper digit. */
__device__ static void count_lower(const struct topk_params *c, uint32_t upper, struct topk_smem *smem)
{
	const uint32_t pairs = (smem->item.end - smem->item.first) * SKETCH_PAIRS;

	for (uint32_t p = threadIdx.x; p < pairs; p += THREADS) {
		const uint2 k = *keys_at(c, smem, p);
		if (k.x >> DIGIT_BITS == upper && k.x)
			atomicAdd(&smem->bins[1][k.x % BINS], 1);
		if (k.y >> DIGIT_BITS == upper && k.y)
			atomicAdd(&smem->bins[1][k.y % BINS], 1);
	}
}

/*
 * Each block sums up its share of the bins, and then they exchange the sums: all of them from all blocks would be eight times
 * as much to read. smem->bins becomes the whole cluster's.
 */
__device__ static void sum_bins(struct topk_smem *smem, uint32_t digit)
{
	const uint32_t share = BINS / cluster_blocks(), own = cluster_rank() * share; /* powers of two */

#pragma unroll
	for (uint32_t i = threadIdx.x; i < BINS; i += THREADS) {
		const uint32_t n = in_block(smem->bins[digit], i / share)[own + i % share];
		if (n)
			atomicAdd(&smem->sum[digit][i % share], n);
	}
	meet();
#pragma unroll
	for (uint32_t i = threadIdx.x; i < BINS; i += THREADS)
		smem->bins[digit][i] = in_block(smem->sum[digit], i / share)[i % share];
	__syncthreads();
}

/*
 * The bin, from the top, in which the want-th key of all blocks lies, into smem->key, and how many of that bin are wanted.
 * False: there are fewer keys.
 */
__device__ static bool find_bin(struct topk_smem *smem, uint32_t digit, uint32_t want)
{
	constexpr uint32_t each = BINS / THREADS;
	const uint32_t top = BINS - 1 - threadIdx.x * each;
	uint32_t mine = 0, total;

	sum_bins(smem, digit);
#pragma unroll
	for (uint32_t b = 0; b < each; b++)
		mine += smem->bins[digit][top - b];
	uint32_t above = block_scan(smem, mine, &total);
#pragma unroll
	for (uint32_t b = 0; b < each; b++) {
		const uint32_t here = smem->bins[digit][top - b];
		if (above < want && above + here >= want) {
			smem->key = top - b;
			smem->want = want - above;
		}
		above += here;
	}
	__syncthreads();
	return total >= want;
}

/* The k-th key and how many of its equals are wanted, into smem->key and smem->want. */
__device__ static void find_key(const struct topk_params *c, struct topk_smem *smem)
{
	const uint32_t want = smem->item.counts.want;
	const bool found = want && find_bin(smem, 0, want);

	if (!found) { /* all keys are wanted, or only those that are selected anyway */
		if (threadIdx.x == 0) {
			smem->key = want ? 0 : KEY_ANYWAY - 1;
			smem->want = 0;
		}
		__syncthreads();
		return;
	}
	const uint32_t upper = smem->key, left = smem->want;
	count_lower(c, upper, smem);
	meet();
	find_bin(smem, 1, left);
	if (threadIdx.x == 0)
		smem->key |= upper << DIGIT_BITS;
	__syncthreads();
}

/* ---- ids --------------------------------------------------------------------------------------- */

/* Of the blocks before this one; the last one knows how many ids there are. A warp's work. */
__device__ static void sum_counts(const struct topk_params *c, struct topk_smem *smem)
{
	const uint32_t rank = cluster_rank();
	const uint2 n = threadIdx.x < rank ? *in_block(&smem->count, threadIdx.x) : make_uint2(0, 0);
	const uint32_t above = __reduce_add_sync(~0u, n.x), equal = __reduce_add_sync(~0u, n.y);

	if (threadIdx.x > 0)
		return;
	smem->before = make_uint2(above, equal);
	if (rank + 1 == cluster_blocks())
		c->list.count[smem->item.i * c->s.n_kv_heads + smem->item.h] =
			above + smem->count.x + min(equal + smem->count.y, smem->want);
}

/* The block's ids, ascending, from where the list has its. A warp takes a contiguous run of pairs. */
__device__ static void write_ids(const struct topk_params *c, struct topk_smem *smem)
{
	const struct item *it = &smem->item;
	const uint32_t pairs = (it->end - it->first) * SKETCH_PAIRS, per = divide_up(pairs, THREADS) * 32, lane = threadIdx.x % 32;
	const uint32_t from = min(pairs, threadIdx.x / 32 * per), to = min(pairs, from + per), lower = (1u << lane) - 1;
	const uint32_t last = smem->key, equal = smem->want;
	uint32_t *ids = c->list.ids + ((size_t)it->i * c->s.n_kv_heads + it->h) * c->list.stride;
	uint32_t same = 0, better = 0, total;

	for (uint32_t p = from + lane; p < to; p += 32) {
		const uint2 k = *keys_at(c, smem, p);
		better += (k.x > last) + (k.y > last);
		same += (k.x == last) + (k.y == last);
	}
	same = equal ? same : 0;
	/* both in a word: a block has less than 65,536 of each */
	const uint32_t here = __shfl_sync(~0u, block_scan(smem, better | same << 16, &total), 0);
	if (threadIdx.x == 0)
		smem->count = make_uint2(total & 0xffff, total >> 16);
	meet();
	if (threadIdx.x < 32)
		sum_counts(c, smem);
	__syncthreads();
	uint32_t rank = smem->before.y + (here >> 16), at = smem->before.x + (here & 0xffff) + min(rank, equal);
	for (uint32_t p = from; p < to; p += 32) {
		const uint2 k = p + lane < to ? *keys_at(c, smem, p + lane) : make_uint2(0, 0);
		const bool e0 = equal && k.x == last, e1 = equal && k.y == last;
		const uint32_t m0 = __ballot_sync(~0u, e0), m1 = __ballot_sync(~0u, e1);
		const uint32_t mine = rank + __popc(m0 & lower) + __popc(m1 & lower);
		const bool t0 = k.x > last || (e0 && mine < equal), t1 = k.y > last || (e1 && mine + e0 < equal);
		const uint32_t s0 = __ballot_sync(~0u, t0), s1 = __ballot_sync(~0u, t1);
		const uint32_t to_here = at + __popc(s0 & lower) + __popc(s1 & lower);
		const uint32_t id = it->first * SKETCH_UNIT + 2 * (p + lane);
		if (t0)
			ids[to_here] = id;
		if (t1)
			ids[to_here + t0] = id + 1;
		at += __popc(s0) + __popc(s1);
		rank += __popc(m0) + __popc(m1);
	}
}

/* ---- the kernel -------------------------------------------------------------------------------- */

__device__ static void begin_item(const struct topk_params *c, struct topk_smem *smem)
{
	const uint32_t list = blockIdx.x / cluster_blocks(), rank = cluster_rank();
	struct item *it = &smem->item;

	if (threadIdx.x == 0) {
		it->i = list / c->s.n_kv_heads;
		it->h = list % c->s.n_kv_heads;
		const struct skv_kseq *s = &c->s.seq[it->i];
		it->first = first_unit(units_of(s), rank);
		it->end = first_unit(units_of(s), rank + 1);
		it->counts = skv_topk_counts_of(&c->select, s->len);
	}
	for (uint32_t b = threadIdx.x; b < 2 * BINS; b += THREADS)
		smem->bins[0][b] = 0;
	__syncthreads();
}

template <int D, int bits, int split>
__device__ static void scan_item(const struct topk_params *c, struct topk_smem *smem)
{
	const struct item *it = &smem->item;
	const struct skv_kseq *s = &c->s.seq[it->i];
	const uint32_t warp = threadIdx.x / 32, group = c->s.group;
	const struct sketch_records to = {(uint2 *)smem->memory, scales_at(c, smem), c->records};
	sketch_scan<D, bits, split> scan;

	scan.begin(&c->s, s, it->h, smem->pages[warp], it->first + warp, it->end);
	if (warp < group)
		make_sketch_query<D, bits>(&c->s, s, it->h, it->h * group, warp, &smem->query);
	__syncthreads();
	if (warp == 0)
		scan.query(&smem->query, group);
	__syncthreads();
	if (it->first + warp < it->end)
		scan.run(&smem->query, group, it->first + warp, WARPS, it->end, to, warp, peaks_at(c, smem), group);
}
#endif

/* Grid: blocks of a cluster, kv heads, sequences; all in one dimension. */
template <int D, int bits, int split>
__global__ void __launch_bounds__(THREADS, 2) topk_kernel(const __grid_constant__ struct topk_params c)
{
#if __CUDA_ARCH__ >= 900
	extern __shared__ __align__(16) uint8_t memory[];
	struct topk_smem *smem = (struct topk_smem *)memory;

	begin_item(&c, smem);
	scan_item<D, bits, split>(&c, smem);
	meet();
	make_denominators(&c, smem);
	__syncthreads();
	make_all_keys<sketch_shift<D, bits>>(&c, smem);
	meet();
	find_key(&c, smem);
	write_ids(&c, smem);
	meet(); /* nobody reads this block's shared memory any more */
#endif
}

/* ---- launches ---------------------------------------------------------------------------------- */

static uint32_t records_of(const struct skv_shape *sh)
{
	return (sh->n_heads / sh->n_kv_heads + 1) / 2;
}

static uint32_t units_of_len(uint32_t max_len)
{
	return ceil_div(max_len, SKETCH_UNIT);
}

/* Shared memory of a block with so many units. */
static size_t smem_bytes(const struct skv_shape *sh, uint32_t units)
{
	const size_t pair = records_of(sh) * sizeof(uint2) + sizeof(uint32_t), group = sh->n_heads / sh->n_kv_heads;
	return sizeof(struct topk_smem) + units * (SKETCH_PAIRS * pair + group * sizeof(float2));
}

/* Blocks of a list: no more than it takes for two to fit an SM, unless that leaves SMs without any. */
static uint32_t cluster_of(const struct skv_shape *sh, uint32_t n, uint32_t max_len)
{
	const uint32_t units = units_of_len(max_len), lists = n * sh->n_kv_heads, half = skv_cuda_max_shared_memory() / 2 - 1024;
	uint32_t blocks = 1;

	while (blocks < MAX_CLUSTER && (smem_bytes(sh, ceil_div(units, blocks)) > half || lists * blocks * 2 <= 2 * skv_cuda_sms()))
		blocks *= 2;
	return blocks;
}

bool skv_cuda_topk_of_sketches(const struct skv_shape *sh, uint32_t max_len)
{
	int device, clusters = 0;

	if (sh->n_heads / sh->n_kv_heads > HEAD_TILE || cudaGetDevice(&device) ||
	    cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, device))
		return false;
	return clusters && smem_bytes(sh, ceil_div(units_of_len(max_len), MAX_CLUSTER)) <= skv_cuda_max_shared_memory();
}

struct topk_launch {
	struct topk_params c;
	uint32_t blocks, lists;
	size_t smem;
	cudaStream_t stream;

	template <int D, int bits, int split> void start(void) const
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
	const uint32_t blocks = cluster_of(sh, b->n, b->max_len);
	struct topk_launch launch = {.blocks = blocks, .lists = b->n * sh->n_kv_heads, .stream = stream_of(work)};
	struct topk_params *c = &launch.c;

	c->s = sketch_params_of(sh, b, q);
	c->select = *select;
	c->list = *list;
	c->sum = sum;
	c->records = records_of(sh);
	c->units = ceil_div(units_of_len(b->max_len), blocks);
	launch.smem = smem_bytes(sh, c->units);
	if (b->n > 0)
		sketch_dispatch(sh, launch);
}

struct topk_init {
	cudaError_t *e;
	uint32_t room;

	template <int D, int bits, int split> void allow(void) const
	{
		void (*const kernel)(struct topk_params) = topk_kernel<D, bits, split>;
		*e = *e ? *e : cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
		                                    (int)room);
		*e = *e ? *e : cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
	}
	template <int D, int bits> void run(void) const
	{
		allow<D, bits, 1>();
		allow<D, bits, D <= 128 ? 2 : 1>();
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
