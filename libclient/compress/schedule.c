/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/compress/schedule.c - which tokens of a sequence are compressed, and which of them a step compresses.
 *
 * A sequence compresses if every layer whose plan compresses still has all of the sequence's tokens, in order, as rows
 * or compressed. In a sequence that lacks tokens in such a layer, all tokens stay rows; its layers otherwise attend as
 * the same plans say.
 */
#include "libclient/compress/schedule.h"

#include <string.h>

#include "libclient/compress/compressed-lengths.h"
#include "libclient/compress/compressor.h"
#include "libclient/seq.h"

/* maximum of tokens that one maintenance transaction compresses; the next one can reuse the pages of their rows */
#define SLICE 4096u

static bool within(const struct skv_layer_slots *x, uint32_t page)
{
	return page >= x->form.first && page < x->n_compressed / SKV_PAGE_TOKENS;
}

bool compress_has_page(const struct skv_seq *q, uint32_t layer, uint32_t page)
{
	return (seq_compressed(q, layer) > 0 && within(&q->slots[layer], page)) ||
	       (q->in_step && seq_next_compressed(q, layer) > 0 && within(&q->next_slots[layer], page));
}

const struct skv_codec *compress_code(const struct skv_seq *q, uint32_t layer)
{
	const struct policy *p = seq_policy(q);

	if (q->compress.from)
		return seq_compressed(q, layer) > 0 ? &q->compress.from->layer[layer].code : NULL;
	return q->compress.on && p->plan[layer].compress.kind ? &p->compressor->layer[layer].code : NULL;
}

struct records compress_records_of(const struct skv_seq *q, enum skv_page_kind group, uint32_t layer, uint32_t coded)
{
	struct skv_shape shape = q->session->shape;

	shape.codec = compress_code(q, layer);
	return shape.codec ? compress_records(&shape, group, coded) : (struct records){.each = 1};
}

bool compress_any(const struct skv_seq *q)
{
	for (uint32_t layer = 0; layer < q->layout.n_layers; layer++)
		if (seq_compressed(q, layer) > 0)
			return true;
	return false;
}

bool compress_as_planned(const struct skv_seq *q)
{
	const struct policy *p = seq_policy(q);

	for (uint32_t layer = 0; layer < q->layout.n_layers; layer++) {
		const struct skv_form *f;

		if (seq_compressed(q, layer) == 0)
			continue;
		if (!p->plan[layer].compress.kind || !compressor_matches(p->compressor, q->mem))
			return false;
		f = &p->compressor->layer[layer].form;
		if (memcmp(f, &q->slots[layer].form, sizeof(*f)) != 0)
			return false;
	}
	return true;
}

/*
 * Does the layer have all tokens of the sequence, in order, as rows or compressed? Evicted tokens cannot be references.
 */
static bool whole(const struct skv_seq *q, uint32_t layer)
{
	const struct skv_layer_slots *x = &q->slots[layer];

	if (q->about & SKV_ABOUT_SLOTS && (x->granularity || x->live != q->len || x->slot_end != q->len))
		return false;
	for (uint32_t page = 0; page < skv_pages_of(q->len); page++)
		if (!compress_has_page(q, layer, page) && !skv_pte_resident(seq_table(q, layer)[page]))
			return false;
	return true;
}

bool compress_possible(const struct skv_seq *q)
{
	const struct policy *p = seq_policy(q);

	for (uint32_t layer = 0; layer < q->layout.n_layers; layer++)
		if (p->plan[layer].compress.kind && !whole(q, layer))
			return false;
	return p->n_compress > 0;
}

void compress_take_over(struct skv_seq *q)
{
	q->compress.known = false;
	q->compress.on = compress_any(q) && compress_as_planned(q) && compress_possible(q);
}

/* ---- a step ---------------------------------------------------------------------------------- */

static void compress_up_to(const struct skv_seq *q, uint32_t layer, uint32_t coded, struct skv_layer_slots *next)
{
	if (coded <= next->n_compressed)
		return;
	next->n_compressed = coded;
	next->form = seq_policy(q)->compressor->layer[layer].form;
}

void compress_next(const struct skv_seq *q, uint32_t layer, bool decodes, struct skv_layer_slots *next)
{
	const struct skv_compress *plan = &seq_policy(q)->plan[layer].compress;

	next->n_compressed = seq_compressed(q, layer);
	next->form = q->slots[layer].form;
	if (q->compress.on && decodes)
		compress_up_to(q, layer, compress_end(plan, q->len + q->n_new), next);
}

void compress_schedule(struct skv_seq *q, uint32_t layer, bool decodes, struct skv_kseq *ks,
                       struct skv_layer_slots *next)
{
	compress_next(q, layer, decodes, next);
	ks->n_compressed = seq_compressed(q, layer);
	ks->compress_to = next->n_compressed;
}

void compress_schedule_maintenance(const struct skv_seq *q, uint32_t layer, struct skv_layer_slots *next)
{
	const struct skv_compress *plan = &seq_policy(q)->plan[layer].compress;
	uint32_t from = next->n_compressed > compress_first(plan) ? next->n_compressed : compress_first(plan);
	uint32_t coded = q->compress.sealing && plan->kind ? q->compress.sealing : compress_end(plan, q->len);

	if (q->maintenance == MAINTENANCE_COMPRESS)
		compress_up_to(q, layer, coded < from + SLICE ? coded : from + SLICE, next);
	else if (q->maintenance == MAINTENANCE_DECOMPRESS) {
		next->n_compressed = 0;
		next->form = (struct skv_form){0};
	}
}
