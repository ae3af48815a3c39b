/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparsekv/policy-evict.h - parameters, plans and hooks of policies that evict tokens by accumulated attention scores,
 * as in several papers (H2O, SnapKV, PyramidKV, Ada-KV, R-KV). Only policy.h includes this header.
 *
 * Each kv head adds up the attention weights that a token gets from all queries, or from those in an observation
 * window, and retains the tokens with the best scores. Papers differ in the score, and in how heads and layers share
 * the budget; a policy's file defines these two. This header has the rest: parameters, their check, the plan of a
 * layer, and after().
 */
#ifndef SPARSEKV_POLICY_EVICT_H
#define SPARSEKV_POLICY_EVICT_H

#ifndef SPARSEKV_POLICY_H
#error "include <sparsekv/policy.h>"
#endif

struct skv_evict_config {
	struct skv_budget budget; /* number of tokens that a kv head retains, including the observation window */
	uint32_t window;          /* number of queries in the observation window: the last ones */
	uint32_t pool;            /* number of positions over which a score is averaged */
	/* number of tokens from one eviction to the next; 0: one eviction, at the end of the prompt */
	uint32_t interval;
	uint32_t dense;
	struct skv_prefill_config prefill;
};

/* Rows of a parameter table, in the order of specs. `what`: text that says which tokens the budget counts. */
#define SKV_EVICT_BUDGET_PARAM(config, field, what)                                                         \
	{"budget", SKV_PARAM_BUDGET, offsetof(config, field.budget), "1024",                                \
	 what "; below 1 a share of the sequence, at least 128 tokens"}

#define SKV_EVICT_DENSE_PARAM(config, field)                                                                \
	{"dense", SKV_PARAM_UINT, offsetof(config, field.dense), "0", "first layers that stay dense"}

#define SKV_EVICT_WINDOW_BUDGET_HELP "tokens that a kv head keeps, the observation window among them"

/* Parameters of a policy with an observation window. Papers differ in the defaults of `window` and `pool`. */
#define SKV_EVICT_WINDOW_PARAMS(config, field, window_default, pool_default)                                \
	{"window", SKV_PARAM_UINT, offsetof(config, field.window), window_default,                          \
	 "observation window: last queries, whose attention scores count; their tokens stay"},              \
	{"pool", SKV_PARAM_UINT, offsetof(config, field.pool), pool_default,                                \
	 "positions that a score is averaged over; odd"},                                                   \
	{"interval", SKV_PARAM_UINT, offsetof(config, field.interval), "128",                               \
	 "tokens decoded from one eviction to the next; 0: one eviction, at the end of the prompt"},        \
	SKV_EVICT_DENSE_PARAM(config, field)

/* Are the values of SKV_EVICT_WINDOW_PARAMS valid? Returns 0, or -1 with a text that names the bad parameter. */
static inline int skv_evict_config_check(const struct skv_evict_config *c, char *err, size_t err_len)
{
	uint32_t least = c->budget.share > 0 ? 128 : c->budget.count;

	if (c->window < 1 || c->window >= least)
		snprintf(err, err_len, "window=%u, expected 1 to %u: less than the budget", c->window, least - 1);
	else if (c->pool % 2 == 0 || c->pool > 63)
		snprintf(err, err_len, "pool=%u, expected an odd number up to 63", c->pool);
	else if (c->interval > 0 && c->interval < c->window)
		snprintf(err, err_len, "interval=%u, expected 0 or at least the window of %u", c->interval, c->window);
	else
		return skv_prefill_check(&c->prefill, err, err_len);
	return -1;
}

/* Fill an eviction plan: evict by accumulated scores as soon as there is one token more than the budget. */
static inline void skv_evict_by_scores(const struct skv_evict_config *c, struct skv_evict *evict)
{
	evict->granularity = 1;
	evict->floor = c->budget.share > 0 ? 128 : 0;
	evict->budget = c->budget;
	evict->slack = 1;
	evict->accumulate = 1;
}

/*
 * Fill an eviction plan: evict by the scores of the observation window, at the end of a prompt and after each interval.
 */
static inline void skv_evict_by_window(const struct skv_evict_config *c, struct skv_evict *evict)
{
	skv_evict_by_scores(c, evict);
	evict->slack = c->interval ? c->interval : SKV_MAX_TOKENS;
	evict->at_prompt_end = 1;
	evict->window = c->window;
}

/* Plan accumulated scores. Returns whether the layer evicts; if it does, the policy must fill plan->evict. */
static inline int skv_evict_plan(const struct skv_evict_config *c, const struct skv_model *m, uint32_t layer,
                                 struct skv_plan *plan)
{
	skv_prefill_plan(&c->prefill, m, layer, plan);
	if (layer < c->dense)
		return 0;
	plan->scores = SKV_SCORES_TOKENS;
	plan->reduce = SKV_REDUCE_SUM;
	plan->sharing = SKV_SHARE_KV_HEAD;
	return 1;
}

/* Plan scores of an observation window, and fill plan->evict. Returns whether the layer evicts. */
static inline int skv_evict_window_plan(const struct skv_evict_config *c, const struct skv_model *m, uint32_t layer,
                                        struct skv_plan *plan)
{
	if (!skv_evict_plan(c, m, layer, plan))
		return 0;
	skv_evict_by_window(c, &plan->evict);
	return 1;
}

/* Retain the observation window, and of the other tokens the best by their scores averaged over `pool` positions. */
static inline struct skv_evict_to_budget skv_evict_pooled(const struct skv_evict_config *c, uint32_t layer)
{
	struct skv_evict_to_budget keep;

	memset(&keep, 0, sizeof(keep));
	keep.layer = layer;
	keep.recent.count = c->window;
	keep.smooth = c->pool;
	return keep;
}

/* Call in after(): adds the step's attention weights to the scores, and evicts if the plan says that it is time. */
static inline void skv_evict_after(const struct skv_policy_ctx *ctx, const struct skv_evict_config *c,
                                   struct skv_evict_to_budget keep)
{
	if (keep.layer < c->dense)
		return;
	ctx->prims->accumulate_scores(ctx, keep.layer);
	ctx->prims->evict_to_budget(ctx, &keep);
}

#endif
