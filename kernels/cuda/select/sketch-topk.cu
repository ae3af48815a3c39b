/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/sketch-topk.cu - selects the best tokens of each kv head by the sketches of all tokens, with scan
 * and selection in one launch.
 *
 * The heads' softmax denominators are estimated from a sample of tokens, which each block reads for itself. So a
 * token's key is known as soon as its scores are. Only the key is kept, in the shared memory of the block that made it.
 * The blocks that scan a list (a kv head of a sequence) are a cluster, and select by the keys of all blocks
 * (cluster-select.cuh). So the kernel needs Hopper or later.
 */
#include "kernels/cuda/runtime/overlap.cuh"
#include "kernels/cuda/select/cluster-select.cuh"
#include "kernels/cuda/select/sketch-sample.cuh"
#include "kernels/cuda/select/sketch-stream.cuh"
#include "kernels/cuda/select/sketch.h"
#include "kernels/device.h"

struct topk_params {
	struct sketch_params s;
	struct skv_select select;
	struct skv_index_list list;
	bool sum; /* a token's weight is the sum over its GQA group; false: the maximum */
};

/*
 * How keys are made. PLAIN_WAY is for nearly all models: softmax of scores without softcap, and the largest weight of
 * the GQA group. OTHER_WAYS is for a softcap or for sums of weights; it is a variant of its own, so that PLAIN_WAY is
 * not slower.
 */
enum way { PLAIN_WAY, OTHER_WAYS };

/* The part of a list that a block scans. */
struct item {
	const struct skv_kseq *s;
	uint32_t i, h;
	uint32_t first, end; /* range of state pages */
	struct key_share keys;
};

struct topk_smem {
	struct sketch_query query;
	struct sample_smem sample;
	float offset[HEAD_TILE]; /* key_offset() of each head's weights, with a softcap; else it is part of `query` */
	struct select_smem select;
};

#if __CUDA_ARCH__ >= 900
/* ---- keys ---------------------------------------------------------------------------------------- */

/* Turns a head's denominator into the factors that make keys of its scores. Heads past the last one get no weight. */
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

/*
 * Reduces a token's weights over its GQA group. All lanes that have scores of the token take part; the lane that stores
 * the token's key gets the result.
 */
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

/*
 * A sink that makes keys of the scan's scores, and counts their upper digits. In a step each lane, or half of the
 * lanes, has a token.
 */
template <int split, enum way way> struct key_sink {
	const struct topk_params *c;
	struct topk_smem *smem;
	uint16_t *key; /* address for token 0's key; only keys of the block's tokens exist */
	uint32_t n, pin, recent;

	/*
	 * Returns the lane's token in the chunk, for a step whose first token is `first`; UINT32_MAX if another lane
	 * has that token.
	 */
	static __device__ __forceinline__ uint32_t own_token(uint32_t first)
	{
		return split == 1 && threadIdx.x % 4 >= 2 ? UINT32_MAX : first + lane_token<split>() + threadIdx.x % 2 * (8 * split);
	}
	__device__ __forceinline__ void add(const struct chunk *at, uint32_t first, float s[4]) const
	{
		const uint32_t token = own_token(first);
		const float w = reduce_group<split, way>(c, smem, s);
		const uint32_t k = key_of(w);
		if (token >= at->tokens)
			return;
		key[at->first + token] = (uint16_t)(w == w ? k : 0);
		if (w == w)
			atomicAdd(&smem->select.own[0].n[k / BINS], 1);
	}
	__device__ __forceinline__ void add_any(const struct chunk *at, uint32_t first, float s[4], const enum sketch_kind kind[2]) const
	{
		const uint32_t in_chunk = own_token(first), token = at->first + in_chunk;
		const enum sketch_kind own = threadIdx.x % 2 ? kind[1] : kind[0];
		const float w = reduce_group<split, way>(c, smem, s);
		uint32_t k = w == w ? key_of(w) : 0;

		if (in_chunk >= at->tokens)
			return;
		if (own == SKETCH_ABSENT)
			k = 0;
		else if (token < pin || token >= n - recent)
			k = KEY_ANYWAY;
		else if (own == SKETCH_NONE)
			k = 1;
		key[token] = (uint16_t)k;
		count_upper(&smem->select, k);
	}
};

