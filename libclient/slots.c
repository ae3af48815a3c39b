/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/slots.c - layers that keep units: tokens, or pages of single kv heads, in slots (kernels/kernels.h).
 *
 * A step has few kernels more, before a layer's attention: slots_place(). Everything else is in steps without tokens
 * ("quiet"), each with a commit of its own, which change how a sequence lies and not what it says. They are rare,
 * for another policy or a prompt after evictions, and so they wait for the device, and need not be fast.
 *
 * What a policy that keeps units finds is one of three:
 *   - notes of the same units, whoever made them: it goes on with them
 *   - notes of other units, or notes that it does not want: what is out of order or has gaps is settled first
 *   - no notes: a slot's place is taken for its token's position, which it is unless units have gone before
 */
#include "internal.h"

#include <errno.h>
#include <string.h>

static struct skv_slots slots_of(const struct skv_session *s, uint32_t unit)
{
	return (struct skv_slots){.unit = unit, .slot = s->step.slot};
}

/*
 * May the page that is being filled be among others? It is the last one as long as no page was taken out, and
 * behind a prompt.
 */
static bool amiss(const struct skv_seq *q, uint32_t layer)
{
	const struct skv_layer_slots *x = &q->slots[layer];

	return x->unit > 1 && x->live % x->unit != 0 && x->live < q->len && !(q->about & SKV_ABOUT_PROMPTED);
}

/* ---- attention ------------------------------------------------------------------------------- */

void slots_place(struct skv_session *s, const struct group *g, uint32_t layer, const struct skv_attn *a)
{
	const struct skv_shape shape = layer_shape(s, layer);
	const struct skv_batch decoding = group_decoding(s, g, layer), prompts = group_prompts(s, g, layer);
	const struct skv_slots to = slots_of(s, g->policy->plan[layer].evict.granularity);
	const struct skv_kernels *k = s->kernels;
	bool bounds = plan_keeps_bounds(&g->policy->plan[layer]);

	if (decoding.n > 0) {
		k->place(&shape, &decoding, &to, &s->step.work);
		k->append(&shape, &decoding, &to, a->k, a->v, &s->step.work);
		if (bounds)
			k->update_bounds(&shape, &decoding, &to, &s->step.work);
	}
	if (prompts.n > 0) {
		k->place_prompt(&shape, &prompts, &to, &s->step.work);
		k->append(&shape, &prompts, NULL, a->k, a->v, &s->step.work);
		if (bounds)
			k->update_bounds(&shape, &prompts, NULL, &s->step.work);
	}
}

/* ---- steps without tokens -------------------------------------------------------------------- */

/* Tokens in slots that have a page. */
static uint32_t resident_tokens(const struct skv_seq *q, uint32_t layer, uint32_t extent)
{
	uint32_t n = 0;

	for (uint32_t page = 0; page < skv_pages_of(extent); page++) {
		uint32_t left = extent - page * SKV_PAGE_TOKENS;

		if (skv_pte_resident(seq_table(q, layer)[page]))
			n += left < SKV_PAGE_TOKENS ? left : SKV_PAGE_TOKENS;
	}
	return n;
}

/* What the layer's slots will be. */
static struct skv_layer_slots after(const struct skv_seq *q, uint32_t layer, enum quiet kind)
{
	struct skv_layer_slots x = q->slots[layer];
	uint32_t unit = seq_policy(q)->plan[layer].evict.granularity;

	if (kind == QUIET_SETTLE)
		x.extent = x.live;
	else if (kind == QUIET_LIFT && amiss(q, layer))
		x.extent = (skv_pages_of(x.live) + 2) * SKV_PAGE_TOKENS;
	else if (kind == QUIET_NOTE && unit && x.unit != unit)
		x.live = x.awake = resident_tokens(q, layer, x.extent);
	if (kind == QUIET_NOTE)
		x.unit = unit;
	packs_schedule_quiet(q, layer, &x);
	return x;
}

uint32_t slots_about(const struct skv_seq *q)
{
	uint32_t about = (q->about & ~(SKV_ABOUT_SLOTS | SKV_ABOUT_READING)) | (q->quiet == QUIET_NOTE ? SKV_ABOUT_PROMPTED : 0);

	for (uint32_t layer = 0; layer < q->layout.n_layers; layer++) {
		const struct skv_layer_slots *next = &q->next_slots[layer];

		if (next->unit || next->live != q->len || next->coded > 0)
			about |= SKV_ABOUT_SLOTS;
		if (q->quiet == QUIET_SETTLE && q->gaps && next->unit > 1)
			about &= ~SKV_ABOUT_PROMPTED; /* a page has come down to where another was: see amiss() */
	}
	return about;
}

static void pack(struct skv_session *s, const struct skv_seq *q, uint32_t layer, const struct skv_batch *b)
{
	const struct skv_rebuilt where_it_was = {.pool = NULL};
	struct skv_shape shape = layer_shape(s, layer);

	shape.code = packs_code(q, layer);
	if (q->quiet == QUIET_PACK)
		s->kernels->pack(&shape, 1, b, &s->step.work);
	else
		s->kernels->rebuild(&shape, b, NULL, &where_it_was, &s->step.work);
}

