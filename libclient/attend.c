/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/attend.c - one layer of a step: append, attend as the policy planned.
 *
 * No system call (wake-ups of the OpenMP pool aside), no allocation: all memory was laid out in
 * skv_step_begin. Rows of prompts attend as the plan says (prompt.c); the policy sees the sequences that decode, and
 * they go to the kernels as one batch.
 */
#include "internal.h"

#include "common/spec.h"

#include <errno.h>
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

/* Lists of a sequence, and rows of evidence. */
static uint32_t rows_of(const struct skv_model *m, uint32_t sharing)
{
	return sharing == SKV_SHARE_Q_HEAD ? m->n_heads : sharing == SKV_SHARE_KV_HEAD ? m->n_kv_heads : 1;
}

/* What is of use in one layer of a group at a time, so that all that keep units share it: evidence, ranks, slots. */
struct shared {
	float *token, *page;
};

static struct shared carve_shared(struct skv_session *s, struct carver *c)
{
	const struct skv_model *m = &s->model;
	struct step *st = &s->step;
	size_t tokens = 0, n = st->n_decode;
	struct shared x = {0};
	bool keeps = false;

	for (uint32_t i = 0; i < st->n_groups; i++) {
		const struct policy *p = st->group[i].policy;

		keeps |= p->n_keep > 0;
		for (uint32_t layer = 0; layer < m->n_layers; layer++)
			if (p->plan[layer].evict.granularity && selection_tokens(&layer_class(s, layer)->decoding) > tokens)
				tokens = selection_tokens(&layer_class(s, layer)->decoding);
	}
	if (!keeps)
		return x;
	st->slot = carve(c, (size_t)st->n * m->n_kv_heads * sizeof(*st->slot));
	st->rank = carve(c, n * m->n_kv_heads * tokens * sizeof(float));
	x.token = carve(c, n * m->n_kv_heads * tokens * sizeof(float));
	x.page = carve(c, n * m->n_heads * (tokens / SKV_PAGE_TOKENS) * sizeof(float));
	return x;
}

static void carve_selections(struct skv_session *s, const struct group *g, const struct shared *shared, struct carver *c)
{
	size_t n = g->n;

	for (uint32_t layer = 0; layer < s->model.n_layers; layer++) {
		const struct skv_plan *plan = &g->policy->plan[layer];
		struct selection *x = &g->selection[layer];
		uint32_t rows = rows_of(&s->model, plan->sharing), lists = plan->evict.granularity ? s->model.n_kv_heads : rows;
		uint32_t tokens = selection_tokens(&layer_class(s, layer)->decoding), pages = skv_pages_of(tokens);
		uint32_t units = plan->scores & SKV_SCORES_TOKENS || plan->evict.max_head_ratio > 0 ? tokens : pages;
		bool lists_units = (plan->scores && plan->evict.granularity != 1) || plan->evict.max_head_ratio > 0;

		*x = (struct selection){0};
		if (!plan->scores && !lists_units)
			continue;
		x->evidence = (struct skv_evidence){
		        .rows = rows,
		        .sum = plan->reduce == SKV_REDUCE_SUM,
		        .token_stride = tokens,
		        .page_stride = pages,
		};
		if (plan->scores & SKV_SCORES_TOKENS)
			x->evidence.token = plan->evict.granularity ? shared->token : carve(c, n * rows * tokens * sizeof(float));
		if (plan->scores & (SKV_SCORES_PAGES | SKV_SCORES_PAGE_BOUNDS))
			x->evidence.page = plan->evict.granularity ? shared->page : carve(c, n * rows * pages * sizeof(float));
		if (lists_units)
			x->list = (struct skv_list){
			        .rows = lists,
			        .stride = units,
			        .ids = carve(c, n * lists * units * sizeof(uint32_t)),
			        .count = carve(c, n * lists * sizeof(uint32_t)),
			};
	}
}

static void carve_all(struct skv_session *s, struct carver *c)
{
	struct step *st = &s->step;
	struct shared shared = carve_shared(s, c);

	for (uint32_t i = 0; i < st->n_groups; i++)
		carve_selections(s, &st->group[i], &shared, c);
}

