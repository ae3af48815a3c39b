/* SPDX-License-Identifier: Apache-2.0 */
/*
 * delta - a few layers select pages for the layers after them ("DELTA: Dynamic Layer-Aware Token
 * Attention for Efficient Long-Context Reasoning").
 *
 * A few layers, where attention shifts most, attend densely and choose pages; the layers after each
 * attend to what it chose, until the next one chooses anew:
 *
 *   token score   s_t = max over all q heads of the softmax weight of token t
 *   page score    S_u = sum of s_t over the tokens of page u
 *   selection     the last L pages, and the best K - L of the rest; one set for all heads
 *
 * The paper runs K = 64, L = 8 and keeps the first two layers dense. A sequence of no more than K
 * pages selects all of them, so it is dense by itself. Nothing is evicted.
 */
#include <stddef.h>
#include <stdio.h>
#include <sparsekv/policy.h>

struct config {
	struct skv_budget budget; /* K, pages */
	uint32_t recent;          /* L, pages; 0: an eighth of K */
	struct skv_layer_set layers;
	uint32_t dense;
	uint32_t pin; /* pages */
	struct skv_profile profile;
	struct skv_prefill_config prefill;
};

static const struct skv_param params[] = {
        {"budget", SKV_PARAM_BUDGET, offsetof(struct config, budget), "64",
         "pages selected; below 1 a share of the sequence, at least 8 pages"},
        {"recent", SKV_PARAM_UINT, offsetof(struct config, recent), "0",
         "last pages, always among the selected; 0: an eighth of the budget"},
        {"layers", SKV_PARAM_LAYERS, offsetof(struct config, layers), "auto",
         "layers that select; auto: the profile's, without one three, evenly spaced from the first that is not "
         "dense"},
        {"dense", SKV_PARAM_UINT, offsetof(struct config, dense), "2", "first layers that stay dense"},
        {"pin", SKV_PARAM_UINT, offsetof(struct config, pin), "0",
         "first pages of the sequence that are always kept, on top of the budget"},
        {"profile", SKV_PARAM_PROFILE, offsetof(struct config, profile), "none",
         "what sparsekv-calibrate has written about the model"},
        SKV_PREFILL_PARAMS(struct config, prefill, ""),
};

/*
 * Does this layer select? Which layers do well is a property of the model (the paper calibrates, as
 * sparsekv-calibrate does: 2,14,22 of 28 layers, 2,8,31 of 32). Not knowing them, start right after the dense layers, as
 * all its sets do, and divide the rest in three.
 */
static int selects(const struct config *c, const struct skv_model *m, uint32_t layer)
{
	if (!skv_layer_set_empty(&c->layers))
		return skv_layer_in(&c->layers, layer);
	if (!skv_layer_set_empty(&c->profile.delta))
		return skv_layer_in(&c->profile.delta, layer);
	for (uint32_t i = 0; i < 3 && c->dense < m->n_layers; i++)
		if (layer == c->dense + (i * (m->n_layers - c->dense) + 2) / 3)
			return 1;
	return 0;
}

static int check(const void *config, const struct skv_model *m, char *err, size_t err_len)
{
	const struct config *c = config;

	(void)m;
	if (!c->budget.count || c->recent <= c->budget.count)
		return skv_prefill_check(&c->prefill, "", err, err_len);
	snprintf(err, err_len, "recent=%u, expected at most the budget of %u pages", c->recent,
	         c->budget.count);
	return -1;
}

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	const struct config *c = config;

	skv_prefill_plan(&c->prefill, m, layer, plan);
	if (selects(c, m, layer)) {
		plan->scores = SKV_SCORES_PAGES;
		plan->reduce = SKV_REDUCE_MAX;
		plan->sharing = SKV_SHARE_ALL_HEADS;
		return;
	}
	if (layer < c->dense)
		return;
	for (uint32_t earlier = layer; earlier-- > 0;) {
		if (selects(c, m, earlier)) {
			plan->attend = SKV_ATTEND_PAGES;
			plan->source = earlier;
			return;
		}
	}
	/* before the first selection: dense */
}

static void after(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	const struct config *c = ctx->config;
	int share = c->budget.share > 0;

	if (selects(c, ctx->model, layer))
		ctx->prims->select_pages(ctx, &(struct skv_select){
		                                      .layer = layer,
		                                      .budget = c->budget,
		                                      .floor = share ? 8 : 1,
		                                      .recent = c->recent,
		                                      .recent_floor = share && !c->recent ? 2 : 1,
		                                      .pin = c->pin,
		                              });
}

static const struct skv_policy delta = {
        SKV_POLICY_HEADER,
        .name = "delta",
        .version = "1",
        .summary = "A few dense layers select pages for the layers after them (DELTA)",
        .action = SKV_ACT_SELECT,
        .granularity = SKV_GRAN_PAGE,
        .evidence = SKV_EVID_WEIGHTS,
        .scope = SKV_SCOPE_STEP,
        .sharing = SKV_SHARE_ALL_HEADS,
        .params = params,
        .n_params = sizeof(params) / sizeof(params[0]),
        .config_size = sizeof(struct config),
        .check = check,
        .plan = plan,
        .after = after,
};

const struct skv_policy *sparsekv_policy(void)
{
	return &delta;
}
