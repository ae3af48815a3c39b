/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/packs.c - when tokens are packed, and unpacked.
 *
 * A decode step packs at its end what its commit will say is packed: it writes codes and references beyond those of the last
 * commit, and evicts the pages of the rows with the commit. What a prompt brought is packed before the first decode step
 * after it, in steps without tokens; and what a policy finds packed in another way than it packs is unpacked so.
 *
 * A sequence packs if all of its tokens are there, in order, in all layers that would pack: as rows, or packed. Any other
 * stays in rows, and runs the same plans.
 */
#include "internal.h"

#include <string.h>

/* ---- of a sequence --------------------------------------------------------------------------- */

#define SLICE 4096u /* tokens that a quiet step packs: their pages are free for the next one */

uint32_t seq_coded(const struct skv_seq *q, uint32_t layer)
{
	return q->about & SKV_ABOUT_SLOTS ? q->slots[layer].coded : 0;
}

/* And as of the open step's. */
static uint32_t next_coded(const struct skv_seq *q, uint32_t layer)
{
	return q->next_about & SKV_ABOUT_SLOTS ? q->next_slots[layer].coded : 0;
}

static bool within(const struct skv_layer_slots *x, uint32_t page)
{
	return page >= x->form.first && page < x->coded / SKV_PAGE_TOKENS;
}

bool packs_has(const struct skv_seq *q, uint32_t layer, uint32_t page)
{
	return (seq_coded(q, layer) > 0 && within(&q->slots[layer], page)) ||
	       (q->in_step && next_coded(q, layer) > 0 && within(&q->next_slots[layer], page));
}

const struct skv_codes *packs_code(const struct skv_seq *q, uint32_t layer)
{
	const struct policy *p = seq_policy(q);

	if (q->unpacking)
		return seq_coded(q, layer) > 0 ? &q->unpacking->layer[layer].code : NULL;
	return q->packs && p->plan[layer].compress.kind ? &p->packing->layer[layer].code : NULL;
}

static bool packed(const struct skv_seq *q)
{
	for (uint32_t layer = 0; layer < q->layout.n_layers; layer++)
		if (seq_coded(q, layer) > 0)
			return true;
	return false;
}

/* Is what the sequence has packed as its policy packs? */
static bool as_planned(const struct skv_seq *q)
{
	const struct policy *p = seq_policy(q);

	for (uint32_t layer = 0; layer < q->layout.n_layers; layer++) {
		struct skv_form f;

		if (seq_coded(q, layer) == 0)
			continue;
		if (!p->plan[layer].compress.kind || !packing_is(p->packing, q->mem))
			return false;
		f = packs_form(&p->plan[layer].compress, q->session->model.max_tokens);
		if (memcmp(&f, &q->slots[layer].form, sizeof(f)) != 0)
			return false;
	}
	return true;
}

/* Has the layer all of its tokens, in order, as rows or packed? What was let go cannot be referred to. */
static bool whole(const struct skv_seq *q, uint32_t layer)
{
	const struct skv_layer_slots *x = &q->slots[layer];

	if (q->about & SKV_ABOUT_SLOTS && (x->unit || x->live != q->len || x->extent != q->len))
		return false;
	for (uint32_t page = 0; page < skv_pages_of(q->len); page++)
		if (!packs_has(q, layer, page) && !skv_pte_resident(seq_table(q, layer)[page]))
			return false;
	return true;
}

static bool can_pack(const struct skv_seq *q)
{
	const struct policy *p = seq_policy(q);

	for (uint32_t layer = 0; layer < q->layout.n_layers; layer++)
		if (p->plan[layer].compress.kind && !whole(q, layer))
			return false;
	return p->n_pack > 0;
}

void packs_take_over(struct skv_seq *q)
{
	q->packs_known = false;
	q->packs = packed(q) && as_planned(q) && can_pack(q);
}

/* Each layer says what it has, if none has so far. */
static void begin_slots(struct skv_seq *q)
{
	const struct skv_layer_slots all = {.live = q->len, .extent = q->len, .awake = q->len};

	for (uint32_t layer = 0; !(q->about & SKV_ABOUT_SLOTS) && layer < q->layout.n_layers; layer++)
		q->slots[layer] = all;
	q->about |= SKV_ABOUT_SLOTS;
}

/* How it has packed is known now, and so is what a torn step has left of that. */
static int trim(struct skv_seq *q)
{
	bool any = pages_trim(q);
	int e = seq_check_pages(q);

	return e == 0 && any && q->session->device ? device_seq_refresh(q) : e;
}

static int unpack(struct skv_session *s, struct skv_seq *q)
{
	int e = packing_of(q, &q->unpacking);

	if (e < 0)
		return e;
	e = trim(q);
	if (e == 0)
		e = slots_quiet(s, q, QUIET_UNPACK);
	packing_free(q->unpacking);
	q->unpacking = NULL;
	return e;
}

