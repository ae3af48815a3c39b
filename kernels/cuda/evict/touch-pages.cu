/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/evict/touch-pages.cu - which pages matter, and which are attended to, where each kv head keeps its own.
 *
 * A block has a sequence's kv head: there are few pages, a sixteenth of the tokens. Weights of pages are means of
 * what the softmax of each q head says.
 */
#include <math.h>
#include "kernels/cuda/evict/slot-meta.cuh"
#include "kernels/cuda/select/topk-key.cuh"
#include "kernels/cuda/runtime/softmax.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)

typedef team<THREADS, 0, 0> whole;

struct call {
	const struct skv_kseq *seq;
	struct notes notes;
	struct skv_stamp stamp;
	const float *page; /* [seq][q head][page_stride] */
	float *weight;     /* [seq][kv head][weight_stride] */
	uint32_t *ids, *count; /* [seq][kv head] of `stride` elements */
	uint32_t page_stride, weight_stride, stride;
	uint32_t heads, group; /* kv heads; q heads of one */
};

struct job {
	const struct skv_kseq *s;
	const float *score; /* of the group's first q head */
	float *weight;      /* a thread reads what it has written: those of pages threadIdx.x + k THREADS */
	uint32_t h, n;      /* kv head, its pages */
	uint32_t filling;   /* the page of the largest position */
	uint32_t pinned;    /* pages of positions below compete for being listed; 0: all are */
};

/* The logarithm of each q head's denominator: lse[group]. */
__device__ static void denominators(const struct call *c, const struct job *j, float scale, float *lse)
{
	__shared__ struct part parts[SKV_MAX_HEADS][WARPS];

	for (uint32_t g = 0; g < c->group; g++) {
		const float *score = j->score + (size_t)g * c->page_stride;
		struct part mine = {-INFINITY, 0};
#pragma unroll 4
		for (uint32_t u = threadIdx.x; u < j->n; u += THREADS)
			mine = join(mine, {score[u] * scale, 1});
		mine = warp_join(mine);
		if (threadIdx.x % 32 == 0)
			parts[g][threadIdx.x / 32] = mine;
	}
	__syncthreads();
	for (uint32_t g = threadIdx.x; g < c->group; g += THREADS)
		lse[g] = denominator(parts[g]);
	__syncthreads();
}

/* Weights of the pages, means over the group; which page is being filled. */
__device__ static void weigh(const struct call *c, struct job *j)
{
	__shared__ float lse[SKV_MAX_HEADS];
	__shared__ unsigned long long latest;
	const float scale = c->stamp.scale * LOG2E;
	unsigned long long mine = 0;

	if (threadIdx.x == 0)
		latest = 0;
	denominators(c, j, scale, lse);
	for (uint32_t u = threadIdx.x; u < j->n; u += THREADS) {
		const struct skv_note *note = note_at(&c->notes, j->s, j->h, j->s->set, u);
		float sum = 0;
		for (uint32_t g = 0; g < c->group; g++)
			sum += exp2f(j->score[(size_t)g * c->page_stride + u] * scale - lse[g]);
		j->weight[u] = sum / (float)c->group;
		mine = max(mine, (unsigned long long)note->pos << 32 | u);
	}
#pragma unroll
	for (int lane = 1; lane < 32; lane *= 2)
		mine = max(mine, __shfl_xor_sync(~0u, mine, lane));
	if (threadIdx.x % 32 == 0)
		atomicMax(&latest, mine);
	__syncthreads();
	j->filling = (uint32_t)latest;
}

/* use(page, its note, its weight) */
template <class F> DEVICE void each_page(const struct call *c, const struct job *j, F use)
{
#pragma unroll 2
	for (uint32_t u = threadIdx.x; u < j->n; u += THREADS)
		use(u, note_at(&c->notes, j->s, j->h, j->s->set, u), j->weight[u]);
}

/* The key that the best `want` pages reach by weight, of those that stand for it. */
template <class F>
__device__ static uint64_t best(const struct call *c, const struct job *j, struct select_room *room, uint32_t want,
                                F stands)
{
	return nth_key<whole>(room, want, [=](auto use) {
		each_page(c, j, [=](uint32_t u, const struct skv_note *note, float weight) {
			if (stands(u, note->pos))
				use(score_key(weight, note->pos, false));
		});
	});
}

