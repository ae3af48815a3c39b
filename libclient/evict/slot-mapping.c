/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/evict/slot-mapping.c - the slot mapping of layers that evict tokens, or pages of single kv heads.
 *
 * In a step, slots_append() is all that runs for the slot mapping: a few kernels before a layer's attention.
 * Maintenance transactions, which evict_ready() runs before the step, do the rest.
 *
 * A policy that evicts single tokens or pages finds a layer in one of three states:
 *   - The layer has slot metadata of the policy's granularity, made by any policy. The policy continues with it.
 *   - The layer has metadata of another granularity, or metadata that the policy does not need. Slots with gaps or out
 *     of order are then compacted.
 *   - The layer has no metadata. Then a slot's number is taken as its token's position, which is right unless tokens at
 *     lower positions were evicted.
 */
#include "libclient/evict/slot-mapping.h"

#include <errno.h>

#include "libclient/error.h"
#include "libclient/feature.h"
#include "libclient/layer/layer.h"
#include "libclient/seq.h"
#include "libclient/step/maintenance.h"

/* ---- attention ------------------------------------------------------------------------------- */

void slots_append(const struct layer *l, bool prompts)
{
	const struct skv_slot_mapping to = {
		.granularity = l->plan->evict.granularity,
		.slot = prompts ? l->step->select.slot : l->batch->slot,
	};
	/* NULL: rows of prompts are stored in order, after all other rows */
	const struct skv_slot_mapping *at = prompts ? NULL : &to;
	const struct skv_batch *b = prompts ? &l->prefill : &l->decode;
	const struct skv_kernels *k = l->kernels;

	if (prompts)
		k->alloc_prompt_slots(&l->rows, b, &to, l->work);
	else
		k->alloc_slots(&l->rows, b, &to, l->work);
	k->append(&l->rows, b, at, l->attn->k, l->attn->v, l->work);
	if (l->bounds)
		k->update_bounds(&l->rows, b, at, l->work);
}

/* ---- as the policy wants it ------------------------------------------------------------------ */

/* Move tokens so that in all layers no slot below slot_end is free, and the partial page is the last one. */
static int compact(struct skv_session *s, struct skv_seq *q)
{
	bool fragmented = q->gaps, disordered = false;
	int e = 0;

	for (uint32_t layer = 0; layer < s->model.n_layers; layer++) {
		fragmented |= q->slots[layer].live < q->slots[layer].slot_end;
		disordered |= partial_page_inside(q, layer);
		if (partial_page_inside(q, layer) && skv_pages_of(q->slots[layer].live) + 2 > q->layout.max_pages)
			return error_set(-ENOSPC, "the sequence was made for %u tokens: too few to put its pages in order",
			            q->layout.max_tokens);
	}
	if (fragmented)
		e = maintenance_run(s, q, MAINTENANCE_COMPACT);
	if (disordered && e == 0)
		e = maintenance_run(s, q, MAINTENANCE_MOVE_PARTIAL);
	if (disordered && e == 0)
		e = maintenance_run(s, q, MAINTENANCE_COMPACT);
	return e;
}

/* Bring slots and slot metadata into the state that the policy's plans, and a prompt or a decode step, need. */
static int evict_ready(struct skv_seq *q, uint32_t n_tokens, bool prompt)
{
	const struct policy *p = seq_policy(q);
	struct skv_session *s = q->session;
	bool fits = true, binds = !q->has_state && p->n_evicting_pages > 0;
	int e = 0;

	(void)n_tokens;
	if (!(q->about & SKV_ABOUT_SLOTS) && p->n_evicting == 0)
		return 0;
	for (uint32_t layer = 0; layer < s->model.n_layers; layer++) {
		uint32_t granularity = p->plan[layer].evict.granularity;

		if (q->len == 0)
			q->slots[layer] = (struct skv_layer_slots){.granularity = granularity};
		else if (!(q->about & SKV_ABOUT_SLOTS))
			q->slots[layer] = (struct skv_layer_slots){.live = q->len, .slot_end = q->len,
			                                           .n_active = q->len};
		fits &= q->slots[layer].granularity == granularity;
	}
	if (q->len == 0) {
		q->about = p->n_evicting > 0 ? SKV_ABOUT_SLOTS : 0;
		return 0;
	}
	if (prompt || binds || !fits || q->gaps)
		e = compact(s, q);
	if (!fits && e == 0)
		e = maintenance_run(s, q, MAINTENANCE_SLOT_METADATA);
	if (q->gaps && e == 0)
		e = maintenance_run(s, q, MAINTENANCE_COMPACT);
	if ((prompt || binds) && e == 0)
		e = compact(s, q); /* the compaction that closed gaps has moved pages */
	if (binds && e == 0)
		e = maintenance_run(s, q, MAINTENANCE_BUILD_STATE);
	return e;
}

const struct feature evict_feature = {.ready = evict_ready};
