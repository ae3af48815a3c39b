/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common/rehearse.c - a dry run of a policy: a step without tensors, which runs every hook once and checks every call
 * of a primitive.
 *
 * So a policy that misuses a primitive is refused when the daemon loads it, and not only found at an engine's next
 * step. Hooks do not see lengths or scores, so they make the same calls in the rehearsal as in a real step.
 */
#include "common/spec.h"
#include "common/refuse.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Bits of rehearsal.selected, besides those for selections. BEFORE_SCORES: a hook has scored the layer's pages or
 * sketches in this step.
 */
#define BEFORE_SCORES (SKV_SCORES_PAGE_BOUNDS | SKV_SCORES_SKETCHES)
enum done { ACCUMULATED = 1u << 16, TOUCHED = 1u << 17, EVICTED = 1u << 18 };
enum stage { ADOPT, BEFORE, AFTER, STEP_END };

#define REHEARSED_SEQS 2u

struct rehearsal {
	const struct skv_policy *policy;
	const struct skv_model *model;
	struct skv_plan *plans;
	/*
	 * [layer]: whether hooks have selected pages or tokens of the layer in this step (SKV_SCORES_PAGES,
	 * SKV_SCORES_TOKENS), and bits of enum done
	 */
	uint32_t *selected;
	char *state;        /* policy state of the sequences, [REHEARSED_SEQS][state_stride] */
	size_t state_stride;
	enum stage stage;
	uint32_t layer;
	char *err;
	size_t err_len;
	bool failed; /* an error was reported; later errors are not */
};

__attribute__((format(printf, 2, 3))) static void complain(struct rehearsal *r, const char *format, ...)
{
	static const char *const hooks[] = {"adopt", "before", "after", "step_end"};
	char text[256];
	va_list ap;

	if (r->failed)
		return;
	r->failed = true;
	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	if (r->stage == BEFORE || r->stage == AFTER)
		skv_refuse(-EBADMSG, r->err, r->err_len, "%s: %s of layer %u: %s", r->policy->name,
		           hooks[r->stage], r->layer, text);
	else
		skv_refuse(-EBADMSG, r->err, r->err_len, "%s: %s: %s", r->policy->name, hooks[r->stage],
		           text);
}

/* Returns whether the layer's scores exist at this point of the rehearsed step. */
static bool has_scores(const struct rehearsal *r, uint32_t layer)
{
	if (r->plans[layer].scores & BEFORE_SCORES)
		return r->selected[layer] & BEFORE_SCORES;
	return layer < r->layer ||
	       (layer == r->layer && (r->stage == AFTER || skv_plan_chooses(&r->plans[layer], layer)));
}

/*
 * Checks that a hook may select by the scores of s->layer now, and records the selection. `wrong`: error text of the
 * check of the arguments, or NULL.
 */
static void check_select(const struct skv_policy_ctx *ctx, const struct skv_select *s, uint32_t scores,
                         const char *wrong)
{
	struct rehearsal *r = ctx->library;

	if (r->stage != BEFORE && r->stage != AFTER)
		complain(r, "selects, expected in before and after only");
	else if (wrong)
		complain(r, "asks for %s (layer %u)", wrong, s->layer);
	else if ((skv_plan_chooses(&r->plans[s->layer], s->layer) || skv_plan_chooses_by_sketches(&r->plans[s->layer], s->layer)) &&
	         (s->layer != r->layer || r->stage != BEFORE))
		complain(r, "selects by layer %u, which selects its own tokens, expected in its before()", s->layer);
	else if (!has_scores(r, s->layer))
		complain(r, "selects by layer %u, which has no scores yet", s->layer);
	else
		r->selected[s->layer] |= scores;
}

static void select_pages(const struct skv_policy_ctx *ctx, const struct skv_select *s)
{
	struct rehearsal *r = ctx->library;

	check_select(ctx, s, SKV_SCORES_PAGES,
	             skv_select_check(s, SKV_SCORES_PAGES | SKV_SCORES_PAGE_BOUNDS, r->plans, r->model->n_layers));
}