int packs_settle(struct skv_session *s, struct skv_seq *q)
{
	if (q->packs_known || !packed(q) || (as_planned(q) && can_pack(q)))
		return 0;
	return unpack(s, q);
}

/* Does the sequence pack? What it has packed already is as its policy packs. */
static int find_out(struct skv_seq *q)
{
	q->packs = can_pack(q);
	return q->packs ? trim(q) : 0;
}

/* Does a layer lag behind where a decode step wants it? */
static bool behind(const struct skv_seq *q)
{
	const struct policy *p = seq_policy(q);

	for (uint32_t layer = 0; layer < q->layout.n_layers; layer++)
		if (seq_coded(q, layer) < packs_coded(&p->plan[layer].compress, q->len))
			return true;
	return false;
}

int packs_ready(struct skv_session *s, struct skv_seq *q, bool prompt)
{
	int e = 0;

	if (!q->packs_known) {
		e = find_out(q);
		if (e < 0)
			return e;
		q->packs_known = true;
	}
	if (!q->packs)
		return 0;
	begin_slots(q);
	while (!prompt && e == 0 && behind(q))
		e = slots_quiet(s, q, QUIET_PACK);
	return e;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static void pack_up_to(const struct skv_seq *q, uint32_t layer, uint32_t coded, struct skv_layer_slots *next)
{
	if (coded <= next->coded)
		return;
	next->coded = coded;
	next->form = packs_form(&seq_policy(q)->plan[layer].compress, q->session->model.max_tokens);
}

void packs_schedule(struct skv_seq *q, uint32_t layer, bool decodes, struct skv_kseq *ks, struct skv_layer_slots *next)
{
	const struct skv_compress *plan = &seq_policy(q)->plan[layer].compress;

	next->coded = seq_coded(q, layer);
	next->form = q->slots[layer].form;
	if (q->packs && decodes)
		pack_up_to(q, layer, packs_coded(plan, q->len + q->n_new), next);
	ks->coded = seq_coded(q, layer);
	ks->pack = next->coded;
}

void packs_schedule_quiet(const struct skv_seq *q, uint32_t layer, struct skv_layer_slots *next)
{
	const struct skv_compress *plan = &seq_policy(q)->plan[layer].compress;
	uint32_t from = next->coded > packs_first(plan) ? next->coded : packs_first(plan);
	uint32_t coded = packs_coded(plan, q->len);

	if (q->quiet == QUIET_PACK)
		pack_up_to(q, layer, coded < from + SLICE ? coded : from + SLICE, next);
	else if (q->quiet == QUIET_UNPACK) {
		next->coded = 0;
		next->form = (struct skv_form){0};
	}
}

void packs_evict(struct skv_seq *q)
{
	for (uint32_t layer = 0; layer < q->layout.n_layers; layer++) {
		const struct skv_layer_slots *next = &q->next_slots[layer];
		uint32_t from = seq_coded(q, layer) / SKV_PAGE_TOKENS;

		if (next_coded(q, layer) <= seq_coded(q, layer))
			continue;
		if (!packed(q))
			packing_sign(seq_policy(q)->packing, q->mem);
		for (uint32_t page = from > next->form.first ? from : next->form.first;
		     page < next->coded / SKV_PAGE_TOKENS; page++)
			pages_evict(q, layer, page);
	}
}

/* Does a sequence of the group pack in this layer? */
static bool group_packs_now(const struct skv_session *s, const struct group *g, uint32_t layer)
{
	for (uint32_t i = 0; group_packs(g, layer) && i < g->n; i++)
		if (layer_kseq(s, layer, g->first + i)->pack > layer_kseq(s, layer, g->first + i)->coded)
			return true;
	return false;
}

/* The layers of a class at once. */
static void pack_class(struct skv_session *s, const struct group *g, uint32_t class)
{
	struct skv_shape shapes[SKV_MAX_LAYERS];
	struct skv_batch batch;
	uint32_t n = 0, first = 0;

	for (uint32_t layer = 0; layer < s->model.n_layers; layer++) {
		if (s->step.class_of[layer] != class || !group_packs_now(s, g, layer))
			continue;
		first = n == 0 ? layer : first;
		shapes[n++] = coded_shape(s, layer, g->policy->packing);
	}
	if (n == 0)
		return;
	batch = group_decoding(s, g, first);
	s->kernels->pack(shapes, n, &batch, &s->step.work);
}

void packs_end(struct skv_session *s)
{
	for (uint32_t i = 0; i < s->step.n_groups; i++) {
		const struct group *g = &s->step.group[i];

		if (!g->packs)
			continue;
		for (uint32_t class = 0; class < s->step.n_classes; class++)
			pack_class(s, g, class);
		for (uint32_t j = 0; j < g->n; j++)
			packs_evict(s->step.seqs[g->first + j]);
	}
}