/* Pages that matter, and one that begins with this token, get the length of the sequence. */
__device__ static void stamp(const struct call *c, const struct job *j, struct select_room *room)
{
	const struct skv_budget share = {.share = c->stamp.ratio};
	const bool begins = (j->s->len - 1) % SKV_PAGE_TOKENS == 0, by_ratio = c->stamp.ratio > 0;
	uint64_t last = 0;

	if (by_ratio)
		last = best(c, j, room, skv_budget_of(share, j->n, 1), [](uint32_t, uint32_t) { return true; });
	each_page(c, j, [=](uint32_t u, struct skv_note *note, float weight) {
		const bool matters = by_ratio ? score_key(weight, note->pos, false) >= last : weight > c->stamp.alpha;
		if (matters || (begins && u == j->filling))
			note->value = (float)j->s->all;
	});
}

/* All pages that are attended to, ascending, but the one being filled, which is the last. */
__device__ static void list(const struct call *c, const struct job *j, struct select_room *room)
{
	const size_t row = (size_t)blockIdx.y * c->heads + j->h;
	const uint32_t most = skv_budget_of(c->stamp.pinned, skv_pages_of(j->s->all), c->stamp.pinned_floor);
	uint32_t *ids = c->ids + row * c->stride, before = 0, pinned = 0;
	uint64_t last = 0, here;

	auto stands = [=](uint32_t u, uint32_t pos) { return pos < j->pinned && u != j->filling; };
	if (j->pinned) {
		each_page(c, j, [&](uint32_t u, const struct skv_note *note, float) {
			pinned += stands(u, note->pos);
		});
		scan<whole>(room, pinned, &here);
		if (here > most)
			last = most ? best(c, j, room, most, stands) : UINT64_MAX;
	}
	for (uint32_t first = 0; first < j->n; first += THREADS) {
		const uint32_t u = first + threadIdx.x;
		bool take = u < j->n && u != j->filling;
		if (take && last) {
			const uint32_t pos = note_at(&c->notes, j->s, j->h, j->s->set, u)->pos;
			take = !stands(u, pos) || score_key(j->weight[u], pos, false) >= last;
		}
		const uint64_t at = before + scan<whole>(room, take, &here);
		if (take)
			ids[at] = u;
		before += (uint32_t)here;
	}
	if (threadIdx.x == 0) {
		ids[before] = j->filling;
		c->count[row] = before + 1;
	}
}

/* Grid: kv heads, sequences. */
__global__ void __launch_bounds__(THREADS, 4) stamp_kernel(const __grid_constant__ struct call c)
{
	__shared__ struct select_room room;
	const struct skv_kseq *s = &c.seq[blockIdx.y];
	const size_t row = (size_t)blockIdx.y * c.heads + blockIdx.x;
	struct job j = {.s = s, .h = blockIdx.x, .n = skv_pages_of(s->len)};

	j.score = c.page + row * c.group * c.page_stride;
	j.weight = c.weight + row * c.weight_stride;
	j.pinned = c.stamp.pinned.count || c.stamp.pinned.share > 0 ? s->pinned : 0;
	weigh(&c, &j);
	stamp(&c, &j, &room);
	list(&c, &j, &room);
}

void skv_cuda_stamp(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_evidence *ev,
                    const struct skv_stamp *stamp, struct skv_list *list, const struct skv_work *work)
{
	const struct layout l = layout_of(sh, b->n, b->max_len, 1);
	struct call c = {};

	list->most = skv_pages_of(b->max_len);
	list->filling = true;
	c.seq = b->seq;
	c.notes = notes_of(sh);
	c.stamp = *stamp;
	c.page = ev->page;
	c.weight = (float *)((uint8_t *)work->mem + l.chosen);
	c.ids = list->ids;
	c.count = list->count;
	c.page_stride = ev->page_stride;
	c.weight_stride = l.tokens / SKV_PAGE_TOKENS;
	c.stride = list->stride;
	c.heads = sh->n_kv_heads;
	c.group = sh->n_heads / sh->n_kv_heads;
	if (b->n > 0)
		stamp_kernel<<<dim3(c.heads, b->n), THREADS, 0, stream_of(work)>>>(c);
}
