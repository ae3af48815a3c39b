/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/compress/attend.c - attention of layers that compress: K and V are decompressed into scratch pages, to
 * which the dense kernels attend. Two cases need no scratch pages: the dense kernels read quantized K and V directly,
 * and for decode rows that attend to a list of tokens the backend may have a fused kernel, which decompresses and
 * attends at once.
 *
 * All layers use the same scratch pages, one layer after the other. For decode rows that attend to a list, the pages
 * hold the listed tokens of all sequences. For decode rows that attend to all tokens, they hold all tokens of a few
 * sequences at a time. For rows of a prompt, they hold all tokens of one sequence.
 */
#include "libclient/compress/attend.h"

#include "libclient/compress/compressor.h"
#include "libclient/device/scratch.h"
#include "libclient/layer/layer.h"
#include "libclient/ranks/exchange.h"
#include "libclient/seq.h"

/* ---- room ------------------------------------------------------------------------------------ */

/* bytes of scratch pages for decompressing whole sequences; a single sequence may take more */
#define ROOM ((size_t)256 << 20)

/* The most tokens that a decode row of the layer attends to, in sequences of up to `len` tokens. */
static uint32_t attended_most(const struct policy *p, uint32_t layer, uint32_t len)
{
	const struct skv_plan *plan = &p->plan[layer];
	struct skv_topk_counts x;

	if (plan->attend != SKV_ATTEND_TOKENS)
		return len;
	x = skv_topk_counts_of(&p->compressor->layer[plan->source].select, len);
	return x.pin + x.recent + x.want < len ? x.pin + x.recent + x.want : len;
}

/*
 * How many sequences a layer decompresses at a time for decode rows: all of the batch if rows attend to lists of
 * tokens; else, since sequences are decompressed whole, as many as fit in ROOM, at least one.
 */
static uint32_t at_once(const struct skv_plan *plan, const struct skv_batch *b, size_t page_bytes)
{
	size_t one = skv_pages_of(b->max_len) * page_bytes;
	size_t n = one < ROOM ? ROOM / one : 1;

	return plan->attend == SKV_ATTEND_TOKENS || n > b->n ? b->n : (uint32_t)n;
}

/*
 * Does the backend have a fused kernel that attends to the listed tokens without writing decompressed rows to memory?
 */
static bool fused(const struct skv_kernels *k, const struct skv_plan *plan, const struct skv_shape *shape)
{
	return plan->attend == SKV_ATTEND_TOKENS && k->fuses_latent && k->fuses_latent(shape);
}

/*
 * Scratch pages that the decode rows of a batch need at a time, in a layer that compresses. Also sets how many
 * sequences are decompressed at a time, and how many tokens of each at most.
 */
static uint64_t decode_pages(struct skv_session *s, const struct policy_batch *pb, uint32_t layer)
{
	const struct skv_shape shape = batch_shape(s, pb, layer);
	const struct skv_batch b = batch_rows(s, pb, layer);
	const struct skv_plan *plan = &pb->policy->plan[layer];
	struct selection *x = &pb->selection[layer];

	x->compress.seqs = 0;
	if (b.n == 0 || plan->compress.kind == SKV_COMPRESS_QUANT || fused(s->kernels, plan, &shape))
		return 0;
	x->compress.seqs = at_once(plan, &b, s->shape.page_bytes);
	x->compress.tokens = attended_most(pb->policy, layer, b.max_len);
	return (uint64_t)skv_pages_of(x->compress.tokens) * x->compress.seqs;
}

/* Scratch pages for prompts of sequences that have compressed tokens. One sequence is decompressed at a time. */
static uint64_t prompt_pages(struct skv_session *s, const struct policy_batch *pb, uint32_t layer)
{
	bool any = false;

	for (uint32_t i = pb->first_prompt; i < pb->first_prompt + pb->n_prompts; i++)
		any |= !s->step.seqs[i]->maintenance && layer_kseq(s, layer, i)->n_compressed > 0;
	return any ? skv_pages_of(batch_prompts(s, pb, layer).max_len) : 0;
}

