/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/evict/evict.c - which units of a kv head stay, and which pages matter.
 *
 * An item is one kv head of a sequence.
 */
#include <math.h>
#include "kernels/host/select/topk-key.h"
#include "kernels/host/evict/slot-meta.h"
#include "kernels/host/runtime/simd.h"

/* What all calls have in common. */
struct call {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	uint8_t *scratch; /* of each thread */
	size_t scratch_stride;
};

static struct carve scratch_of(const struct call *c, int thread)
{
	uint8_t *scratch = c->scratch + thread * c->scratch_stride;

	return (struct carve){scratch, scratch + c->scratch_stride};
}

/* ---- keep ------------------------------------------------------------------------------------ */

struct keep {
	struct call call;
	const struct skv_keep_by *by;
	const float *rank; /* or NULL: by value */
	uint32_t stride;
};

/* The lowest pos of the `recent` latest of n units, fewer than n. Mostly they come in a row. */
static uint32_t first_recent(struct choice *c, struct notes now, uint32_t n, uint32_t recent)
{
	uint32_t last = 0, since = 0, found = 0;

	for (uint32_t u = 0; u < n; u++) {
		c->part[u] = notes_next(&now)->pos;
		last = skv_max(last, c->part[u]);
	}
	if (recent == 0)
		return last + 1;
	since = last + 1 - recent;
	for (uint32_t u = 0; u < n; u++)
		found += c->part[u] >= since;
	return found == recent ? since : ISA(kth)(c->part, n, &recent);
}

/* What decides about the units of a kv head. */
struct verdict {
	uint32_t since;  /* pos from here on stay */
	uint32_t pinned; /* pos below this are pinned */
	bool pins_stay;  /* all of them: the others compete; else they do, and no other stays */
	uint64_t least;  /* of those that compete */
};

static bool competes(const struct verdict *v, uint32_t pos)
{
	return pos < v->since && (pos < v->pinned) != v->pins_stay;
}

static struct verdict decide(const struct keep *k, const struct skv_kseq *s, uint32_t h, const float *rank, uint32_t n,
                             struct choice *c)
{
	struct notes now = notes_from(k->call.sh, s, h, s->set, 0), again = now, once_more = now;
	const uint32_t recent = skv_recent_of(k->by, s->keep);
	struct verdict v = {.since = first_recent(c, now, n, recent), .pinned = s->pinned};
	uint32_t pins = 0, want = s->keep - recent, m = 0;

	for (uint32_t u = 0; u < n; u++) {
		const uint32_t pos = notes_next(&again)->pos;
		pins += pos < v.since && pos < v.pinned;
	}
	v.pins_stay = pins <= want;
	if (v.pins_stay)
		want -= pins;
	for (uint32_t u = 0; u < n; u++) {
		const struct skv_note note = *notes_next(&once_more);
		c->order[m] = order_of(rank ? rank[u] : note.value, note.pos, k->by->old_first);
		m += competes(&v, note.pos);
	}
	v.least = least_chosen(c, m, want);
	return v;
}

static void keep_item(void *ctx, uint32_t item, int thread)
{
	const struct keep *k = ctx;
	const uint32_t h = item % k->call.sh->n_kv_heads;
	const struct skv_kseq *s = &k->call.batch->seq[item / k->call.sh->n_kv_heads];
	const float *rank = k->rank ? k->rank + (size_t)item * k->stride : NULL;
	const uint32_t n = units_of(s->len, k->by->unit);
	struct carve scratch = scratch_of(&k->call, thread);
	struct notes now = notes_from(k->call.sh, s, h, s->set, 0);
	struct choice c;

	if (s->keep >= n)
		return;
	choice_carve(&scratch, n, &c);
	const struct verdict v = decide(k, s, h, rank, n, &c);
	for (uint32_t u = 0; u < n; u++) {
		struct skv_note *note = notes_next(&now);
		const float score = rank ? rank[u] : note->value;
		const bool stays = competes(&v, note->pos) ? order_of(score, note->pos, k->by->old_first) >= v.least
		                                           : note->pos >= v.since || v.pins_stay;
		if (!stays)
			note->pos |= SKV_NOTE_GONE;
		else if (k->by->forget)
			note->value = 0;
	}
}

void ISA(keep)(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_keep_by *by, const float *rank,
               uint32_t stride, const struct skv_work *work)
{
	struct carve c = carve_begin(work);
	struct keep k = {.call = {.sh = sh, .batch = batch}, .by = by, .rank = rank, .stride = stride};

	k.call.scratch_stride = choice_carve(NULL, batch->max_len, NULL);
	k.call.scratch = carve(&c, (size_t)work->threads * k.call.scratch_stride);
	skv_run(notes_threads(sh, batch, work), batch->n * sh->n_kv_heads, keep_item, &k);
}

/* ---- stamp ----------------------------------------------------------------------------------- */

struct stamp {
	struct call call;
	const struct skv_evidence *ev;
	const struct skv_stamp *how;
	const struct skv_list *list;
};

/* A thread's buffers, for pages: whole vectors. */
struct pages {
	struct choice choice;
	float *weight, *part;
	uint32_t *pos;
};