static void run(struct skv_session *s, struct skv_seq *q, uint32_t layer)
{
	const struct skv_shape shape = layer_shape(s, layer);
	const struct skv_batch *b = &layer_class(s, layer)->all;
	const struct skv_layer_slots *was = &q->slots[layer], *next = &q->next_slots[layer];
	const struct skv_slots to = slots_of(s, next->unit);
	struct skv_work *w = &s->step.work;

	if (q->quiet == QUIET_BIND && plan_keeps_bounds(&seq_policy(q)->plan[layer]))
		s->kernels->update_bounds(&shape, b, NULL, w);
	if (next->coded != was->coded)
		pack(s, q, layer, b);
	if (!next->unit)
		return;
	if (was->unit != next->unit)
		s->kernels->note_resident(&shape, b, &to, w);
	else if (q->quiet == QUIET_LIFT && next->extent > was->extent)
		s->kernels->lift(&shape, b, w);
	else
		s->kernels->place(&shape, b, &to, w);
}

/* The kernels of a step that was entered, and its commit. */
static int carry(struct skv_session *s, struct skv_seq *q)
{
	bool holds = q->bounded && q->mem->state_epoch == q->epoch;
	int e = 0;

	for (uint32_t layer = 0; layer < s->model.n_layers; layer++)
		run(s, q, layer);
	if (s->device)
		e = device_wait(s);
	if (e < 0)
		return e;
	packs_evict(q);
	pages_evict_surplus(q);
	e = device_room_stale(s, q->n_evict);
	if (e < 0)
		return e;
	if (holds || q->quiet == QUIET_BIND)
		policy_state_of_commit(q);
	atomic_thread_fence(memory_order_release);
	step_commit(q, q->mem->next[q->epoch & 1]);
	return 0;
}

int slots_quiet(struct skv_session *s, struct skv_seq *q, enum quiet kind)
{
	const struct skv_step_item it = {.seq = q};
	uint32_t demand;
	int e = device_settle(s);

	if (e < 0)
		return e;
	q->quiet = kind;
	for (uint32_t layer = 0; layer < s->model.n_layers; layer++)
		q->next_slots[layer] = after(q, layer, kind);
	e = step_enter(s, &it, 1, &demand);
	if (e == 0) {
		e = carry(s, q);
		if (e < 0)
			step_leave(s);
	}
	q->in_step = false;
	q->quiet = QUIET_NOT;
	if (kind == QUIET_SETTLE && e == 0)
		pages_unpark(q);
	if (e == 0)
		memset(q->gone, 0, q->layout.n_layers * sizeof(*q->gone));
	return e < 0 ? e : seq_check_pages(q);
}

/* ---- as the policy wants it ------------------------------------------------------------------ */

/* No slot below is free, and a page that is being filled is the last one. */
static int settle(struct skv_session *s, struct skv_seq *q)
{
	bool fragmented = q->gaps, disordered = false;
	int e = 0;

	for (uint32_t layer = 0; layer < s->model.n_layers; layer++) {
		fragmented |= q->slots[layer].live < q->slots[layer].extent;
		disordered |= amiss(q, layer);
		if (amiss(q, layer) && skv_pages_of(q->slots[layer].live) + 2 > q->layout.max_pages)
			return fail(-ENOSPC, "the sequence was made for %u tokens: too few to put its pages in order",
			            q->layout.max_tokens);
	}
	if (fragmented)
		e = slots_quiet(s, q, QUIET_SETTLE);
	if (disordered && e == 0)
		e = slots_quiet(s, q, QUIET_LIFT);
	if (disordered && e == 0)
		e = slots_quiet(s, q, QUIET_SETTLE);
	return e;
}

int slots_ready(struct skv_session *s, struct skv_seq *q, bool prompt)
{
	const struct policy *p = seq_policy(q);
	bool fits = true, binds = !q->bounded && p->n_keep_pages > 0;
	int e = 0;

	if (!(q->about & SKV_ABOUT_SLOTS) && p->n_keep == 0)
		return 0;
	for (uint32_t layer = 0; layer < s->model.n_layers; layer++) {
		uint32_t unit = p->plan[layer].evict.granularity;

		if (q->len == 0)
			q->slots[layer] = (struct skv_layer_slots){.unit = unit};
		else if (!(q->about & SKV_ABOUT_SLOTS))
			q->slots[layer] = (struct skv_layer_slots){.live = q->len, .extent = q->len, .awake = q->len};
		fits &= q->slots[layer].unit == unit;
	}
	if (q->len == 0) {
		q->about = p->n_keep > 0 ? SKV_ABOUT_SLOTS : 0;
		return 0;
	}
	if (prompt || binds || !fits || q->gaps)
		e = settle(s, q);
	if (!fits && e == 0)
		e = slots_quiet(s, q, QUIET_NOTE);
	if (q->gaps && e == 0)
		e = slots_quiet(s, q, QUIET_SETTLE);
	if ((prompt || binds) && e == 0)
		e = settle(s, q); /* closing gaps has moved pages */
	if (binds && e == 0)
		e = slots_quiet(s, q, QUIET_BIND);
	return e;
}