int selections_prepare(struct skv_session *s)
{
	struct step *st = &s->step;
	struct carver c = {0};
	int e;

	carve_all(s, &c);
	e = step_grow(s, &st->arena, &st->arena_bytes, c.at);
	if (e < 0)
		return e;
	c = (struct carver){.base = st->arena};
	if (c.base)
		carve_all(s, &c);
	return 0;
}

/* ---- a layer --------------------------------------------------------------------------------- */

/* Kernels of a device read 16 bytes at a time. */
static const char *misaligned(const struct skv_attn *a)
{
	if ((uintptr_t)a->q % 16)
		return "q";
	if ((uintptr_t)a->k % 16)
		return "k";
	if ((uintptr_t)a->v % 16)
		return "v";
	return (uintptr_t)a->out % 16 ? "out" : NULL;
}

/* The source's lists, as the layer's kv heads go by them. */
static struct skv_list list_for(const struct selection *from, const struct skv_plan *plan)
{
	struct skv_list list = from->list;

	list.mapped = plan->mapped;
	if (plan->mapped)
		memcpy(list.map, plan->map, sizeof(list.map));
	return list;
}

/* Heads that share a budget attend to who is awake, and ask these for their votes: before `out`, which may be q. */
static void wake(struct skv_session *s, struct selection *own, const struct skv_shape *shape, const struct skv_batch *batch)
{
	s->kernels->list_awake(shape, batch, &own->list, &s->step.work);
	s->kernels->tally_list(shape, batch, s->step.q, &own->list, &s->step.work);
	own->made = SKV_ATTEND_TOKENS;
}

static void decode(struct skv_session *s, struct group *g, uint32_t layer, const struct skv_attn *a)
{
	const struct skv_plan *plan = &g->policy->plan[layer];
	const struct skv_batch batch = group_decoding(s, g, layer);
	const struct skv_shape shape = group_shape(s, g, layer);
	const struct skv_kernels *k = s->kernels;
	struct step *st = &s->step;
	struct selection *from = &g->selection[plan->source], *own = &g->selection[layer];
	struct skv_list list;
	uint32_t how = plan->attend, weights = plan->scores & (SKV_SCORES_TOKENS | SKV_SCORES_PAGES);

	s->group = g;
	st->q = a->q;
	policy_hook(s, g, PHASE_BEFORE, layer);
	if (plan->evict.max_head_ratio > 0)
		wake(s, own, &shape, &batch);
	if ((how == SKV_ATTEND_PAGES || how == SKV_ATTEND_TOKENS) && from->made != how) {
		policy_misuse(s, "layer %u attends to what layer %u selects, but it selected nothing", layer,
		              plan->source);
		how = SKV_ATTEND_DENSE;
	}
	list = list_for(from, plan);
	if (group_packs(g, layer) && plan->compress.kind == SKV_COMPRESS_LATENT) {
		packed_decode(s, g, layer, how == SKV_ATTEND_TOKENS ? &list : NULL, a);
		policy_hook(s, g, PHASE_AFTER, layer);
		return;
	}
	if (how != SKV_ATTEND_DENSE)
		recall_weigh(s, g, layer, &list, a->q);
	switch (how) {
	case SKV_ATTEND_WINDOW:
		k->decode_window(&shape, &batch, a->q, a->out, &plan->window, &st->work);
		break;
	case SKV_ATTEND_PAGES:
		k->decode_pages(&shape, &batch, a->q, a->out, &list, &st->work);
		break;
	case SKV_ATTEND_TOKENS:
		if (skv_plan_chooses(plan, layer))
			k->decode_chosen(&shape, &batch, a->q, a->out, &own->evidence, &own->select,
			                 &own->list, &st->work);
		else
			k->decode_tokens(&shape, &batch, a->q, a->out, &list, &st->work);
		break;
	default:
		k->decode_dense(&shape, &batch, a->q, a->out, weights ? &own->evidence : NULL, &st->work);
		own->has_evidence |= weights != 0;
	}
	if (how != SKV_ATTEND_DENSE)
		recall_measure(s, g, layer, &list);
	own->chosen = false;
	policy_hook(s, g, PHASE_AFTER, layer);
	if (plan->evict.granularity && !own->chosen)
		policy_misuse(s, "layer %u keeps units, but nobody has chosen them", layer);
}