static void select_tokens(const struct skv_policy_ctx *ctx, const struct skv_select *s)
{
	struct rehearsal *r = ctx->library;

	check_select(ctx, s, SKV_SCORES_TOKENS, skv_select_check(s, SKV_SCORES_TOKENS, r->plans, r->model->n_layers));
}

static void select_union(const struct skv_policy_ctx *ctx, const struct skv_select *s)
{
	struct rehearsal *r = ctx->library;

	check_select(ctx, s, SKV_SCORES_TOKENS, skv_union_check(s, r->plans, r->model->n_layers));
}

static void score(struct rehearsal *r, uint32_t layer, const char *what, const char *wrong)
{
	if (r->stage != BEFORE || layer != r->layer)
		complain(r, "scores %s of layer %u, expected in its own before", what, layer);
	else if (wrong)
		complain(r, "asks for %s", wrong);
	else
		r->selected[layer] |= r->plans[layer].scores & BEFORE_SCORES;
}

static void score_pages(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	struct rehearsal *r = ctx->library;

	score(r, layer, "pages", skv_score_check(layer, r->plans, r->model->n_layers));
}

static void score_sketches(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	struct rehearsal *r = ctx->library;

	score(r, layer, "sketches", skv_sketch_check(layer, r->plans, r->model->n_layers));
}

/* Checks a primitive that a hook may call at most once, and only for the layer that the hook runs for. */
static void request(struct rehearsal *r, enum stage stage, uint32_t layer, enum done what, const char *wrong)
{
	if (r->stage != stage || layer != r->layer)
		complain(r, "asks for layer %u, expected in its own %s", layer, stage == BEFORE ? "before" : "after");
	else if (wrong)
		complain(r, "asks for %s", wrong);
	else if (r->selected[layer] & what)
		complain(r, "makes the same call twice");
	else
		r->selected[layer] |= what;
}

static void accumulate_scores(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	struct rehearsal *r = ctx->library;

	request(r, AFTER, layer, ACCUMULATED, skv_accumulate_check(layer, r->plans, r->model->n_layers));
	if (!r->failed && r->selected[layer] & EVICTED)
		complain(r, "accumulates scores after the eviction");
}

static void evict_to_budget(const struct skv_policy_ctx *ctx, const struct skv_evict_to_budget *k)
{
	struct rehearsal *r = ctx->library;

	request(r, AFTER, k->layer, EVICTED, skv_evict_to_budget_check(k, r->plans, r->model->n_layers));
}

static void touch_pages(const struct skv_policy_ctx *ctx, const struct skv_touch_pages *s)
{
	struct rehearsal *r = ctx->library;

	request(r, BEFORE, s->layer, TOUCHED, skv_touch_check(s, r->plans, r->model->n_layers));
	if (!r->failed && !(r->selected[s->layer] & SKV_SCORES_PAGE_BOUNDS))
		complain(r, "touches pages that are not scored");
	if (!r->failed)
		/* touch_pages is also a selection: the layer attends to the touched pages */
		r->selected[s->layer] |= SKV_SCORES_PAGES;
}

static void evict_outside(const struct skv_policy_ctx *ctx, uint32_t layer, const struct skv_window *w)
{
	struct rehearsal *r = ctx->library;
	const char *wrong = skv_evict_outside_check(layer, w, r->plans, r->model->n_layers);

	if (r->stage != STEP_END)
		complain(r, "evicts, expected in step_end only");
	else if (wrong)
		complain(r, "asks for %s (layer %u)", wrong, layer);
}

static void *seq_state(const struct skv_policy_ctx *ctx, uint32_t i)
{
	struct rehearsal *r = ctx->library;

	if (r->stage != STEP_END && r->stage != ADOPT)
		complain(r, "asks for state, expected in adopt and step_end only");
	else if (i >= ctx->n_seqs)
		complain(r, "asks for the state of sequence %u of %u", i, ctx->n_seqs);
	else if (!r->policy->seq_state_bytes)
		complain(r, "asks for state, but seq_state_bytes is 0");
	else
		return r->state + i * r->state_stride;
	return r->state; /* even after an error the hook gets memory that it can write to */
}

