/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/prefill/schedule.c - sparse prefill (struct skv_prefill): which layers of which prompts attend sparsely,
 * and which queries of a prompt are saved from step to step.
 *
 * A prompt is being read from its first step until a step says that no tokens remain, or until the sequence decodes.
 * Meanwhile each layer has pages for the queries of earlier rows that later rows need. Each commit records where the
 * prompt began, and a fingerprint of how the prompt attends, so that another engine continues it in the same way. If
 * the policy has another fingerprint, or a page is missing, a new prompt begins at the current length, and the saved
 * pages are given back.
 *
 * Sparse prefill identifies rows by their positions. Therefore a layer attends densely if it has evicted tokens (its
 * slots are not positions), if it compresses, or if the layer that selects its tokens has evicted tokens or compresses.
 */
#include "libclient/prefill/schedule.h"

#include <errno.h>
#include <stdlib.h>

#include "kernels/prefill.h"
#include "libclient/error.h"
#include "libclient/seq.h"

/* ---- how a policy reads prompts -------------------------------------------------------------- */

static struct skv_sparse sparse_of(const struct skv_plan *plan, uint32_t layer, const struct skv_model *m)
{
	const struct skv_prefill *p = &plan->prefill;
	struct skv_sparse x = {
	        .tile = PREFILL_TILE,
	        .sinks = p->sinks,
	        .window = p->window,
	        .by_tile = true,
	        .delta = p->correct == SKV_CORRECT_DELTA,
	        .gamma = p->correct ? p->gamma : 0,
	};

	switch (p->how) {
	case SKV_PREFILL_STREAMING:
		x.by_tile = false;
		break;
	case SKV_PREFILL_HIP:
		x.n_saved_queries = 1;
		break;
	case SKV_PREFILL_MINFERENCE:
		x.segment = p->segment;
		x.n_saved_queries = SKV_MINFERENCE_ROWS;
		break;
	case SKV_PREFILL_KASCADE:
		x.tile = skv_kascade_tile(m->n_heads / m->n_kv_heads);
		x.n_saved_queries = p->source == layer;
		if (p->dense) { /* dense rows need no correction */
			x.delta = false;
			x.gamma = 0;
		}
		break;
	default:
		return (struct skv_sparse){0};
	}
	return x;
}

static uint64_t mix(uint64_t sum, const void *what, size_t bytes)
{
	const uint8_t *at = what;

	for (size_t i = 0; i < bytes; i++)
		sum = (sum ^ at[i]) * 0x100000001b3u;
	return sum;
}

/*
 * Fingerprint of everything that determines the contents of the pages with saved queries, and how the prompt continues.
 */
static uint64_t fingerprint(const struct skv_session *s, const struct policy *p)
{
	uint64_t sum = mix(0xcbf29ce484222325u, &s->model.io_dtype, sizeof(s->model.io_dtype));

	for (uint32_t layer = 0; layer < s->model.n_layers; layer++)
		sum = mix(sum, &p->plan[layer].prefill, sizeof(p->plan[layer].prefill));
	return sum ? sum : 1;
}

int prefill_make(struct skv_session *s, struct policy *p)
{
	const uint32_t n = s->model.n_layers;
	bool all = true;
	struct prefill *r;

	for (uint32_t layer = 0; layer < n; layer++)
		all &= p->plan[layer].prefill.how == SKV_PREFILL_DENSE;
	if (all)
		return 0;
	r = calloc(1, sizeof(*r) + n * sizeof(*r->layer));
	if (!r)
		return error_set(-ENOMEM, "out of memory");
	r->how = fingerprint(s, p);
	for (uint32_t layer = 0; layer < n; layer++) {
		const struct skv_prefill *x = &p->plan[layer].prefill;

		r->layer[layer].sparse = sparse_of(&p->plan[layer], layer, &s->model);
		r->layer[layer].pages = skv_saved_pages(&s->shape, &r->layer[layer].sparse);
		if (x->correct) {
			r->gamma = x->gamma;
			r->tail = x->tail;
		}
	}
	p->prefill = r;
	return 0;
}

void prefill_unmake(struct policy *p)
{
	free(p->prefill);
}

uint32_t prefill_saved_pages(const struct policy *p, uint32_t layer)
{
	return p->prefill ? 2 * p->prefill->layer[layer].pages : 0;
}

bool prefill_has_tail(const struct policy *p)
{
	return p->prefill && p->prefill->gamma > 0;
}

/* ---- of a sequence --------------------------------------------------------------------------- */

bool prefill_fits(const struct skv_seq *q, const struct policy *p)
{
	if (!(q->about & SKV_ABOUT_PREFILL) || !p->prefill || q->prompt.now.how != p->prefill->how)
		return false;
	for (uint32_t layer = 0; layer < q->layout.n_layers; layer++) {
		const skv_pte *table = seq_table(q, skv_table(q->layout.n_layers, SKV_PAGES_SAVED, layer));

		for (uint32_t i = 0; i < prefill_saved_pages(p, layer); i++)
			if (!skv_pte_resident(table[i]))
				return false;
	}
	return true;
}

uint32_t prefill_about(struct skv_seq *q, bool prompt)
{
	const struct prefill *r = seq_policy(q)->prefill;

	q->prompt.next = (struct skv_prompt){.begin = q->len};
	if (!prompt || !r)
		return 0;
	if (q->about & SKV_ABOUT_PREFILL)
		q->prompt.next.begin = q->prompt.now.begin;
	q->prompt.next.how = r->how;
	return q->prompt.n_remaining > 0 ? SKV_ABOUT_PREFILL : 0;
}

void prefill_schedule(const struct skv_seq *q, struct skv_kseq *ks)
{
	const struct prefill *r = seq_policy(q)->prefill;
	uint64_t end = (uint64_t)q->len + q->n_new + q->prompt.n_remaining, dense;

	ks->prompt_start = q->prompt.next.begin;
	ks->dense_from = UINT32_MAX;
	ks->prompt_continues = q->prompt.n_remaining > 0;
	if (!r || r->gamma == 0)
		return;
	dense = end % r->gamma + r->tail;
	ks->dense_from = end > dense ? (uint32_t)(end - dense) : 0;
}

/* Does the layer have all tokens of the sequence as rows, in order? Evicting whole pages does not change the order. */
static bool in_order(const struct skv_seq *q, uint32_t layer)
{
	const struct skv_layer_slots *x = &q->slots[layer];

	if (q->compress.on && seq_policy(q)->plan[layer].compress.kind)
		return false;
	return !seq_by_layer(q) || (x->live == q->len && x->slot_end == q->len);
}

static bool is_sparse(const struct skv_seq *q, uint32_t layer)
{
	const struct skv_prefill *p = &seq_policy(q)->plan[layer].prefill;

	return p->how != SKV_PREFILL_DENSE && in_order(q, layer) &&
	       (p->how != SKV_PREFILL_KASCADE || in_order(q, p->source));
}

void prefill_find_sparse(struct skv_seq *q)
{
	q->prompt.sparse = (struct skv_layer_set){0};
	for (uint32_t layer = 0; seq_policy(q)->prefill && layer < q->layout.n_layers; layer++)
		if (is_sparse(q, layer))
			q->prompt.sparse.bits[layer / 64] |= (uint64_t)1 << layer % 64;
}
