/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/evict/evict.cu - eviction: which entries (tokens or pages) of a kv head are retained.
 *
 * A block takes one kv head of a sequence. Usually one entry is evicted, and all recent entries are retained. Then the
 * evicted entry is the one of the lowest rank that is not recent, which one pass finds. If more entries are evicted, as
 * after a prompt, the key of the lowest retained entry is found first.
 */
#include "kernels/cuda/evict/slot-meta.cuh"
#include "kernels/cuda/select/topk-key.cuh"

#define THREADS 512
#define KEY_RECENT UINT64_MAX

typedef team<THREADS, 0, 0> whole;

struct evict_params {
	const struct skv_kseq *seq;
	struct meta_table meta;
	struct skv_evict_rule by;
	const float *rank; /* [seq][kv head][stride] ranks; NULL: entries are ranked by their scores */
	uint32_t stride, heads;
};

/*
 * A block's work: n_retained of n_entries entries of a kv head are retained. Entries at position `from` and after it
 * are retained whatever their rank is.
 */
struct head_item {
	const struct skv_kseq *s;
	const float *rank; /* ranks of the head's entries, or NULL */
	uint32_t h, n_entries, n_retained, from;
};

/* Returns the key by which entries are compared: entries with larger keys are retained first. */
DEVICE uint64_t topk_key(const struct evict_params *c, const struct head_item *j, uint32_t pos, float rank)
{
	if (pos >= j->from)
		return KEY_RECENT;
	return (uint64_t)(pos < j->s->pinned) << 63 | score_key(rank, pos, c->by.evict_older);
}

/* Calls use(entry, position, rank) for each entry of the block's kv head. */
template <class F> DEVICE void for_each_entry(const struct evict_params *c, const struct head_item *j, F use)
{
	for_each_pair<THREADS>(&c->meta, j->s, j->h, j->s->set, 0, j->n_entries, j->n_entries,
	                       [=](uint32_t u, struct meta_pair p) {
#pragma unroll
		for (int x = 0; x < 2; x++)
			if (u + x < j->n_entries)
				use(u + x, p.pos[x], j->rank ? j->rank[u + x] : p.value[x]);
	});
}

/* Returns the entry with the lowest key. Sets *ret_recent to the number of entries at position j->from and after it. */
__device__ static uint32_t find_lowest(const struct evict_params *c, const struct head_item *j, uint32_t *ret_recent)
{
	__shared__ unsigned long long lowest;
	__shared__ uint32_t recent, unit;
	unsigned long long key = KEY_RECENT;
	uint32_t mine = 0, latest = 0;

	if (threadIdx.x == 0) {
		lowest = KEY_RECENT;
		recent = unit = 0;
	}
	__syncthreads();
	for_each_entry(c, j, [&](uint32_t u, uint32_t pos, float rank) {
		const uint64_t k = topk_key(c, j, pos, rank);
		latest += k == KEY_RECENT;
		mine = k < key ? u : mine;
		key = k < key ? k : key;
	});
	const unsigned long long of_thread = key;
#pragma unroll
	for (int lane = 1; lane < 32; lane *= 2)
		key = min(key, __shfl_xor_sync(~0u, key, lane));
	latest = __reduce_add_sync(~0u, latest);
	if (threadIdx.x % 32 == 0) {
		atomicMin(&lowest, key);
		atomicAdd(&recent, latest);
	}
	__syncthreads();
	if (of_thread == lowest && lowest != KEY_RECENT)
		unit = mine; /* keys differ, so only one thread stores its entry */
	__syncthreads();
	*ret_recent = recent;
	return unit;
}

/*
 * Sets j->from so that it and later positions have `recent` entries. Called if some of the latest entries were evicted
 * in earlier steps.
 */
__device__ static void find_recent(const struct evict_params *c, struct head_item *j, struct topk_smem *smem,
                                   uint32_t recent)
{
	const uint64_t last = kth_largest_key<whole>(smem, recent, [=](auto use) {
		for_each_entry(c, j, [=](uint32_t, uint32_t pos, float) { use((uint64_t)pos << 32); });
	});
	j->from = (uint32_t)(last >> 32);
}

/* Marks entries as evicted whose keys are below `last`, the lowest key of a retained entry. */
__device__ static void mark_evicted(const struct evict_params *c, const struct head_item *j, uint64_t last)
{
	for_each_entry(c, j, [=](uint32_t u, uint32_t pos, float rank) {
		struct skv_slot_meta *meta = meta_at(&c->meta, j->s, j->h, j->s->set, u);
		if (topk_key(c, j, pos, rank) < last)
			meta->pos = pos | SKV_SLOT_EVICTED;
		else if (c->by.reset_scores)
			meta->score = 0;
	});
}

/* Evicts entries of a kv head. The grid is kv heads (x) by sequences (y). */
__global__ void __launch_bounds__(THREADS, 2) evict_kernel(const __grid_constant__ struct evict_params c)
{
	__shared__ struct topk_smem smem;
	const struct skv_kseq *s = &c.seq[blockIdx.y];
	struct head_item j = {.s = s, .h = blockIdx.x, .n_entries = entries_of(c.by.granularity, s->len),
	                      .n_retained = s->n_retained};
	if (j.n_retained >= j.n_entries)
		return;
	const uint32_t recent = min(skv_recent_of(&c.by, j.n_retained), j.n_retained), last = entries_of(c.by.granularity, s->n_tokens);
	uint32_t n_recent = 0;

	j.from = recent ? last - recent : SKV_SLOT_FREE;
	j.rank = c.rank ? c.rank + ((size_t)blockIdx.y * c.heads + j.h) * c.stride : NULL;
	const uint32_t lowest = find_lowest(&c, &j, &n_recent);
	if (n_recent == recent && j.n_retained + 1 == j.n_entries && !c.by.reset_scores) {
		if (threadIdx.x == 0)
			meta_at(&c.meta, s, j.h, s->set, lowest)->pos |= SKV_SLOT_EVICTED;
		return;
	}
	if (n_recent != recent)
		find_recent(&c, &j, &smem, recent);
	const struct head_item *item = &j;
	const uint64_t stays = j.n_retained == 0 ? KEY_RECENT : kth_largest_key<whole>(&smem, j.n_retained, [=](auto use) {
		for_each_entry(&c, item, [=](uint32_t, uint32_t pos,
		                            float rank) { use(topk_key(&c, item, pos, rank)); });
	});
	mark_evicted(&c, &j, stays);
}

void skv_cuda_evict(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_evict_rule *by,
                    const float *rank, uint32_t stride, const struct skv_workspace *work)
{
	struct evict_params c = {};

	c.seq = b->seq;
	c.meta = meta_table_of(sh);
	c.by = *by;
	c.rank = rank;
	c.stride = stride;
	c.heads = sh->n_kv_heads;
	if (b->n > 0)
		launch_grid(evict_kernel, dim3(c.heads, b->n), THREADS, 0, stream_of(work), c);
}
