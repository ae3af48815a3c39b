/* SPDX-License-Identifier: Apache-2.0 */
/*
 * omnikv - a few filter layers say which context matters to the layers after them ("OmniKV: Dynamic Context
 * Selection for Efficient Long-Context LLMs").
 *
 * A filter layer attends densely and selects tokens, one set for all heads; the layers after it attend to these,
 * until the next filter:
 *
 *   token score   s_t = max over all q heads of the softmax weight of token t
 *   selection     the last tokens, and the best of the rest, together a share of the sequence
 *
 * The authors filter in layers 2, 8 and 18 of 32 and let one more layer after each attend densely. Nothing is
 * evicted.
 */
#include <stddef.h>
#include <stdio.h>
#include <sparsekv/policy.h>

struct config {
	struct skv_budget budget; /* tokens */
	uint32_t recent;          /* tokens */
	struct skv_layer_set layers;
	uint32_t more;
	uint32_t dense;
	struct skv_profile profile;
	struct skv_prefill_config prefill;
};

static const struct skv_param params[] = {
        {"budget", SKV_PARAM_BUDGET, offsetof(struct config, budget), "0.3",
         "tokens selected; below 1 a share of the sequence, at least 128 tokens"},
        {"recent", SKV_PARAM_UINT, offsetof(struct config, recent), "32",
         "last tokens, always among the selected; 0: an eighth of the budget"},
        {"layers", SKV_PARAM_LAYERS, offsetof(struct config, layers), "auto",
         "filter layers; auto: the profile's, without one three, evenly spaced from the first that is not dense"},
        {"more", SKV_PARAM_UINT, offsetof(struct config, more), "1",
         "layers right after a filter that attend densely too"},
        {"dense", SKV_PARAM_UINT, offsetof(struct config, dense), "2", "first layers that stay dense"},
        {"profile", SKV_PARAM_PROFILE, offsetof(struct config, profile), "none",
         "what sparsekv-calibrate has written about the model"},
        SKV_PREFILL_PARAMS(struct config, prefill, ""),
};

static int filters(const struct config *c, const struct skv_model *m, uint32_t layer)
{
	if (!skv_layer_set_empty(&c->layers))
		return skv_layer_in(&c->layers, layer);
	if (!skv_layer_set_empty(&c->profile.filters))
		return skv_layer_in(&c->profile.filters, layer);
	return skv_layer_even(m, c->dense, 3, layer);
}

static int check(const void *config, const struct skv_model *m, char *err, size_t err_len)
{
	const struct config *c = config;

	(void)m;
	if (!c->budget.count || c->recent <= c->budget.count)
		return skv_prefill_check(&c->prefill, "", err, err_len);
	snprintf(err, err_len, "recent=%u, expected at most the budget of %u tokens", c->recent, c->budget.count);
	return -1;
}

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	const struct config *c = config;
	uint32_t filter = layer;

	skv_prefill_plan(&c->prefill, m, layer, plan);
	if (filters(c, m, layer)) {
		plan->scores = SKV_SCORES_TOKENS;
		plan->reduce = SKV_REDUCE_MAX;
		plan->sharing = SKV_SHARE_ALL_HEADS;
		return;
	}
	while (filter > 0 && !filters(c, m, filter))
		filter--;
	if (layer < c->dense || !filters(c, m, filter) || layer - filter <= c->more)
		return;
	plan->attend = SKV_ATTEND_TOKENS;
	plan->source = filter;
}

static void after(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	const struct config *c = ctx->config;

	if (filters(c, ctx->model, layer))
		ctx->prims->select_tokens(ctx, &(struct skv_select){
		                                       .layer = layer,
		                                       .budget = c->budget,
		                                       .floor = c->budget.share > 0 ? 128 : 1,
		                                       .recent = c->recent,
		                                       .recent_floor = 1,
		                               });
}

static const struct skv_policy omnikv = {
        SKV_POLICY_HEADER,
        .name = "omnikv",
        .version = "1",
        .summary = "A few dense filter layers select tokens for the layers after them (OmniKV)",
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
	return &omnikv;
}
