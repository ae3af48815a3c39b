/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lessismore - two layers select one set of tokens for all heads, all others reuse it ("Less Is More: Training-Free
 * Sparse Attention with Global Locality for Efficient Reasoning").
 *
 * As tidal, but the budget is one for all heads and has three parts: the first tokens (sinks), the last ones, and of
 * those between the union of what the q heads find best. Each head ranks them by its scores; the union takes all heads'
 * first, then all heads' second and so on, no token twice, until the budget is used up. Nothing is evicted.
 */
#include <stddef.h>
#include <stdio.h>
#include <sparsekv/policy.h>

struct config {
	struct skv_budget budget; /* tokens, sinks and recent ones included */
	uint32_t sinks;
	uint32_t recent;
	struct skv_layer_set layers;
	uint32_t dense;
	struct skv_profile profile;
	struct skv_prefill_config prefill;
};

static const struct skv_param params[] = {
        {"budget", SKV_PARAM_BUDGET, offsetof(struct config, budget), "2048",
         "tokens selected, sinks and recent ones included; below 1 a share of the sequence, at least 128 tokens"},
        {"sinks", SKV_PARAM_UINT, offsetof(struct config, sinks), "4", "first tokens, always among the selected"},
        {"recent", SKV_PARAM_UINT, offsetof(struct config, recent), "0",
         "last tokens, always among the selected; 0: an eighth of the budget"},
        {"layers", SKV_PARAM_LAYERS, offsetof(struct config, layers), "auto",
         "layers that select; auto: the profile's filter layers, without one the first that is not dense, and the one "
         "after 13/32 of the layers"},
        {"dense", SKV_PARAM_UINT, offsetof(struct config, dense), "2", "first layers that stay dense"},
        {"profile", SKV_PARAM_PROFILE, offsetof(struct config, profile), "none",
         "what sparsekv-calibrate has written about the model"},
        SKV_PREFILL_PARAMS(struct config, prefill, "prefill_"),
};

static int selects(const struct config *c, const struct skv_model *m, uint32_t layer)
{
	if (!skv_layer_set_empty(&c->layers))
		return skv_layer_in(&c->layers, layer);
	if (!skv_layer_set_empty(&c->profile.filters))
		return skv_layer_in(&c->profile.filters, layer);
	return layer == c->dense || (layer > c->dense && layer == m->n_layers * 13 / 32);
}

static int check(const void *config, const struct skv_model *m, char *err, size_t err_len)
{
	const struct config *c = config;
	uint32_t least = c->budget.share > 0 ? 128 : c->budget.count;

	(void)m;
	if (c->sinks < least && c->recent <= least - c->sinks)
		return skv_prefill_check(&c->prefill, "prefill_", err, err_len);
	snprintf(err, err_len, "sinks=%u and recent=%u, expected together at most the %u tokens of the budget", c->sinks,
	         c->recent, least);
	return -1;
}

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	const struct config *c = config;

	skv_prefill_plan(&c->prefill, m, layer, plan);
	if (selects(c, m, layer)) {
		plan->scores = SKV_SCORES_TOKENS;
		plan->sharing = SKV_SHARE_Q_HEAD;
		return;
	}
	for (uint32_t earlier = layer; earlier-- > 0 && layer >= c->dense;) {
		if (selects(c, m, earlier)) {
			plan->attend = SKV_ATTEND_TOKENS;
			plan->source = earlier;
			return;
		}
	}
}

static void after(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	const struct config *c = ctx->config;

	if (selects(c, ctx->model, layer))
		ctx->prims->select_union(ctx, &(struct skv_select){
		                                      .layer = layer,
		                                      .budget = c->budget,
		                                      .floor = c->budget.share > 0 ? 128 : 1,
		                                      .recent = c->recent,
		                                      .recent_floor = 1,
		                                      .pin = c->sinks,
		                                      .pin_counts = 1,
		                              });
}

static const struct skv_policy lessismore = {
        SKV_POLICY_HEADER,
        .name = "lessismore",
        .version = "1",
        .summary = "Two layers select the union of what q heads find best, the layers after them reuse it (LessIsMore)",
        .action = SKV_ACT_SELECT,
        .granularity = SKV_GRAN_TOKEN,
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
	return &lessismore;
}
