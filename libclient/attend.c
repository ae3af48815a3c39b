/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/attend.c - one layer of a step: append, attend as the policy planned, count.
 *
 * No system call (wake-ups of the OpenMP pool aside), no allocation: all memory was laid out in
 * skv_step_begin. Rows of prompts attend densely; the policy sees the sequences that decode, and they
 * go to the kernels as one batch.
 */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory for evidence and lists ----------------------------------------------------------- */

struct carver {
	uint8_t *base; /* NULL: only measuring */
	size_t at;
};

static void *carve(struct carver *c, size_t bytes)
{
	size_t at = c->at;

	c->at = (at + bytes + 63) / 64 * 64;
	return c->base ? c->base + at : NULL;
}

static void carve_selections(struct skv_session *s, struct carver *c)
{
	struct step *st = &s->step;
	size_t n = st->n_decode;
	uint32_t tokens = (st->longest_decode + 255) / 256 * 256, pages = skv_pages_of(tokens);
	bool any = false;

	for (uint32_t layer = 0; layer < s->model.n_layers; layer++) {
		const struct skv_plan *plan = &s->policy->plan[layer];
		struct selection *x = &st->selection[layer];
		uint32_t rows = plan->sharing == SKV_SHARE_KV_HEAD ? s->model.n_kv_heads : 1;
		uint32_t units = plan->evidence & SKV_EV_TOKENS ? tokens : pages;

		*x = (struct selection){0};
		if (!plan->evidence)
			continue;
		any = true;
		x->evidence = (struct skv_evidence){
		        .rows = rows,
		        .sum = plan->pool == SKV_POOL_SUM,
		        .token_stride = tokens,
		        .page_stride = pages,
		};
		if (plan->evidence & SKV_EV_TOKENS)
			x->evidence.token = carve(c, n * rows * tokens * sizeof(float));
		if (plan->evidence & SKV_EV_PAGES)
			x->evidence.page = carve(c, n * rows * pages * sizeof(float));
		x->list = (struct skv_list){
		        .rows = rows,
		        .stride = units,
		        .ids = carve(c, n * rows * units * sizeof(uint32_t)),
		        .count = carve(c, n * rows * sizeof(uint32_t)),
		};
	}
	st->topk_stride = any ? tokens : 0;
	st->topk_scratch = carve(c, (size_t)st->work.threads * st->topk_stride * sizeof(uint32_t));
}

int selections_prepare(struct skv_session *s)
{
	struct step *st = &s->step;
	struct carver c = {0};

	if (st->n_decode == 0)
		return 0;
	carve_selections(s, &c);
	if (c.at > st->arena_bytes) {
		size_t bytes = (c.at + c.at / 4 + 63) / 64 * 64;

		free(st->arena);
		st->arena = aligned_alloc(64, bytes);
		st->arena_bytes = st->arena ? bytes : 0;
		if (!st->arena)
			return fail(-ENOMEM, "out of memory for %zu bytes of attention evidence", bytes);
	}
	c = (struct carver){.base = st->arena};
	if (c.base)
		carve_selections(s, &c);
	return 0;
}

/* ---- what was attended ----------------------------------------------------------------------- */

/* Resident tokens of pages [first, end). */
static uint64_t resident_tokens(const struct skv_seq *q, uint32_t layer, uint32_t len, uint32_t from,
                                uint32_t to)
{
	const skv_pte *t = seq_table(q, layer);
	uint64_t n = 0;

	if (to > len)
		to = len;
	if (from >= to)
		return 0;
	if (q->holes[layer] == 0)
		return to - from;
	for (uint32_t page = from / SKV_PAGE_TOKENS; page < skv_pages_of(to); page++) {
		uint32_t a = page * SKV_PAGE_TOKENS, b = a + SKV_PAGE_TOKENS;

		if (skv_pte_resident(t[page]))
			n += (b < to ? b : to) - (a > from ? a : from);
	}
	return n;
}

static uint64_t listed_tokens(const struct skv_seq *q, uint32_t layer, uint32_t len,
                              const struct skv_list *list, uint32_t i, bool tokens)
{
	const skv_pte *t = seq_table(q, layer);
	uint64_t n = 0;

	for (uint32_t row = 0; row < list->rows; row++) {
		size_t at = (size_t)i * list->rows + row;
		const uint32_t *ids = list->ids + at * list->stride;
		uint32_t count = list->count[at];

		if (q->holes[layer] == 0) {
			n += tokens ? count : (uint64_t)count * SKV_PAGE_TOKENS;
			/* ascending: only the last one can be the partly filled page */
			if (!tokens && count > 0 && ids[count - 1] == skv_pages_of(len) - 1)
				n -= (uint64_t)skv_pages_of(len) * SKV_PAGE_TOKENS - len;
			continue;
		}
		for (uint32_t j = 0; j < count; j++) {
			uint32_t first = tokens ? ids[j] : ids[j] * SKV_PAGE_TOKENS;
			uint32_t left = len - first;

			if (!skv_pte_resident(t[first / SKV_PAGE_TOKENS]))
				continue;
			n += tokens ? 1 : left < SKV_PAGE_TOKENS ? left : SKV_PAGE_TOKENS;
		}
	}
	return n / list->rows;
}

