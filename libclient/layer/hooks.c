/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/layer/hooks.c - runs a policy's hooks for the decoding sequences of a batch, and implements the primitives
 * that hooks call (struct skv_prims) by kernels.
 *
 * A hook's request is checked against the plan before it is carried out. The first wrong request is recorded and makes
 * skv_step_end fail. Evictions of pages are only written to the sequence's journal here, where they do not count yet;
 * skv_step_end carries them out with the commit.
 */
#include "libclient/layer/hooks.h"

#include <stdarg.h>
#include <stdio.h>

#include "common/spec.h"
#include "libclient/feature.h"
#include "libclient/layer/layer.h"
#include "libclient/layer/selection.h"
#include "libclient/pages/pages.h"
#include "libclient/ranks/ranks.h"
#include "libclient/seq.h"

void policy_misuse(struct skv_session *s, const char *fmt, ...)
{
	va_list ap;

	if (s->hook.misused)
		return; /* only the first misuse is recorded: later ones may follow from it */
	s->hook.misused = true;
	s->hook.misuser = s->hook.batch ? s->hook.batch->policy->block->name : "";
	va_start(ap, fmt);
	vsnprintf(s->hook.misuse, sizeof(s->hook.misuse), fmt, ap);
	va_end(ap);
}

/* ---- select ---------------------------------------------------------------------------------- */

enum what { SELECT_PAGES, SELECT_TOKENS, SELECT_UNION };

static const char *check(const struct skv_session *s, const struct skv_select *sel, enum what what)
{
	const struct skv_plan *plans = s->hook.batch->policy->plan;

	if (what == SELECT_UNION && s->model.n_ranks > 1)
		return "a union of all heads, of which this rank has some";
	if (what == SELECT_UNION)
		return skv_union_check(sel, plans, s->model.n_layers);
	return skv_select_check(sel, what == SELECT_TOKENS ? SKV_SCORES_TOKENS : SKV_SCORES_PAGES | SKV_SCORES_PAGE_BOUNDS, plans,
	                        s->model.n_layers);
}

static void select_units(const struct skv_policy_ctx *ctx, const struct skv_select *sel, enum what what)
{
	static const char *const names[] = {"select_pages", "select_tokens", "select_union"};
	struct skv_session *s = ctx->library;
	const struct policy_batch *pb = s->hook.batch;
	const char *name = names[what], *wrong;
	const struct skv_plan *plan;
	struct skv_batch batch;
	struct skv_shape shape;
	struct selection *x;

	if (s->hook.phase != PHASE_BEFORE && s->hook.phase != PHASE_AFTER) {
		policy_misuse(s, "%s outside of before() and after()", name);
		return;
	}
	wrong = check(s, sel, what);
	if (wrong) {
		policy_misuse(s, "%s: %s", name, wrong);
		return;
	}
	x = &pb->selection[sel->layer];
	plan = &pb->policy->plan[sel->layer];
	if ((skv_plan_chooses(plan, sel->layer) || skv_plan_chooses_by_sketches(plan, sel->layer)) &&
	    (s->hook.phase != PHASE_BEFORE || sel->layer != s->hook.layer)) {
		policy_misuse(s, "%s: layer %u selects its own tokens, expected in its before()", name, sel->layer);
		return;
	}
	if (skv_plan_chooses(plan, sel->layer)) {
		x->select = *sel; /* the selection is carried out in the layer's attention */
		x->made = SKV_ATTEND_TOKENS;
		return;
	}
	if (!x->has_scores) {
		policy_misuse(s, "%s: layer %u has no scores so far in this step", name, sel->layer);
		return;
	}
	batch = batch_rows(s, pb, sel->layer);
	shape = batch_shape(s, pb, sel->layer);
	x->list.rows = what == SELECT_UNION ? 1 : sel->unite ? s->model.n_kv_heads : x->scores.rows;
	pb->policy->list_rows[sel->layer] = x->list.rows;
	if (selection_fuses_sketches(s, plan, sel->layer))
		s->kernels->select_sketches(&shape, &batch, s->hook.q, x->scores.sum, sel, &x->list, &s->step.work);
	else if (what == SELECT_UNION)
		s->kernels->select_union(&shape, &batch, &x->scores, sel, &x->list, &s->step.work);
	else
		s->kernels->select(&shape, &batch, &x->scores, what == SELECT_TOKENS, sel, &x->list, &s->step.work);
	x->made = what == SELECT_PAGES ? SKV_ATTEND_PAGES : SKV_ATTEND_TOKENS;
}