static const struct skv_prims prims = {
        .size = sizeof(prims),
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

/* Checks that a hook has already made the selection to which the layer attends. */
static void expect_selection(struct rehearsal *r)
{
	const struct skv_plan *p = &r->plans[r->layer];
	uint32_t needs = 0;

	if (p->attend == SKV_ATTEND_PAGES)
		needs = SKV_SCORES_PAGES;
	else if (p->attend == SKV_ATTEND_TOKENS)
		needs = SKV_SCORES_TOKENS;
	if (needs && !(r->selected[p->source] & needs) && !(p->evict.max_head_ratio > 0))
		complain(r, "the layer attends to a selection of layer %u that no hook has made", p->source);
}

/*
 * Checks that the hooks of a layer with an eviction plan evict in every step, and accumulate scores before if the plan
 * evicts by scores.
 */
static void expect_eviction(struct rehearsal *r)
{
	const struct skv_evict *k = &r->plans[r->layer].evict;

	if (k->accumulate && !(k->max_head_ratio > 0) && !(r->selected[r->layer] & ACCUMULATED))
		complain(r, "the layer evicts by scores that no hook accumulates");
	if (k->granularity && !(r->selected[r->layer] & EVICTED))
		complain(r, "the layer has an eviction plan, but no hook evicts");
}

static void run_hooks(struct rehearsal *r, const void *config)
{
	struct skv_policy_ctx ctx = {
	        .size = sizeof(ctx),
	        .n_seqs = REHEARSED_SEQS,
	        .prims = &prims,
	        .model = r->model,
	        .config = config,
	        .library = r,
	};
	const struct skv_policy *p = r->policy;
	char text[256] = "";

	r->stage = ADOPT;
	/*
	 * The result of adopt() does not matter here: a policy may refuse sequences of another policy, and the
	 * rehearsal has none.
	 */
	if (p->adopt)
		p->adopt(&ctx, text, sizeof(text));
	for (r->layer = 0; r->layer < r->model->n_layers; r->layer++) {
		r->stage = BEFORE;
		if (skv_model_window(r->model, r->layer))
			continue;
		if (p->before)
			p->before(&ctx, r->layer);
		expect_selection(r);
		r->stage = AFTER;
		if (p->after)
			p->after(&ctx, r->layer);
		expect_eviction(r);
	}
	r->stage = STEP_END;
	if (p->step_end)
		p->step_end(&ctx);
}

int skv_policy_rehearse(const struct skv_policy *p, const char *spec, const struct skv_model *m, char *err,
                        size_t err_len)
{
	struct rehearsal r = {
	        .policy = p,
	        .model = m,
	        .plans = calloc(m->n_layers, sizeof(struct skv_plan)),
	        .selected = calloc(m->n_layers, sizeof(uint32_t)),
	        .state_stride = ((size_t)p->seq_state_bytes + 63) / 64 * 64,
	        .err = err,
	        .err_len = err_len,
	};
	void *config = calloc(1, p->config_size + 1);
	int ret = -ENOMEM;

	r.state = calloc(1, REHEARSED_SEQS * r.state_stride + 64);
	if (!r.plans || !r.selected || !r.state || !config) {
		skv_refuse(ret, err, err_len, "%s: no memory for a rehearsal", p->name);
		goto out;
	}
	ret = skv_spec_parse(p, spec ? spec : p->name, m, config, err, err_len);
	if (ret == 0)
		ret = skv_policy_plan(p, config, m, r.plans, err, err_len);
	if (ret == 0) {
		run_hooks(&r, config);
		ret = r.failed ? -EBADMSG : 0;
	}
out:
	free(config);
	free(r.state);
	free(r.selected);
	free(r.plans);
	return ret;
}
