/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/evict/touch-pages.c - decides which pages of a kv head matter in a step, and which pages the head
 * attends to (RaaS).
 */
#include <math.h>
#include "kernels/host/evict/evict.h"
#include "kernels/host/evict/slot-meta.h"
#include "kernels/host/runtime/simd.h"
#include "kernels/host/select/topk-key.h"

struct touch_params {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const struct skv_scores *scores;
	const struct skv_touch_rule *rule;
	const struct skv_index_list *list;
	struct per_thread space;
};

/* The buffers of one thread, with an element for each page, rounded up to whole vectors. */
struct pages {
	struct topk_keys keys;
	float *weight, *part;
	uint32_t *pos;
};

static size_t pages_carve(struct carve *at, uint32_t pages, struct pages *p)
{
	const size_t bytes = (pages + VL - 1) / VL * VL * sizeof(float);
	const size_t keys = topk_keys_carve(at, pages, at ? &p->keys : NULL);

	if (at) {
		p->weight = carve(at, bytes);
		p->part = carve(at, bytes);
		p->pos = carve(at, bytes);
	}
	return keys + 3 * carve_size(bytes);
}

/* Adds the softmax of scale * score[0, n) to weight[0, n); `part` is workspace. */
static void add_weights(const float *score, uint32_t n, float scale, float *weight, float *part)
{
	const uint32_t end = (n + VL - 1) / VL * VL;
	vf top = v_set(-INFINITY), sum = {0};

	memcpy(part, score, n * sizeof *part);
	for (uint32_t u = n; u < end; u++)
		part[u] = -INFINITY;
	for (uint32_t u = 0; u < end; u += VL)
		top = v_max(v_loadf(part + u), top);
	const vf max = v_fold_runs(V_MAX, top, VL), base = v_select(max == v_set(-INFINITY), (vf){0}, max);
	for (uint32_t u = 0; u < end; u += VL) {
		const vf w = v_exp2((v_loadf(part + u) - base) * (scale * LOG2E));
		v_storef(part + u, w);
		sum += w;
	}
	const float total = v_fold_runs(V_SUM, sum, VL)[0];
	for (uint32_t u = 0; u < end && total > 0; u += VL)
		v_storef(weight + u, v_loadf(weight + u) + v_loadf(part + u) / total);
}

/*
 * Returns the threshold for the keys (made of weight and pos) of the k best of the pages whose pos is below `below`.
 * Page `but` does not take part.
 */
static uint64_t threshold_of(struct pages *p, uint32_t n, uint32_t below, uint32_t but, uint32_t k)
{
	uint32_t m = 0;

	for (uint32_t u = 0; u < n; u++) {
		p->keys.key[m] = topk_key(p->weight[u], p->pos[u], false);
		m += p->pos[u] < below && u != but;
	}
	return topk_threshold(&p->keys, m, k);
}

/* Lists all pages except pinned pages that are not among the best pinned ones; the partial page comes last. */
static void list_pages(const struct touch_params *x, const struct skv_kseq *s, uint32_t item, struct pages *p, uint32_t n,
                       uint32_t partial)
{
	const struct skv_touch_rule *rule = x->rule;
	const bool some = rule->pinned.share > 0 || rule->pinned.count > 0;
	const uint32_t want = some ? skv_budget_of(rule->pinned, skv_pages_of(s->n_tokens), rule->pinned_floor) : 0;
	const uint64_t least = some ? threshold_of(p, n, s->pinned, partial, want) : 0;
	uint32_t *ids = x->list->ids + (size_t)item * x->list->stride, m = 0;

	for (uint32_t u = 0; u < n; u++) {
		const bool listed = p->pos[u] >= s->pinned || topk_key(p->weight[u], p->pos[u], false) >= least;
		ids[m] = u;
		m += listed && u != partial;
	}
	ids[m] = partial;
	x->list->count[item] = m + 1;
}

static void touch_item(void *ctx, uint32_t item, int thread)
{
	const struct touch_params *x = ctx;
	const struct skv_shape *sh = x->sh;
	const uint32_t h = item % sh->n_kv_heads, i = item / sh->n_kv_heads, group = sh->n_heads / sh->n_kv_heads;
	const struct skv_kseq *s = &x->batch->seq[i];
	const uint32_t n = skv_pages_of(s->len);
	const float *score = x->scores->page + ((size_t)i * sh->n_heads + h * group) * x->scores->page_stride;
	struct carve space = thread_begin(&x->space, thread);
	struct meta_iter now = meta_from(sh, s, h, s->set, 0), again = now;
	uint32_t partial = 0;
	uint64_t least = 0;
	struct pages p;

	pages_carve(&space, n, &p);
	memset(p.weight, 0, (n + VL - 1) / VL * VL * sizeof *p.weight);
	for (uint32_t g = 0; g < group; g++)
		add_weights(score + g * x->scores->page_stride, n, x->rule->scale, p.weight, p.part);
	for (uint32_t u = 0; u < n; u++) {
		p.weight[u] /= (float)group;
		p.pos[u] = meta_next(&now)->pos;
		partial = p.pos[u] > p.pos[partial] ? u : partial;
	}
	if (x->rule->ratio > 0)
		least = threshold_of(&p, n, UINT32_MAX, n, skv_budget_of((struct skv_budget){.share = x->rule->ratio}, n, 1));
	for (uint32_t u = 0; u < n; u++) {
		struct skv_slot_meta *meta = meta_next(&again);
		const bool matters = x->rule->ratio > 0 ? topk_key(p.weight[u], p.pos[u], false) >= least
		                                        : p.weight[u] > x->rule->alpha;
		if (matters || (u == partial && s->len % SKV_PAGE_TOKENS == 1))
			meta->score = (float)s->n_tokens;
	}
	list_pages(x, s, item, &p, n, partial);
}

void ISA(touch_pages)(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_scores *scores,
                      const struct skv_touch_rule *rule, struct skv_index_list *list, const struct skv_workspace *work)
{
	const uint32_t pages = skv_pages_of(batch->max_len);
	struct carve c = carve_begin(work);
	struct touch_params x = {.sh = sh, .batch = batch, .scores = scores, .rule = rule, .list = list};

	list->max_count = pages;
	list->last_partial = true;
	x.space = per_thread(&c, work->threads, pages_carve(NULL, pages, NULL));
	skv_run(meta_threads(sh, batch, work), batch->n * sh->n_kv_heads, touch_item, &x);
}

size_t ISA(touch_bytes)(uint32_t max_len, int threads)
{
	return (size_t)threads * pages_carve(NULL, skv_pages_of(max_len), NULL);
}