/* What comes before attention, for all of the group: those that decode and those with prompts are apart. */
static void append(struct skv_session *s, const struct group *g, uint32_t layer, const struct skv_attn *a)
{
	const struct skv_batch part[] = {group_decoding(s, g, layer), group_prompts(s, g, layer)};
	const struct skv_plan *plan = &g->policy->plan[layer];
	const struct skv_shape shape = layer_shape(s, layer);

	if (plan->evict.granularity) {
		slots_place(s, g, layer, a);
		return;
	}
	for (int i = 0; i < 2; i++) {
		if (part[i].n == 0)
			continue;
		s->kernels->append(&shape, &part[i], NULL, a->k, a->v, &s->step.work);
		if (plan_keeps_bounds(plan))
			s->kernels->update_bounds(&shape, &part[i], NULL, &s->step.work);
	}
}

static void read_prompts(struct skv_session *s, const struct group *g, uint32_t layer, const struct skv_attn *a)
{
	const struct skv_batch prompts = group_prompts(s, g, layer);
	const struct skv_evict *keep = &g->policy->plan[layer].evict;
	const struct skv_shape shape = layer_shape(s, layer);

	if (group_packs(g, layer)) {
		packed_prompts(s, g, layer, a);
		return;
	}
	if (keep->accumulate) /* before `out`, which may be q */
		s->kernels->tally_prompt(&shape, &prompts, a->q, keep->window, &s->step.work);
	reading_attend(s, g, layer, a);
}

void attend_layer(struct skv_session *s, uint32_t layer, const struct skv_attn *a)
{
	struct step *st = &s->step;

	for (uint32_t i = 0; i < st->n_groups; i++) {
		struct group *g = &st->group[i];

		append(s, g, layer, a);
		if (g->n > 0)
			decode(s, g, layer, a);
		if (g->n_prompts > 0 && a->q)
			read_prompts(s, g, layer, a);
	}
	if (!a->q)
		reading_blind(s);
}

/* May a layer of the open step have K and V alone? No rows then attend, and none is asked for its votes. */
static int check_append(const struct skv_session *s, uint32_t layer)
{
	const struct step *st = &s->step;

	if (st->n_decode > 0)
		return fail(-EINVAL, "layer %u: q and out may be missing in a step of prompts alone, but %u sequences decode", layer,
		            st->n_decode);
	for (uint32_t i = 0; i < st->n_groups; i++)
		if (st->group[i].policy->plan[layer].evict.accumulate)
			return fail(-EINVAL, "layer %u: q and out are missing, but policy %s asks prompts for votes", layer,
			            st->group[i].policy->block->name);
	return 0;
}

static int attend(struct skv_session *s, uint32_t layer, const struct skv_attn *a)
{
	struct step *st = &s->step;
	int e;

	if (!st->open)
		return fail(-EINVAL, "no step is open");
	if (layer != st->next_layer || layer >= s->model.n_layers)
		return fail(-EINVAL, "layer %u, expected %u of %u", layer, st->next_layer, s->model.n_layers);
	if (!a || !a->k || !a->v || !a->q != !a->out)
		return fail(-EINVAL, "layer %u: k and v, and q with out, must be given", layer);
	if (s->device && misaligned(a))
		return fail(-EINVAL, "layer %u: %s is not at a multiple of 16 bytes", layer, misaligned(a));
	e = a->q ? 0 : check_append(s, layer);
	if (e == 0 && s->device)
		e = replay_attend(s, layer, a);
	if (e < 0)
		return e;
	if (e == 0)
		attend_layer(s, layer, a);
	st->next_layer++;
	return s->device && e == 0 ? device_check(s) : 0;
}

int skv_attend(struct skv_session *s, uint32_t layer, const struct skv_attn *a)
{
	void *was;
	int e;

	pthread_mutex_lock(&s->lock);
	e = device_enter(s, &was);
	if (e == 0) {
		e = attend(s, layer, a);
		device_leave(s, was);
	}
	pthread_mutex_unlock(&s->lock);
	return e;
}