static void select_pages(const struct skv_policy_ctx *ctx, const struct skv_select *sel)
{
	select_units(ctx, sel, SELECT_PAGES);
}

static void select_tokens(const struct skv_policy_ctx *ctx, const struct skv_select *sel)
{
	select_units(ctx, sel, SELECT_TOKENS);
}

static void select_union(const struct skv_policy_ctx *ctx, const struct skv_select *sel)
{
	select_units(ctx, sel, SELECT_UNION);
}

/* ---- score ----------------------------------------------------------------------------------- */

typedef const char *score_check(uint32_t layer, const struct skv_plan *, uint32_t n_layers);

/* May the running hook score the layer? Scoring is allowed only in the layer's before(). adopt() has no batch. */
static bool may_score(struct skv_session *s, uint32_t layer, const char *name, score_check *fits)
{
	const char *wrong = "outside of the layer's before()";

	if (s->hook.phase == PHASE_BEFORE && layer == s->hook.layer)
		wrong = fits(layer, s->hook.batch->policy->plan, s->model.n_layers);
	if (wrong)
		policy_misuse(s, "%s: %s", name, wrong);
	return !wrong;
}

static void score_pages(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	struct skv_session *s = ctx->library;
	const struct policy_batch *pb = s->hook.batch;
	struct skv_shape shape;
	struct skv_batch rows;

	if (!may_score(s, layer, "score_pages", skv_score_check))
		return;
	shape = layer_shape(s, layer);
	rows = batch_rows(s, pb, layer);
	s->kernels->score_pages(&shape, &rows, s->hook.q, pb->policy->plan[layer].reduce, &pb->selection[layer].scores,
	                        &s->step.work);
	pb->selection[layer].has_scores = true;
	ranks_reduce_scores(s, pb, layer, &rows);
}

static void score_sketches(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	struct skv_session *s = ctx->library;
	const struct policy_batch *pb = s->hook.batch;
	struct skv_shape shape;
	struct skv_batch rows;

	if (!may_score(s, layer, "score_sketches", skv_sketch_check))
		return;
	shape = batch_shape(s, pb, layer);
	rows = batch_rows(s, pb, layer);
	if (!selection_fuses_sketches(s, &pb->policy->plan[layer], layer))
		s->kernels->score_sketches(&shape, &rows, s->hook.q, &pb->selection[layer].scores, &s->step.work);
	pb->selection[layer].has_scores = true;
	ranks_reduce_scores(s, pb, layer, &rows);
}

static void accumulate_scores(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	struct skv_session *s = ctx->library;
	const struct policy_batch *pb = s->hook.batch;
	const char *wrong = "outside of the layer's after()";
	struct skv_batch batch;
	struct skv_shape shape;

	if (s->hook.phase == PHASE_AFTER && layer == s->hook.layer)
		wrong = skv_accumulate_check(layer, pb->policy->plan, s->model.n_layers);
	if (wrong) {
		policy_misuse(s, "accumulate_scores: %s", wrong);
		return;
	}
	batch = batch_decoding(s, pb, layer);
	shape = layer_shape(s, layer);
	s->kernels->accumulate_scores(&shape, &batch, &pb->selection[layer].scores, &s->step.work);
}

/* ---- evict ----------------------------------------------------------------------------------- */

