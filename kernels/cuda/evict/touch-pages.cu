/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/evict/touch-pages.cu - marks the pages that matter in a step (RaaS) and lists the pages that a layer
 * attends to, for layers whose kv heads each retain their own pages.
 *
 * A block takes one kv head of a sequence: there are few pages, a sixteenth of the number of tokens. A page's weight is
 * the softmax of its scores, averaged over the GQA group.
 */
#include <math.h>
#include "kernels/cuda/evict/slot-meta.cuh"
#include "kernels/cuda/select/topk-key.cuh"
#include "kernels/cuda/runtime/softmax.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)

typedef team<THREADS, 0, 0> whole;

struct touch_params {
	const struct skv_kseq *seq;
	struct meta_table meta;
	struct skv_touch_rule touch;
	const float *page;     /* [seq][q head][page_stride] scores of pages */
	float *weight;         /* [seq][kv head][weight_stride] weights of pages */
	uint32_t *ids, *count; /* ids: [seq][kv head][stride]; count: [seq][kv head] */
	uint32_t page_stride, weight_stride, stride;
	uint32_t heads, group; /* number of kv heads; number of q heads of each */
};

struct head_item {
	const struct skv_kseq *s;
	const float *score; /* scores of pages for the first q head of the GQA group */
	float *weight;      /* weights of pages; a thread reads only those it wrote: threadIdx.x + k THREADS */
	uint32_t h, n;      /* index of the kv head; number of its pages */
	uint32_t filling;   /* index of the partial page, which has the largest position */
	uint32_t pinned;    /* pages at positions below this compete for being listed; 0: all pages are listed */
};

/* Computes lse[group], log2 of the softmax denominator of each q head over the pages. */
__device__ static void log_denominators(const struct touch_params *c, const struct head_item *j, float scale,
                                        float *lse)
{
	__shared__ struct partial_softmax parts[SKV_MAX_HEADS][WARPS];

	for (uint32_t g = 0; g < c->group; g++) {
		const float *score = j->score + (size_t)g * c->page_stride;
		struct partial_softmax mine = {-INFINITY, 0};
#pragma unroll 4
		for (uint32_t u = threadIdx.x; u < j->n; u += THREADS)
			mine = merge_softmax(mine, {score[u] * scale, 1});
		mine = warp_merge_softmax(mine);
		if (threadIdx.x % 32 == 0)
			parts[g][threadIdx.x / 32] = mine;
	}
	__syncthreads();
	for (uint32_t g = threadIdx.x; g < c->group; g += THREADS)
		lse[g] = log_denominator(parts[g]);
	__syncthreads();
}

/* Computes the weights of pages, as means over the GQA group, and finds the partial page. */
__device__ static void page_weights(const struct touch_params *c, struct head_item *j)
{
	__shared__ float lse[SKV_MAX_HEADS];
	__shared__ unsigned long long latest;
	const float scale = c->touch.scale * LOG2E;
	unsigned long long mine = 0;

	if (threadIdx.x == 0)
		latest = 0;
	log_denominators(c, j, scale, lse);
	for (uint32_t u = threadIdx.x; u < j->n; u += THREADS) {
		const struct skv_slot_meta *meta = meta_at(&c->meta, j->s, j->h, j->s->set, u);
		float sum = 0;
		for (uint32_t g = 0; g < c->group; g++)
			sum += exp2f(j->score[(size_t)g * c->page_stride + u] * scale - lse[g]);
		j->weight[u] = sum / (float)c->group;
		mine = max(mine, (unsigned long long)meta->pos << 32 | u);
	}
#pragma unroll
	for (int lane = 1; lane < 32; lane *= 2)
		mine = max(mine, __shfl_xor_sync(~0u, mine, lane));
	if (threadIdx.x % 32 == 0)
		atomicMax(&latest, mine);
	__syncthreads();
	j->filling = (uint32_t)latest;
}

/* Calls use(page, its metadata, its weight) for each page of the block's kv head. */
template <class F> DEVICE void for_each_page(const struct touch_params *c, const struct head_item *j, F use)
{
#pragma unroll 2
	for (uint32_t u = threadIdx.x; u < j->n; u += THREADS)
		use(u, meta_at(&c->meta, j->s, j->h, j->s->set, u), j->weight[u]);
}

/* Returns the lowest key among the `want` eligible pages of the largest weights. */
template <class F>
__device__ static uint64_t best(const struct touch_params *c, const struct head_item *j, struct topk_smem *smem,
                                uint32_t want, F eligible)
{
	return kth_largest_key<whole>(smem, want, [=](auto use) {
		for_each_page(c, j, [=](uint32_t u, const struct skv_slot_meta *meta, float weight) {
			if (eligible(u, meta->pos))
				use(score_key(weight, meta->pos, false));
		});
	});
}

