/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/evict/evict.c - decides which entries of a kv head an eviction retains, and marks the others as evicted.
 */
#include <math.h>
#include "kernels/host/evict/evict.h"
#include "kernels/host/evict/slot-meta.h"
#include "kernels/host/select/topk-key.h"

struct evict_params {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const struct skv_evict_rule *rule;
	const float *rank; /* ranks, or NULL: entries are evicted by their scores */
	uint32_t stride;
	struct per_thread space;
};

/*
 * Returns the lowest pos among the `recent` latest of n entries; `recent` must be below n. In the usual case the latest
 * entries have consecutive positions, and no selection is needed.
 */
static uint32_t first_recent(struct topk_keys *t, struct meta_iter now, uint32_t n, uint32_t recent)
{
	uint32_t last = 0, since = 0, found = 0;

	for (uint32_t u = 0; u < n; u++) {
		t->part[u] = meta_next(&now)->pos;
		last = skv_max(last, t->part[u]);
	}
	if (recent == 0)
		return last + 1;
	since = last + 1 - recent;
	for (uint32_t u = 0; u < n; u++)
		found += t->part[u] >= since;
	return found == recent ? since : ISA(kth)(t->part, n, &recent);
}

/* The decision which entries of a kv head are retained. */
struct verdict {
	uint32_t since;  /* entries with this pos or a higher one are retained */
	uint32_t pinned; /* entries below this pos are pinned */
	/*
	 * true: all pinned entries are retained, and the entries that are not pinned compete; false: the pinned entries
	 * compete, and those that are not pinned are evicted
	 */
	bool pins_stay;
	uint64_t least;  /* entries that compete are retained if their key is at least this */
};

static bool competes(const struct verdict *v, uint32_t pos)
{
	return pos < v->since && (pos < v->pinned) != v->pins_stay;
}

static struct verdict decide(const struct evict_params *p, const struct skv_kseq *s, uint32_t h, const float *rank, uint32_t n,
                             struct topk_keys *t)
{
	struct meta_iter now = meta_from(p->sh, s, h, s->set, 0), again = now, once_more = now;
	const uint32_t recent = skv_recent_of(p->rule, s->n_retained);
	struct verdict v = {.since = first_recent(t, now, n, recent), .pinned = s->pinned};
	uint32_t pins = 0, want = s->n_retained - recent, m = 0;

	for (uint32_t u = 0; u < n; u++) {
		const uint32_t pos = meta_next(&again)->pos;
		pins += pos < v.since && pos < v.pinned;
	}
	v.pins_stay = pins <= want;
	if (v.pins_stay)
		want -= pins;
	for (uint32_t u = 0; u < n; u++) {
		const struct skv_slot_meta meta = *meta_next(&once_more);
		t->key[m] = topk_key(rank ? rank[u] : meta.score, meta.pos, p->rule->evict_older);
		m += competes(&v, meta.pos);
	}
	v.least = topk_threshold(t, m, want);
	return v;
}

static void evict_item(void *ctx, uint32_t item, int thread)
{
	const struct evict_params *p = ctx;
	const uint32_t h = item % p->sh->n_kv_heads;
	const struct skv_kseq *s = &p->batch->seq[item / p->sh->n_kv_heads];
	const float *rank = p->rank ? p->rank + (size_t)item * p->stride : NULL;
	const uint32_t n = entries_of(s->len, p->rule->granularity);
	struct carve space = thread_begin(&p->space, thread);
	struct meta_iter now = meta_from(p->sh, s, h, s->set, 0);
	struct topk_keys t;

	if (s->n_retained >= n)
		return;
	topk_keys_carve(&space, n, &t);
	const struct verdict v = decide(p, s, h, rank, n, &t);
	for (uint32_t u = 0; u < n; u++) {
		struct skv_slot_meta *meta = meta_next(&now);
		const float score = rank ? rank[u] : meta->score;
		const bool stays = competes(&v, meta->pos) ? topk_key(score, meta->pos, p->rule->evict_older) >= v.least
		                                           : meta->pos >= v.since || v.pins_stay;
		if (!stays)
			meta->pos |= SKV_SLOT_EVICTED;
		else if (p->rule->reset_scores)
			meta->score = 0;
	}
}

void ISA(evict)(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_evict_rule *rule,
                const float *rank, uint32_t stride, const struct skv_workspace *work)
{
	struct carve c = carve_begin(work);
	struct evict_params p = {.sh = sh, .batch = batch, .rule = rule, .rank = rank, .stride = stride};

	p.space = per_thread(&c, work->threads, topk_keys_carve(NULL, batch->max_len, NULL));
	skv_run(meta_threads(sh, batch, work), batch->n * sh->n_kv_heads, evict_item, &p);
}

size_t ISA(evict_bytes)(uint32_t max_len, int threads)
{
	return (size_t)threads * topk_keys_carve(NULL, max_len, NULL);
}