#endif

/* ---- the kernel ---------------------------------------------------------------------------------- */

#define TEAMS (WARPS / TEAM)

/* A block's shared memory; the block's keys follow this struct. */
template <int D, int bits> struct topk_room {
	struct stream_room<D, bits, TEAMS> stream;
	struct topk_smem smem;
};

#if __CUDA_ARCH__ >= 900
template <int D, int bits> DEVICE struct item item_of(const struct topk_params *c, uint16_t *key)
{
	constexpr uint32_t each = state_page<D, bits>::tokens;
	const uint32_t blocks = cg::this_cluster().num_blocks(), list = blockIdx.x / blocks, rank = cg::this_cluster().block_rank();
	const struct skv_kseq *s = &c->s.seq[list / c->s.n_kv_heads];
	const uint32_t pages = (s->len + each - 1) / each, all = skv_pages_of(s->len) * SKV_PAGE_TOKENS;
	const uint32_t first = pages * rank / blocks, end = pages * (rank + 1) / blocks, token = min(all, first * each);

	return {s, list / c->s.n_kv_heads, list % c->s.n_kv_heads, first, end,
	        {rank, blocks, token, min(all, end * each) - token, key}};
}

template <int D, int bits, int split, enum way way>
__device__ static void scan_item(const struct topk_params *c, const struct item *it, const struct skv_topk_counts *counts,
                                 struct topk_room<D, bits> *room)
{
	struct topk_smem *smem = &room->smem;
	const uint32_t warp = threadIdx.x / 32, group = c->s.group;
	const struct sketch_list list = sketch_list_of(&c->s, it->s, it->h);
	const struct key_sink<split, way> sink = {c, smem, it->keys.key - it->keys.token, counts->n, counts->pin, counts->recent};
	sketch_stream<D, bits, split, way == OTHER_WAYS, TEAMS> stream;
	{
		sketch_sample<D, bits, split> sample;

		if (warp < SAMPLE_WARPS)
			sample.locate(&c->s, &list);
		stream.locate(&c->s, &list, it->first, it->end, &room->stream);
		await_previous();
		if (warp < SAMPLE_WARPS)
			sample.begin();
		stream.begin();
		if (warp < group)
			make_sketch_query<D, bits, sketch_codes<D, bits, split, 1>::factor>(&c->s, it->s, it->h, it->h * group, warp, &smem->query);
		__syncthreads();
		if (warp == 0)
			sketch_codes<D, bits, split, 1>::query(&smem->query, group);
		__syncthreads();
		if (warp < SAMPLE_WARPS)
			sample.run(&c->s, &list, &smem->query, &smem->sample);
	}
	__syncthreads();
	const struct sampled_head head = sum_sample(&c->s, list.len, it->h * group, group, &smem->sample);
	if (head.mine)
		scale_head(c, list.len, head.g, head.lse, smem);
	__syncthreads();
	stream.run(&smem->query, it->first, counts->pin, counts->n - counts->recent, sink);
}
#endif