static size_t pages_carve(struct carve *at, uint32_t pages, struct pages *p)
{
	const size_t bytes = (pages + VL - 1) / VL * VL * sizeof(float);
	const size_t choice = choice_carve(at, pages, at ? &p->choice : NULL);

	if (at) {
		p->weight = carve(at, bytes);
		p->part = carve(at, bytes);
		p->pos = carve(at, bytes);
	}
	return choice + 3 * carve_size(bytes);
}

/* Add the softmax of scale * score[0, n) to weight. */
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
		const vf w = v_exp2((v_loadf(part + u) - base) * (scale * 1.44269504088896340736f));
		v_storef(part + u, w);
		sum += w;
	}
	const float total = v_fold_runs(V_SUM, sum, VL)[0];
	for (uint32_t u = 0; u < end && total > 0; u += VL)
		v_storef(weight + u, v_loadf(weight + u) + v_loadf(part + u) / total);
}

/* The lowest order, by weight, of the `want` best pages with a pos below `below`, page `but` aside. */
static uint64_t least_of(struct pages *p, uint32_t n, uint32_t below, uint32_t but, uint32_t want)
{
	uint32_t m = 0;

	for (uint32_t u = 0; u < n; u++) {
		p->choice.order[m] = order_of(p->weight[u], p->pos[u], false);
		m += p->pos[u] < below && u != but;
	}
	return least_chosen(&p->choice, m, want);
}

/* List all pages but those that are pinned and not among the best, the one being filled at the end. */
static void list_pages(const struct stamp *x, const struct skv_kseq *s, uint32_t item, struct pages *p, uint32_t n,
                       uint32_t filling)
{
	const struct skv_stamp *how = x->how;
	const bool some = how->pinned.share > 0 || how->pinned.count > 0;
	const uint32_t want = some ? skv_budget_of(how->pinned, skv_pages_of(s->all), how->pinned_floor) : 0;
	const uint64_t least = some ? least_of(p, n, s->pinned, filling, want) : 0;
	uint32_t *ids = x->list->ids + (size_t)item * x->list->stride, m = 0;

	for (uint32_t u = 0; u < n; u++) {
		const bool listed = p->pos[u] >= s->pinned || order_of(p->weight[u], p->pos[u], false) >= least;
		ids[m] = u;
		m += listed && u != filling;
	}
	ids[m] = filling;
	x->list->count[item] = m + 1;
}

static void stamp_item(void *ctx, uint32_t item, int thread)
{
	const struct stamp *x = ctx;
	const struct skv_shape *sh = x->call.sh;
	const uint32_t h = item % sh->n_kv_heads, i = item / sh->n_kv_heads, group = sh->n_heads / sh->n_kv_heads;
	const struct skv_kseq *s = &x->call.batch->seq[i];
	const uint32_t n = skv_pages_of(s->len);
	const float *score = x->ev->page + ((size_t)i * sh->n_heads + h * group) * x->ev->page_stride;
	struct carve scratch = scratch_of(&x->call, thread);
	struct notes now = notes_from(sh, s, h, s->set, 0), again = now;
	uint32_t filling = 0;
	uint64_t least = 0;
	struct pages p;

	pages_carve(&scratch, n, &p);
	memset(p.weight, 0, (n + VL - 1) / VL * VL * sizeof *p.weight);
	for (uint32_t g = 0; g < group; g++)
		add_weights(score + g * x->ev->page_stride, n, x->how->scale, p.weight, p.part);
	for (uint32_t u = 0; u < n; u++) {
		p.weight[u] /= (float)group;
		p.pos[u] = notes_next(&now)->pos;
		filling = p.pos[u] > p.pos[filling] ? u : filling;
	}
	if (x->how->ratio > 0)
		least = least_of(&p, n, UINT32_MAX, n, skv_budget_of((struct skv_budget){.share = x->how->ratio}, n, 1));
	for (uint32_t u = 0; u < n; u++) {
		struct skv_note *note = notes_next(&again);
		const bool matters = x->how->ratio > 0 ? order_of(p.weight[u], p.pos[u], false) >= least
		                                       : p.weight[u] > x->how->alpha;
		if (matters || (u == filling && s->len % SKV_PAGE_TOKENS == 1))
			note->value = (float)s->all;
	}
	list_pages(x, s, item, &p, n, filling);
}

void ISA(stamp)(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_evidence *ev,
                const struct skv_stamp *how, struct skv_list *list, const struct skv_work *work)
{
	const uint32_t pages = skv_pages_of(batch->max_len);
	struct carve c = carve_begin(work);
	struct stamp x = {.call = {.sh = sh, .batch = batch}, .ev = ev, .how = how, .list = list};

	list->most = pages;
	list->filling = true;
	x.call.scratch_stride = pages_carve(NULL, pages, NULL);
	x.call.scratch = carve(&c, (size_t)work->threads * x.call.scratch_stride);
	skv_run(notes_threads(sh, batch, work), batch->n * sh->n_kv_heads, stamp_item, &x);
}

size_t ISA(keep_bytes)(uint32_t max_len, int threads)
{
	const size_t keep = choice_carve(NULL, max_len, NULL), stamp = pages_carve(NULL, skv_pages_of(max_len), NULL);

	return (size_t)threads * (keep > stamp ? keep : stamp);
}