static uint64_t pages_needed(struct skv_session *s, const struct policy_batch *pb)
{
	uint64_t most = 0;

	for (uint32_t layer = 0; layer < s->model.n_layers; layer++) {
		uint64_t pages;

		if (!batch_compresses(pb, layer))
			continue;
		pb->selection[layer].compress.codec = &pb->policy->compressor->layer[layer].code;
		pages = decode_pages(s, pb, layer);
		most = pages > most ? pages : most;
		pages = prompt_pages(s, pb, layer);
		most = pages > most ? pages : most;
	}
	return most;
}

static void lay_out(struct skv_session *s, uint64_t pages, struct carver *c)
{
	struct decompressed *r = &s->step.compress.decompressed;

	r->pool = carve(c, pages * s->shape.page_bytes);
	r->seq = carve(c, s->step.n_kseq * sizeof(*r->seq));
	r->table = carve(c, pages * sizeof(*r->table));
}

/* Make room for the rows that are decompressed in the open step. */
static int decompress_prepare(struct skv_session *s)
{
	struct decompressed *r = &s->step.compress.decompressed;
	struct carver c = {0};
	uint64_t pages = 0;
	int e;

	for (uint32_t i = 0; i < s->step.n_batches; i++) {
		uint64_t of_batch = pages_needed(s, &s->step.batch[i]);

		pages = of_batch > pages ? of_batch : pages;
	}
	/* without decompression the pointers become NULL, so that recorded steps do not refer to scratch memory */
	lay_out(s, pages, &c);
	if (pages == 0)
		return 0;
	e = scratch_grow(s, &r->mem, &r->bytes, c.at);
	c = (struct carver){.base = r->mem};
	lay_out(s, pages, &c);
	return e;
}

int compress_prepare(struct skv_session *s)
{
	int e = scratch_grow(s, &s->step.compress.exchanged, &s->step.compress.exchanged_bytes, exchange_bytes(s));

	return e < 0 ? e : decompress_prepare(s);
}

void compress_close(struct skv_session *s)
{
	scratch_free(s, s->step.compress.exchanged);
	scratch_free(s, s->step.compress.decompressed.mem);
}

/* ---- attention ------------------------------------------------------------------------------- */

/*
 * Decompress n sequences of a batch, beginning with number `first`, and attend to the listed tokens, or to all tokens
 * if `list` is NULL. `tokens`: upper bound of the tokens that are decompressed in each sequence.
 */
static void attend_decompressed(const struct layer *l, const struct skv_batch *batch, uint32_t first, uint32_t n,
                                const struct skv_index_list *list, uint32_t tokens)
{
	const struct decompressed *r = &l->step->compress.decompressed;
	const struct skv_batch from = batch_part(*batch, first, n);
	const struct skv_decompressed to = {.pool = r->pool, .pages = skv_pages_of(tokens), .seq = r->seq,
	                                    .table = r->table};
	const struct skv_attn *a = l->attn;
	struct skv_shape rows = l->rows;
	struct skv_batch over = from;

	l->kernels->decompress(&l->shape, &from, list, &to, l->work);
	rows.pool = r->pool;
	over.seq = r->seq;
	over.max_len = tokens;
	if (batch == &l->prefill)
		l->kernels->prefill_dense(&rows, &over, a->q, a->out, l->work);
	else
		l->kernels->decode_dense(&rows, &over, a->q, a->out, NULL, l->work);
}

void compress_decode(const struct layer *l, const struct skv_index_list *list)
{
	const uint32_t most = l->own->compress.seqs, n = l->each.n;

	if (most == 0) /* a fused kernel decompresses and attends */
		l->kernels->decode_latent(&l->shape, &l->each, l->attn->q, l->attn->out, list, l->work);
	for (uint32_t i = 0; i < n && most > 0; i += most)
		attend_decompressed(l, &l->each, i, n - i < most ? n - i : most, list,
		                    list ? l->own->compress.tokens : l->each.max_len);
}

/* Rows of a prompt whose sequence has no compressed tokens attend to the sequence's own pages. */
void compress_prefill(const struct layer *l)
{
	for (uint32_t i = 0; i < l->prefill.n; i++) {
		struct skv_batch one = l->prefill;

		if (l->prompts[i].n_compressed > 0) {
			attend_decompressed(l, &l->prefill, i, 1, NULL, l->prefill.max_len);
			continue;
		}
		one.seq += i;
		one.n = 1;
		l->kernels->prefill_dense(&l->rows, &one, l->attn->q, l->attn->out, l->work);
	}
}