static void evict_to_budget(const struct skv_policy_ctx *ctx, const struct skv_evict_to_budget *k)
{
	struct skv_session *s = ctx->library;
	const struct skv_rank rank = {.smooth = k->smooth, .lambda = k->lambda};
	const struct policy_batch *pb = s->hook.batch;
	const char *wrong = "outside of the layer's after()";
	bool ranked = k->smooth > 1 || k->lambda > 0, shared;
	struct skv_batch batch;
	struct skv_evict_rule by;
	struct skv_shape shape;
	uint32_t stride;

	if (s->hook.phase == PHASE_AFTER && k->layer == s->hook.layer)
		wrong = skv_evict_to_budget_check(k, pb->policy->plan, s->model.n_layers);
	if (wrong) {
		policy_misuse(s, "evict_to_budget: %s", wrong);
		return;
	}
	shape = layer_shape(s, k->layer);
	batch = batch_decoding(s, pb, k->layer);
	stride = selection_tokens(&batch);
	shared = pb->policy->plan[k->layer].evict.max_head_ratio > 0;
	/* rank_tokens() gives inactive tokens the rank -infinity, so that they are never among the best */
	ranked |= shared;
	if (ranked)
		s->kernels->rank_tokens(&shape, &batch, &rank, pb->rank, stride, &s->step.work);
	by = (struct skv_evict_rule){
	        .granularity = pb->policy->plan[k->layer].evict.granularity,
	        .recent = k->recent,
	        .evict_older = k->evict_older,
	        .reset_scores = k->reset_scores,
	};
	s->kernels->evict(&shape, &batch, &by, ranked ? pb->rank : NULL, stride, &s->step.work);
	if (shared)
		s->kernels->allocate_head_budgets(&shape, &batch, &(struct skv_head_budget_rule){.recent = k->recent.count, .safeguard = k->safeguard}, pb->rank,
		                  stride, &s->step.work);
	pb->selection[k->layer].retained = true;
}

static void touch_pages(const struct skv_policy_ctx *ctx, const struct skv_touch_pages *p)
{
	struct skv_session *s = ctx->library;
	const struct policy_batch *pb = s->hook.batch;
	const char *wrong = "outside of the layer's before()";
	const struct skv_evict *keep;
	struct skv_batch batch;
	struct skv_touch_rule stamp;
	struct selection *x;
	struct skv_shape shape;

	if (s->hook.phase == PHASE_BEFORE && p->layer == s->hook.layer)
		wrong = skv_touch_check(p, pb->policy->plan, s->model.n_layers);
	if (!wrong && !pb->selection[p->layer].has_scores)
		wrong = "pages that are not scored";
	if (wrong) {
		policy_misuse(s, "touch_pages: %s", wrong);
		return;
	}
	shape = layer_shape(s, p->layer);
	batch = batch_decoding(s, pb, p->layer);
	keep = &pb->policy->plan[p->layer].evict;
	x = &pb->selection[p->layer];
	stamp = (struct skv_touch_rule){
	        .alpha = p->alpha,
	        .ratio = p->ratio,
	        .scale = p->scale > 0 ? p->scale : shape.scale,
	        .pinned = keep->pinned,
	        .pinned_floor = keep->pinned_floor,
	};
	s->kernels->touch_pages(&shape, &batch, &x->scores, &stamp, &x->list, &s->step.work);
	x->made = SKV_ATTEND_PAGES;
}

/*
 * Write to the step's journal that the layer's pages [first, end) are evicted, unless they were evicted before. Returns
 * false if the journal is full.
 */
static bool collect(struct skv_seq *q, uint32_t layer, uint32_t first, uint32_t end)
{
	struct span *gone = &q->evicted[layer];

	if (gone->from != first)
		*gone = (struct span){.from = first, .to = first};
	for (uint32_t page = gone->to; page < end; page++)
		if (!pages_evict(q, layer, page))
			return false;
	if (gone->to < end)
		gone->to = end;
	return true;
}

static void evict_outside(const struct skv_policy_ctx *ctx, uint32_t layer, const struct skv_window *w)
{
	struct skv_session *s = ctx->library;
	const struct policy_batch *pb = s->hook.batch;
	const char *wrong = "outside of step_end()";

	if (s->hook.phase == PHASE_END)
		wrong = skv_evict_outside_check(layer, w, pb->policy->plan, s->model.n_layers);
	if (!wrong && (skv_model_window(&s->model, layer) || skv_model_kv_shared(&s->model, layer)))
		/* the policy does not manage a layer with a sliding window, and another layer may need shared pages */
		return;
	for (uint32_t i = 0; !wrong && i < pb->n; i++) {
		struct skv_seq *q = s->step.seqs[pb->first + i];
		/*
		 * end of the pages outside the window of the next step; that step appends to the last page, which stays
		 */
		uint32_t end = skv_window_start(w, seq_next_slot_end(q, layer) + 1) / SKV_PAGE_TOKENS;

		if (!collect(q, layer, skv_pages_of(w->sinks), end))
			wrong = "the same pages are evicted again and again";
	}
	if (wrong)
		policy_misuse(s, "evict_outside: %s", wrong);
}