/* Selects the tokens of a kv head by sketches. The grid is one cluster of blocks for each kv head of each sequence. */
template <int D, int bits, int split, enum way way>
__global__ void __launch_bounds__(THREADS) topk_kernel(const __grid_constant__ struct topk_params c)
{
#if __CUDA_ARCH__ >= 900
	SHARED_MEMORY(uint8_t, memory, 128);
	typedef struct topk_room<D, bits> room_type;
	room_type *room = (room_type *)memory;
	struct topk_smem *smem = &room->smem;
	const struct item it = item_of<D, bits>(&c, (uint16_t *)(room + 1));
	const struct skv_topk_counts counts = skv_topk_counts_of(&c.select, it.s->len);
	const size_t list = (size_t)it.i * c.s.n_kv_heads + it.h;

	clear_counts(&smem->select);
	scan_item<D, bits, split, way>(&c, &it, &counts, room);
	let_next_begin();
	const struct kth k = find_key(&it.keys, &smem->select, counts.want);
	/*
	 * This block no longer reads other blocks' shared memory. But its own must stay until the other blocks are
	 * done, too.
	 */
	asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
	write_ids(&it.keys, &smem->select, &k, c.list.ids + list * c.list.stride, &c.list.count[list]);
	asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

/* ---- launches ---------------------------------------------------------------------------------- */

/* How a list is divided among blocks. */
struct list_division {
	uint32_t blocks;
	size_t smem; /* bytes of shared memory of each block */
};

static uint32_t clusters_that_fit[SKV_BACKEND_MAX_DEVICES][MAX_CLUSTER + 1];

/*
 * Chooses the number of blocks of a list. A block takes the time of its state pages plus that of 33 more (measured on
 * an H200). 0 blocks: even with the largest number of blocks there is no room for the keys.
 */
template <int D, int bits> static struct list_division divide(uint32_t lists, uint32_t len)
{
	constexpr size_t page_bytes = state_page<D, bits>::tokens * sizeof(uint16_t), others = sizeof(struct topk_room<D, bits>);
	const uint32_t pages = ceil_div(len, state_page<D, bits>::tokens), room = skv_cuda_max_shared_memory();
	const uint32_t most = room > others ? (uint32_t)((room - others) / page_bytes) : 0;
	int device = 0;

	cudaGetDevice(&device);
	const uint32_t blocks = blocks_of_list(clusters_that_fit[device], lists, pages, most, 33);
	return {blocks, blocks ? others + ceil_div(pages, blocks) * page_bytes : 0};
}

struct topk_launch {
	struct topk_params c;
	uint32_t lists, max_len;
	cudaStream_t stream;

	template <int D, int bits, int split> void split_by(void) const
	{
		const struct list_division by = divide<D, bits>(lists, max_len);
		void (*const kernel)(struct topk_params) =
			c.sum || c.s.scale.cap != 0 ? topk_kernel<D, bits, split, OTHER_WAYS> : topk_kernel<D, bits, split, PLAIN_WAY>;
		launch_overlapped(kernel, c, by.blocks * lists, THREADS, by.smem, by.blocks, stream);
	}
	template <int D, int bits> void run(void) const
	{
		if (c.s.group <= HEAD_TILE / 2)
			split_by<D, bits, D <= 128 ? 2 : 1>();
		else
			split_by<D, bits, 1>();
	}
};

struct topk_fits {
	uint32_t lists, max_len;
	bool *ret;

	template <int D, int bits> void run(void) const
	{
		*ret = divide<D, bits>(lists, max_len).blocks > 0;
	}
};

bool skv_cuda_topk_of_sketches(const struct skv_shape *sh, uint32_t max_len)
{
	bool r = false;

	if (sh->n_heads / sh->n_kv_heads <= HEAD_TILE && skv_cuda_overlaps() &&
	    sh->page_bytes == (size_t)sh->n_kv_heads * SKV_PAGE_TOKENS * sh->head_dim * 4)
		sketch_dispatch(sh, topk_fits{sh->n_kv_heads, max_len, &r});
	return r;
}

void skv_cuda_launch_topk_of_sketches(const struct skv_shape *sh, const struct skv_batch *b, const void *q, bool sum,
                                      const struct skv_select *select, const struct skv_index_list *list,
                                      const struct skv_workspace *work)
{
	struct topk_launch launch = {.lists = b->n * sh->n_kv_heads, .max_len = b->max_len, .stream = stream_of(work)};
	struct topk_params *c = &launch.c;

	c->s = sketch_params_of(sh, b, q);
	c->select = *select;
	c->list = *list;
	c->sum = sum;
	if (b->n > 0)
		sketch_dispatch(sh, launch);
}

struct topk_init {
	cudaError_t *e;
	uint32_t room;

	template <int D, int bits, int split, enum way way> void allow(void) const
	{
		*e = *e ? *e : allow_clusters(topk_kernel<D, bits, split, way>, room);
	}
	template <int D, int bits, int split> void allow_all(void) const
	{
		allow<D, bits, split, OTHER_WAYS>();
		allow<D, bits, split, PLAIN_WAY>();
	}
	template <int D, int bits> void run(void) const
	{
		allow_all<D, bits, 1>();
		allow_all<D, bits, D <= 128 ? 2 : 1>();
	}
};

/* Called once for each device that has overlapping launches and clusters. */
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
		clusters_that_fit[device][blocks] = clusters_of(topk_kernel<128, 2, 2, PLAIN_WAY>, blocks, room);
	return e;
}