/* ---- decode ---------------------------------------------------------------------------------- */

static void decode_window(struct skv_session *s, uint32_t layer, const struct skv_window *w,
                          const struct skv_attn *a)
{
	struct step *st = &s->step;

	for (uint32_t i = 0; i < st->n_decode; i++) {
		struct skv_seq *q = st->seqs[i];
		uint32_t len = st->kseq[i].len, recent;

		st->sinks[i] = w->sinks < len ? w->sinks : len;
		st->start[i] = window_start(w, len);
		q->step_attended += resident_tokens(q, layer, len, 0, st->sinks[i]);
		recent = st->start[i] > st->sinks[i] ? st->start[i] : st->sinks[i];
		q->step_attended += resident_tokens(q, layer, len, recent, len);
	}
	s->kernels->decode_window(&s->shape, st->kseq, st->n_decode, a->q, a->out, st->sinks, st->start,
	                          &st->work);
}

static void decode_list(struct skv_session *s, uint32_t layer, const struct selection *x,
                        const struct skv_attn *a)
{
	struct step *st = &s->step;
	bool tokens = x->made == SKV_ATTEND_TOKENS;

	for (uint32_t i = 0; i < st->n_decode; i++)
		st->seqs[i]->step_attended +=
		        listed_tokens(st->seqs[i], layer, st->kseq[i].len, &x->list, i, tokens);
	(tokens ? s->kernels->decode_tokens : s->kernels->decode_pages)(&s->shape, st->kseq, st->n_decode,
	                                                                a->q, a->out, &x->list, &st->work);
}

static void decode_dense(struct skv_session *s, uint32_t layer, struct selection *x, const struct skv_attn *a)
{
	struct step *st = &s->step;

	for (uint32_t i = 0; i < st->n_decode; i++)
		st->seqs[i]->step_attended +=
		        st->kseq[i].len - (uint64_t)st->seqs[i]->holes[layer] * SKV_PAGE_TOKENS;
	s->kernels->decode_dense(&s->shape, st->kseq, st->n_decode, a->q, a->out, x ? &x->evidence : NULL,
	                         &st->work);
	if (x)
		x->has_evidence = true;
}

static void decode(struct skv_session *s, uint32_t layer, const struct skv_attn *a)
{
	const struct skv_plan *plan = &s->policy->plan[layer];
	struct selection *x = &s->step.selection[plan->source];

	policy_hook(s, PHASE_BEFORE, layer);
	switch (plan->attend) {
	case SKV_ATTEND_WINDOW:
		decode_window(s, layer, &plan->window, a);
		break;
	case SKV_ATTEND_PAGES:
	case SKV_ATTEND_TOKENS:
		if (x->made == plan->attend) {
			decode_list(s, layer, x, a);
			break;
		}
		policy_misuse(s, "layer %u attends to what layer %u selects, but it selected nothing", layer,
		              plan->source);
		/* fall through */
	default:
		decode_dense(s, layer, plan->evidence ? &s->step.selection[layer] : NULL, a);
	}
	policy_hook(s, PHASE_AFTER, layer);
}

static int attend(struct skv_session *s, uint32_t layer, const struct skv_attn *a)
{
	struct step *st = &s->step;

	if (!st->open)
		return fail(-EINVAL, "no step is open");
	if (layer != st->next_layer || layer >= s->model.n_layers)
		return fail(-EINVAL, "layer %u, expected %u of %u", layer, st->next_layer, s->model.n_layers);
	if (!a || !a->q || !a->k || !a->v || !a->out)
		return fail(-EINVAL, "layer %u: q, k, v and out must be given", layer);
	for (uint32_t i = 0; i < st->n; i++)
		st->kseq[i].table = seq_table(st->seqs[i], layer);
	s->kernels->append(&s->shape, st->kseq, st->n, a->k, a->v, &st->work);
	if (st->n_decode > 0)
		decode(s, layer, a);
	if (st->n > st->n_decode)
		s->kernels->prefill_dense(&s->shape, st->kseq + st->n_decode, st->n - st->n_decode, a->q,
		                          a->out, &st->work);
	st->next_layer++;
	return 0;
}

int skv_attend(struct skv_session *s, uint32_t layer, const struct skv_attn *a)
{
	int e;

	pthread_mutex_lock(&s->lock);
	e = attend(s, layer, a);
	pthread_mutex_unlock(&s->lock);
	return e;
}
