/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/packed.c - attention of layers that pack: rows are rebuilt beside the layer's pages, and attended to densely
 * there. Decode rows over K and V in few bits need none of this: the dense kernels read these as they are. Nor do decode
 * rows that attend to a list of tokens, where the kernels rebuild and attend in one.
 *
 * All layers use the same scratch, one after the other. Of decode rows that attend to a list of tokens it has those
 * tokens of all sequences; of those that attend to everything all rows of some sequences at a time, and of prompts, of one.
 */
#include "internal.h"

/* ---- room ------------------------------------------------------------------------------------ */

#define ROOM ((size_t)256 << 20) /* for whole sequences, if there is more than one at a time */

/* Of how many sequences a layer's decode rows are rebuilt at a time: of lists, all; whole ones are large. */
static uint32_t at_once(const struct skv_session *s, const struct group *g, uint32_t layer, const struct skv_batch *b)
{
	size_t one = skv_pages_of(b->max_len) * s->shape.page_bytes;
	size_t n = one < ROOM ? ROOM / one : 1;

	return g->policy->plan[layer].attend == SKV_ATTEND_TOKENS || n > b->n ? b->n : (uint32_t)n;
}

/* Does the layer attend to listed tokens with nothing rebuilt in memory? */
static bool fused(const struct skv_session *s, const struct group *g, uint32_t layer)
{
	const struct skv_shape shape = coded_shape(s, layer, g->policy->packing);

	return g->policy->plan[layer].attend == SKV_ATTEND_TOKENS && s->kernels->fuses && s->kernels->fuses(&shape);
}

/* Pages that the group's sequences need at a time in a layer that packs. */
static uint64_t decode_pages(struct skv_session *s, const struct group *g, uint32_t layer)
{
	const struct skv_batch b = group_decoding(s, g, layer);
	uint64_t pages = skv_pages_of(packing_most(g->policy, layer, b.max_len));

	if (b.n == 0 || g->policy->plan[layer].compress.kind == SKV_COMPRESS_QUANT || fused(s, g, layer))
		return 0;
	return pages * at_once(s, g, layer, &b);
}

/* And those whose prompts read what is packed, of which one is rebuilt at a time. */
static uint64_t prompt_pages(struct skv_session *s, const struct group *g, uint32_t layer)
{
	bool packed = false;

	for (uint32_t i = g->first_prompt; i < g->first_prompt + g->n_prompts; i++)
		packed |= !s->step.seqs[i]->quiet && layer_kseq(s, layer, i)->coded > 0;
	return packed ? skv_pages_of(group_prompts(s, g, layer).max_len) : 0;
}

static uint64_t pages_needed(struct skv_session *s, const struct group *g)
{
	uint64_t most = 0;

	for (uint32_t layer = 0; layer < s->model.n_layers; layer++) {
		uint64_t pages;

		if (!group_packs(g, layer))
			continue;
		pages = decode_pages(s, g, layer);
		most = pages > most ? pages : most;
		pages = prompt_pages(s, g, layer);
		most = pages > most ? pages : most;
	}
	return most;
}

int packed_prepare(struct skv_session *s)
{
	struct rebuilt *r = &s->step.rebuilt;
	uint64_t pages = 0;
	size_t bytes;
	uint8_t *at;
	int e;

	for (uint32_t i = 0; i < s->step.n_groups; i++) {
		uint64_t of_group = pages_needed(s, &s->step.group[i]);

		pages = of_group > pages ? of_group : pages;
	}
	if (pages == 0)
		return 0;
	bytes = pages * (s->shape.page_bytes + sizeof(skv_pte)) + s->step.n * sizeof(struct skv_kseq) + 128;
	e = step_grow(s, &r->mem, &r->bytes, bytes);
	if (e < 0)
		return e;
	at = r->mem;
	r->pool = at;
	at += pages * s->shape.page_bytes; /* whole pages: aligned as these are */
	r->seq = (struct skv_kseq *)at;
	at += (s->step.n * sizeof(struct skv_kseq) + 63) / 64 * 64;
	r->table = (skv_pte *)at;
	return 0;
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Of `most` tokens at most in each sequence: those of the list, or with NULL all. */
static void attend_rebuilt(struct skv_session *s, const struct skv_shape *shape, const struct skv_batch *batch,
                           const struct skv_list *list, uint32_t most, const struct skv_attn *a, bool prompt)
{
	const struct rebuilt *r = &s->step.rebuilt;
	const struct skv_rebuilt to = {.pool = r->pool, .pages = skv_pages_of(most), .seq = r->seq, .table = r->table};
	const struct skv_kernels *k = s->kernels;
	struct skv_shape rows = *shape;
	struct skv_batch over = *batch;

	k->rebuild(shape, batch, list, &to, &s->step.work);
	rows.pool = r->pool;
	rows.code = NULL;
	over.seq = r->seq;
	over.max_len = most;
	if (prompt)
		k->prefill_dense(&rows, &over, a->q, a->out, &s->step.work);
	else
		k->decode_dense(&rows, &over, a->q, a->out, NULL, &s->step.work);
}

void packed_decode(struct skv_session *s, const struct group *g, uint32_t layer, const struct skv_list *list,
                   const struct skv_attn *a)
{
	const struct skv_batch batch = group_decoding(s, g, layer);
	const struct skv_shape shape = coded_shape(s, layer, g->policy->packing);

	if (fused(s, g, layer)) {
		s->kernels->decode_codes(&shape, &batch, a->q, a->out, list, &s->step.work);
		return;
	}
	if (list) {
		attend_rebuilt(s, &shape, &batch, list, packing_most(g->policy, layer, batch.max_len), a, false);
		return;
	}
	for (uint32_t i = 0, n = at_once(s, g, layer, &batch); i < batch.n; i += n) {
		const struct skv_batch some = batch_part(batch, i, batch.n - i < n ? batch.n - i : n);

		attend_rebuilt(s, &shape, &some, NULL, batch.max_len, a, false);
	}
}

/* A prompt that nothing was packed before is attended to where it is. */
void packed_prompts(struct skv_session *s, const struct group *g, uint32_t layer, const struct skv_attn *a)
{
	const struct skv_batch prompts = group_prompts(s, g, layer);
	const struct skv_shape shape = coded_shape(s, layer, g->policy->packing);
	struct skv_shape rows = layer_shape(s, layer);

	for (uint32_t i = 0; i < prompts.n; i++) {
		const struct skv_batch one = batch_part(prompts, i, 1);

		if (layer_kseq(s, layer, g->first_prompt + i)->coded > 0)
			attend_rebuilt(s, &shape, &one, NULL, prompts.max_len, a, true);
		else
			s->kernels->prefill_dense(&rows, &one, a->q, a->out, &s->step.work);
	}
}