/*
 * Sets the scores of pages that matter to the sequence's length, and likewise the score of the partial page if this
 * step's token is its first.
 */
__device__ static void touch(const struct touch_params *c, const struct head_item *j, struct topk_smem *smem)
{
	const struct skv_budget share = {.share = c->touch.ratio};
	const bool begins = (j->s->len - 1) % SKV_PAGE_TOKENS == 0, by_ratio = c->touch.ratio > 0;
	uint64_t last = 0;

	if (by_ratio)
		last = best(c, j, smem, skv_budget_of(share, j->n, 1), [](uint32_t, uint32_t) { return true; });
	for_each_page(c, j, [=](uint32_t u, struct skv_slot_meta *meta, float weight) {
		const bool matters = by_ratio ? score_key(weight, meta->pos, false) >= last : weight > c->touch.alpha;
		if (matters || (begins && u == j->filling))
			meta->score = (float)j->s->n_tokens;
	});
}

/* Lists the pages that the layer attends to, ascending, except that the partial page is last. */
__device__ static void list_pages(const struct touch_params *c, const struct head_item *j, struct topk_smem *smem)
{
	const size_t row = (size_t)blockIdx.y * c->heads + j->h;
	const uint32_t most = skv_budget_of(c->touch.pinned, skv_pages_of(j->s->n_tokens), c->touch.pinned_floor);
	uint32_t *ids = c->ids + row * c->stride, before = 0, pinned = 0;
	uint64_t last = 0, here;

	auto eligible = [=](uint32_t u, uint32_t pos) { return pos < j->pinned && u != j->filling; };
	if (j->pinned) {
		for_each_page(c, j, [&](uint32_t u, const struct skv_slot_meta *meta, float) {
			pinned += eligible(u, meta->pos);
		});
		team_scan<whole>(smem, pinned, &here);
		if (here > most)
			last = most ? best(c, j, smem, most, eligible) : UINT64_MAX;
	}
	for (uint32_t first = 0; first < j->n; first += THREADS) {
		const uint32_t u = first + threadIdx.x;
		bool take = u < j->n && u != j->filling;
		if (take && last) {
			const uint32_t pos = meta_at(&c->meta, j->s, j->h, j->s->set, u)->pos;
			take = !eligible(u, pos) || score_key(j->weight[u], pos, false) >= last;
		}
		const uint64_t at = before + team_scan<whole>(smem, take, &here);
		if (take)
			ids[at] = u;
		before += (uint32_t)here;
	}
	if (threadIdx.x == 0) {
		ids[before] = j->filling;
		c->count[row] = before + 1;
	}
}

/* Touches and lists the pages of a kv head. The grid is kv heads (x) by sequences (y). */
__global__ void __launch_bounds__(THREADS, 4) touch_pages_kernel(const __grid_constant__ struct touch_params c)
{
	__shared__ struct topk_smem smem;
	const struct skv_kseq *s = &c.seq[blockIdx.y];
	const size_t row = (size_t)blockIdx.y * c.heads + blockIdx.x;
	struct head_item j = {.s = s, .h = blockIdx.x, .n = skv_pages_of(s->len)};

	j.score = c.page + row * c.group * c.page_stride;
	j.weight = c.weight + row * c.weight_stride;
	j.pinned = c.touch.pinned.count || c.touch.pinned.share > 0 ? s->pinned : 0;
	page_weights(&c, &j);
	touch(&c, &j, &smem);
	list_pages(&c, &j, &smem);
}

void skv_cuda_touch_pages(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_scores *ev,
                          const struct skv_touch_rule *touch, struct skv_index_list *list, const struct skv_workspace *work)
{
	const struct workspace_layout l = workspace_layout_of(sh, b->n, b->max_len, 1);
	struct touch_params c = {};

	list->max_count = skv_pages_of(b->max_len);
	list->last_partial = true;
	c.seq = b->seq;
	c.meta = meta_table_of(sh);
	c.touch = *touch;
	c.page = ev->page;
	c.weight = (float *)((uint8_t *)work->mem + l.topk_scores);
	c.ids = list->ids;
	c.count = list->count;
	c.page_stride = ev->page_stride;
	c.weight_stride = l.tokens / SKV_PAGE_TOKENS;
	c.stride = list->stride;
	c.heads = sh->n_kv_heads;
	c.group = sh->n_heads / sh->n_kv_heads;
	if (b->n > 0)
		launch_grid(touch_pages_kernel, dim3(c.heads, b->n), THREADS, 0, stream_of(work), c);
}