static void *seq_state(const struct skv_policy_ctx *ctx, uint32_t i)
{
	struct skv_session *s = ctx->library;
	struct skv_seq *q;

	if (s->hook.phase == PHASE_ADOPT) {
		if (i > 0)
			policy_misuse(s, "seq_state: sequence %u of %u", i, ctx->n_seqs);
		return s->hook.adopting_state;
	}
	q = s->step.seqs[s->hook.batch->first];
	if (s->hook.phase != PHASE_END)
		policy_misuse(s, "seq_state outside of adopt() and step_end()");
	else if (i >= ctx->n_seqs)
		policy_misuse(s, "seq_state: sequence %u of %u", i, ctx->n_seqs);
	else
		q = s->step.seqs[s->hook.batch->first + i];
	/*
	 * after a misuse, too, a valid pointer is returned, because the hook will write there; the step is then
	 * aborted, and the state is made anew
	 */
	return (uint8_t *)q->mem + q->layout.state;
}

static const struct skv_prims prims = {
        .size = sizeof(struct skv_prims),
        .select_pages = select_pages,
        .select_tokens = select_tokens,
        .select_union = select_union,
        .evict_outside = evict_outside,
        .seq_state = seq_state,
        .score_pages = score_pages,
        .score_sketches = score_sketches,
        .accumulate_scores = accumulate_scores,
        .evict_to_budget = evict_to_budget,
        .touch_pages = touch_pages,
};

/* ---- hooks ----------------------------------------------------------------------------------- */

struct skv_policy_ctx policy_ctx(struct skv_session *s, const struct policy *p, uint32_t n_seqs)
{
	return (struct skv_policy_ctx){
		.size = sizeof(struct skv_policy_ctx),
		.n_seqs = n_seqs,
		.prims = &prims,
		.model = &s->model,
		.config = p->config,
		.library = s,
	};
}

/*
 * Run the policy's after() of a layer. In a layer that evicts, after() must call evict_to_budget(), which says what
 * stays.
 */
static void run_after(struct skv_session *s, struct policy_batch *pb, const struct skv_policy_ctx *ctx, uint32_t layer)
{
	struct selection *x = &pb->selection[layer];

	x->retained = false;
	if (pb->policy->block->after)
		pb->policy->block->after(ctx, layer);
	if (pb->policy->plan[layer].evict.granularity && !x->retained)
		policy_misuse(s, "layer %u evicts, but its hooks have not said what stays", layer);
}

void policy_hook(struct skv_session *s, struct policy_batch *pb, enum phase phase, uint32_t layer)
{
	const struct skv_policy *block = pb->policy->block;
	const struct skv_policy_ctx ctx = policy_ctx(s, pb->policy, pb->n);

	if (ctx.n_seqs == 0)
		return;
	s->hook.batch = pb;
	s->hook.phase = phase;
	s->hook.layer = layer;
	if (phase == PHASE_BEFORE && block->before)
		block->before(&ctx, layer);
	else if (phase == PHASE_AFTER)
		run_after(s, pb, &ctx, layer);
	else if (phase == PHASE_END && block->step_end)
		block->step_end(&ctx);
	s->hook.phase = PHASE_NONE;
}

/*
 * Run step_end() for the decoding sequences of a batch that are not cancelled, with one call for each run of adjacent
 * ones.
 */
static void end_of_batch(struct skv_session *s, struct policy_batch *pb)
{
	struct policy_batch some = *pb;

	for (uint32_t i = pb->first, end = pb->first + pb->n; i < end; i += some.n) {
		some.first = i;
		some.n = 0;
		while (i + some.n < end && s->step.seqs[i + some.n]->n_new > 0)
			some.n++;
		policy_hook(s, &some, PHASE_END, 0);
		if (some.n == 0)
			some.n = 1; /* skip a cancelled sequence */
	}
	s->hook.batch = pb;
}

static void hooks_end(struct skv_session *s)
{
	for (uint32_t i = 0; i < s->step.n_batches; i++)
		end_of_batch(s, &s->step.batch[i]);
}

const struct feature hooks_feature = {.end = hooks_end};
