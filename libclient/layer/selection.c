/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/layer/selection.c - memory for attention scores and selections: one arena for all batches and layers of a
 * step.
 */
#include "libclient/layer/selection.h"

#include <stdlib.h>

#include "common/spec.h"
#include "libclient/device/scratch.h"
#include "libclient/feature.h"
#include "libclient/layer/layer.h"
#include "libclient/policy.h"
#include "libclient/ranks/ranks.h"
#include "libclient/session.h"

/* The number of lists, and of rows of attention scores, that a sequence has. */
static uint32_t rows_of(const struct skv_model *m, uint32_t sharing)
{
	return sharing == SKV_SHARE_Q_HEAD ? m->n_heads : sharing == SKV_SHARE_KV_HEAD ? m->n_kv_heads : 1;
}

bool selection_fuses_sketches(const struct skv_session *s, const struct skv_plan *plan, uint32_t layer)
{
	return s->kernels->select_sketches && skv_plan_chooses_by_sketches(plan, layer) && plan->sharing == SKV_SHARE_KV_HEAD &&
	       !(plan->scores & SKV_SCORES_PAGES);
}

/* Elements of a row of scores. */
static uint32_t layer_tokens(struct skv_session *s, uint32_t layer)
{
	return selection_tokens(&layer_class(s, layer)->decoding);
}

/*
 * Scores and ranks of layers that evict are used in one layer of a policy batch at a time, so all such layers share
 * this memory.
 */
struct shared {
	float *token, *page;
};

static struct shared carve_shared(struct skv_session *s, struct policy_batch *pb, struct carver *c)
{
	const struct skv_model *m = &s->model;
	size_t tokens = 0, n = pb->n;
	struct shared x = {0};

	for (uint32_t layer = 0; layer < m->n_layers; layer++)
		if (pb->policy->plan[layer].evict.granularity && layer_tokens(s, layer) > tokens)
			tokens = layer_tokens(s, layer);
	pb->slot = NULL;
	pb->rank = NULL;
	if (pb->policy->n_evicting == 0 || n == 0)
		return x;
	pb->slot = carve(c, n * m->n_kv_heads * sizeof(*pb->slot));
	pb->rank = carve(c, n * m->n_kv_heads * tokens * sizeof(float));
	x.token = carve(c, n * m->n_kv_heads * tokens * sizeof(float));
	x.page = carve(c, n * m->n_heads * (tokens / SKV_PAGE_TOKENS) * sizeof(float));
	return x;
}

static void carve_selection(struct skv_session *s, const struct policy_batch *pb, uint32_t layer,
                            const struct shared *shared, struct carver *c)
{
	size_t n = (size_t)pb->n_padded * pb->rows; /* each row selects for itself */
	const struct skv_plan *plan = &pb->policy->plan[layer];
	struct selection *x = &pb->selection[layer];
	uint32_t rows = rows_of(&s->model, plan->sharing), lists = plan->evict.granularity ? s->model.n_kv_heads : rows;
	uint32_t tokens = layer_tokens(s, layer), pages = skv_pages_of(tokens);
	uint32_t entries = plan->scores & SKV_SCORES_TOKENS || plan->evict.max_head_ratio > 0 ? tokens : pages;
	bool lists_entries = (plan->scores && plan->evict.granularity != 1) || plan->evict.max_head_ratio > 0;

	*x = (struct selection){0};
	if (!plan->scores && !lists_entries)
		return;
	x->scores = (struct skv_scores){
	        .rows = rows,
	        .sum = plan->reduce == SKV_REDUCE_SUM,
	        .token_stride = tokens,
	        .page_stride = pages,
	};
	/* tensor-parallel ranks reduce scores of tokens; scores of pages are then summed from them */
	if ((plan->scores & SKV_SCORES_TOKENS || (plan->scores & SKV_SCORES_PAGES && ranks_share_scores(s, plan))) &&
	    !selection_fuses_sketches(s, plan, layer))
		x->scores.token = plan->evict.granularity ? shared->token : carve(c, n * rows * tokens * sizeof(float));
	if (plan->scores & (SKV_SCORES_PAGES | SKV_SCORES_PAGE_BOUNDS))
		x->scores.page = plan->evict.granularity ? shared->page : carve(c, n * rows * pages * sizeof(float));
	if (lists_entries)
		x->list = (struct skv_index_list){
		        .rows = lists,
		        .stride = entries,
		        .ids = carve(c, n * lists * entries * sizeof(uint32_t)),
		        .count = carve(c, n * lists * sizeof(uint32_t)),
		};
}

/* Does another layer attend to what this layer selects? */
static bool is_source(const struct skv_session *s, const struct policy *p, uint32_t layer)
{
	for (uint32_t i = layer + 1; i < s->model.n_layers; i++)
		if (p->plan[i].source == layer)
			return true;
	return false;
}

/*
 * A padded step (padding.c) may be laid out for far more and longer sequences than it has. There the layers that select
 * for themselves alone share memory, and skv_selection() has no lists to read.
 */
static void carve_selections(struct skv_session *s, const struct policy_batch *pb, const struct shared *shared,
                             struct carver *c)
{
	size_t end;

	for (uint32_t layer = 0; layer < s->model.n_layers; layer++)
		if (!s->step.padding.on || is_source(s, pb->policy, layer))
			carve_selection(s, pb, layer, shared, c);
	end = c->at;
	for (uint32_t layer = 0; layer < s->model.n_layers; layer++) {
		struct carver one = *c;

		if (!s->step.padding.on || is_source(s, pb->policy, layer))
			continue;
		carve_selection(s, pb, layer, shared, &one);
		end = one.at > end ? one.at : end;
	}
	c->at = end;
}

static void carve_all(struct skv_session *s, struct carver *c)
{
	struct step *st = &s->step;

	for (uint32_t i = 0; i < st->n_batches; i++) {
		const struct shared shared = carve_shared(s, &st->batch[i], c);

		carve_selections(s, &st->batch[i], &shared, c);
	}
	/* recordings do not refer to the prompts' slots, so these are last and do not move the memory before them */
	st->select.slot = carve(c, (size_t)(st->n - st->n_decode) * s->model.n_kv_heads * sizeof(*st->select.slot));
}

/* Make room for scores, ranks, slots and lists of the open step's sequences. */
static int select_prepare(struct skv_session *s)
{
	struct step *st = &s->step;
	struct carver c = {0};
	int e;

	carve_all(s, &c);
	e = scratch_grow(s, &st->select.arena, &st->select.arena_bytes, c.at);
	if (e < 0)
		return e;
	c = (struct carver){.base = st->select.arena};
	if (c.base)
		carve_all(s, &c);
	return 0;
}

static void select_close(struct skv_session *s)
{
	free(s->step.select.all);
	scratch_free(s, s->step.select.arena);
}

const struct feature select_feature = {.prepare = select_prepare, .close = select_close};
