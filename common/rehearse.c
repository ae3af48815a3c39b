/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common/rehearse.c - a step without tensors: every hook runs once, every request is looked at.
 *
 * A policy that asks for what it cannot have is found when it is loaded rather than at an engine's
 * next step. Hooks do not see lengths or scores, so what they ask here is what they ask in service.
 */
#include "common/spec.h"
#include "common/refuse.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Beside SKV_EV_PAGES and SKV_EV_TOKENS; SKV_EV_BOUNDS: it was scored. */
enum done { TALLIED = 1u << 16, STAMPED = 1u << 17, KEPT = 1u << 18 };
enum stage { ADOPT, BEFORE, AFTER, STEP_END };

#define REHEARSED_SEQS 2u

struct rehearsal {
	const struct skv_policy *policy;
	const struct skv_model *model;
	struct skv_plan *plans;
	uint32_t *selected; /* [layer]: what was selected in this step, pages or tokens, and enum done */
	char *state;        /* [REHEARSED_SEQS][state_stride] */
	size_t state_stride;
	enum stage stage;
	uint32_t layer;
	char *err;
	size_t err_len;
	bool failed; /* the first complaint stays */
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

/* Can something be selected by what the layer has at this point of the step? */
static bool has_evidence(const struct rehearsal *r, uint32_t layer)
{
	if (r->plans[layer].evidence & SKV_EV_BOUNDS)
		return r->selected[layer] & SKV_EV_BOUNDS;
	return layer < r->layer ||
	       (layer == r->layer && (r->stage == AFTER || skv_plan_chooses(&r->plans[layer], layer)));
}

/* `wrong`: what a check of the request itself has found. */
static void select_units(const struct skv_policy_ctx *ctx, const struct skv_select *s, uint32_t evidence,
                         const char *wrong)
{
	struct rehearsal *r = ctx->host;

	if (r->stage != BEFORE && r->stage != AFTER)
		complain(r, "selects, expected in before and after only");
	else if (wrong)
		complain(r, "asks for %s (layer %u)", wrong, s->layer);
	else if (skv_plan_chooses(&r->plans[s->layer], s->layer) && (s->layer != r->layer || r->stage != BEFORE))
		complain(r, "selects by layer %u, which chooses by itself, in its before()", s->layer);
	else if (!has_evidence(r, s->layer))
		complain(r, "selects by layer %u, which has no evidence yet", s->layer);
	else
		r->selected[s->layer] |= evidence;
}

static void select_pages(const struct skv_policy_ctx *ctx, const struct skv_select *s)
{
	struct rehearsal *r = ctx->host;

	select_units(ctx, s, SKV_EV_PAGES,
	             skv_select_check(s, SKV_EV_PAGES | SKV_EV_BOUNDS, r->plans, r->model->n_layers));
}

static void select_tokens(const struct skv_policy_ctx *ctx, const struct skv_select *s)
{
	struct rehearsal *r = ctx->host;

	select_units(ctx, s, SKV_EV_TOKENS, skv_select_check(s, SKV_EV_TOKENS, r->plans, r->model->n_layers));
}

static void select_union(const struct skv_policy_ctx *ctx, const struct skv_select *s)
{
	struct rehearsal *r = ctx->host;

	select_units(ctx, s, SKV_EV_TOKENS, skv_union_check(s, r->plans, r->model->n_layers));
}

static void score_pages(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	struct rehearsal *r = ctx->host;
	const char *wrong = skv_score_check(layer, r->plans, r->model->n_layers);

	if (r->stage != BEFORE || layer != r->layer)
		complain(r, "scores pages of layer %u, expected in its own before", layer);
	else if (wrong)
		complain(r, "asks for %s", wrong);
	else
		r->selected[layer] |= SKV_EV_BOUNDS;
}

/* A layer's own request in the hook that it belongs to: done, once. */
static void request(struct rehearsal *r, enum stage stage, uint32_t layer, enum done what, const char *wrong)
{
	if (r->stage != stage || layer != r->layer)
		complain(r, "asks for layer %u, expected in its own %s", layer, stage == BEFORE ? "before" : "after");
	else if (wrong)
		complain(r, "asks for %s", wrong);
	else if (r->selected[layer] & what)
		complain(r, "asks for the same twice");
	else
		r->selected[layer] |= what;
}

static void tally(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	struct rehearsal *r = ctx->host;

	request(r, AFTER, layer, TALLIED, skv_tally_check(layer, r->plans, r->model->n_layers));
	if (!r->failed && r->selected[layer] & KEPT)
		complain(r, "votes after the choice");
}

static void keep_best(const struct skv_policy_ctx *ctx, const struct skv_keep_best *k)
{
	struct rehearsal *r = ctx->host;

	request(r, AFTER, k->layer, KEPT, skv_keep_check(k, r->plans, r->model->n_layers));
}

static void stamp_pages(const struct skv_policy_ctx *ctx, const struct skv_stamp_pages *s)
{
	struct rehearsal *r = ctx->host;

	request(r, BEFORE, s->layer, STAMPED, skv_stamp_check(s, r->plans, r->model->n_layers));
	if (!r->failed && !(r->selected[s->layer] & SKV_EV_BOUNDS))
		complain(r, "stamps pages that are not scored");
	if (!r->failed)
		r->selected[s->layer] |= SKV_EV_PAGES; /* the list is what the layer attends to */
}

static void evict_outside(const struct skv_policy_ctx *ctx, uint32_t layer, const struct skv_window *w)
{
	struct rehearsal *r = ctx->host;
	const char *wrong = skv_evict_check(layer, w, r->plans, r->model->n_layers);

	if (r->stage != STEP_END)
		complain(r, "evicts, expected in step_end only");
	else if (wrong)
		complain(r, "asks for %s (layer %u)", wrong, layer);
}

static void *seq_state(const struct skv_policy_ctx *ctx, uint32_t i)
{
	struct rehearsal *r = ctx->host;

	if (r->stage != STEP_END && r->stage != ADOPT)
		complain(r, "asks for state, expected in adopt and step_end only");
	else if (i >= ctx->n_seqs)
		complain(r, "asks for the state of sequence %u of %u", i, ctx->n_seqs);
	else if (!r->policy->seq_state_bytes)
		complain(r, "asks for state, but seq_state_bytes is 0");
	else
		return r->state + i * r->state_stride;
	return r->state; /* there is always one to write into */
}

static const struct skv_prims prims = {
        .size = sizeof(prims),
        .select_pages = select_pages,
        .select_tokens = select_tokens,
        .select_union = select_union,
        .evict_outside = evict_outside,
        .seq_state = seq_state,
        .score_pages = score_pages,
        .tally = tally,
        .keep_best = keep_best,
        .stamp_pages = stamp_pages,
};

/* A layer that reuses a selection runs after it was made, or it has nothing to attend to. */
static void expect_selection(struct rehearsal *r)
{
	const struct skv_plan *p = &r->plans[r->layer];
	uint32_t needs = 0;

	if (p->attend == SKV_ATTEND_PAGES)
		needs = SKV_EV_PAGES;
	else if (p->attend == SKV_ATTEND_TOKENS)
		needs = SKV_EV_TOKENS;
	if (needs && !(r->selected[p->source] & needs) && !(p->keep.spread > 0))
		complain(r, "the layer attends to a selection of layer %u that no hook has made", p->source);
}

/* And one that keeps units chooses in every step, by votes if it has them. */
static void expect_choice(struct rehearsal *r)
{
	const struct skv_keep *k = &r->plans[r->layer].keep;

	if (k->votes && !(k->spread > 0) && !(r->selected[r->layer] & TALLIED))
		complain(r, "the layer keeps tokens by votes that no hook has counted");
	if (k->unit && !(r->selected[r->layer] & KEPT))
		complain(r, "the layer keeps units, but no hook has chosen them");
}

static void run_hooks(struct rehearsal *r, const void *config)
{
	struct skv_policy_ctx ctx = {
	        .size = sizeof(ctx),
	        .n_seqs = REHEARSED_SEQS,
	        .prims = &prims,
	        .model = r->model,
	        .config = config,
	        .host = r,
	};
	const struct skv_policy *p = r->policy;
	char text[256] = "";

	r->stage = ADOPT;
	/* A refusal is the policy's right. It is not known here what it refuses. */
	if (p->adopt)
		p->adopt(&ctx, text, sizeof(text));
	for (r->layer = 0; r->layer < r->model->n_layers; r->layer++) {
		r->stage = BEFORE;
		if (p->before)
			p->before(&ctx, r->layer);
		expect_selection(r);
		r->stage = AFTER;
		if (p->after)
			p->after(&ctx, r->layer);
		expect_choice(r);
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
