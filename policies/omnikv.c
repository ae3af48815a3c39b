/* SPDX-License-Identifier: Apache-2.0 */
/*
 * omnikv - a few filter layers select the context for the layers after them ("OmniKV: Dynamic Context Selection for
 * Efficient Long-Context LLMs").
 *
 * A filter layer attends densely and selects tokens, one selection for all heads. The layers after it, up to the next
 * filter layer, attend to these tokens:
 *
 *   token score   s_t = max over all q heads of the softmax weight of token t
 *   selection     the last tokens, and the best of the rest, together a share of the sequence
 *
 * The authors use layers 2, 8 and 18 of 32 as filters, and one more layer after each attends densely. Nothing is
 * evicted.
 *
 * The parameter scores=sketch is not part of the paper: with it, weights come from sketches of keys, and a filter layer
 * attends to its own selection.
 */
#include <sparsekv/policy.h>

struct config {
	struct skv_select_config select;
	uint32_t more;
};

static const struct skv_param params[] = {
        {"budget", SKV_PARAM_BUDGET, offsetof(struct config, select.budget), "0.3",
         "tokens selected; below 1 a share of the sequence, at least 128 tokens"},
        SKV_SELECT_RECENT_PARAM(struct config, select, "32", "tokens"),
        SKV_SELECT_LAYERS_PARAM(struct config, select, SKV_SELECT_FILTERS_HELP),
        {"more", SKV_PARAM_UINT, offsetof(struct config, more), "1",
         "layers right after a filter that attend densely, too"},
        SKV_SELECT_DENSE_PARAM(struct config, select),
        SKV_SELECT_PROFILE_PARAMS(struct config, select),
        SKV_SKETCH_PARAMS(struct config, select.sketch),
};

static int check(const void *config, const struct skv_model *m, char *err, size_t err_len)
{
	const struct skv_select_config *c = &((const struct config *)config)->select;

	if (c->sketch.scores == SKV_SCORED_BY_SKETCHES &&
	    skv_sketch_config_check(c->sketch.bits, c->budget.share > 0 ? 128 : c->budget.count, m, err, err_len) < 0)
		return -1;
	return skv_select_config_check(c, "tokens", err, err_len);
}

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	const struct config *c = config;
	struct skv_layer_set filters = skv_select_filters(&c->select, m);

	skv_select_plan(&c->select, &filters, SKV_ATTEND_TOKENS, SKV_SHARE_ALL_HEADS, m, layer, plan);
	if (plan->attend == SKV_ATTEND_TOKENS && plan->source < layer && skv_full_layers(m, plan->source, layer) <= c->more) {
		plan->attend = SKV_ATTEND_DENSE;
		plan->source = 0;
	}
}

static void before(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	const struct config *c = ctx->config;
	struct skv_layer_set filters = skv_select_filters(&c->select, ctx->model);

	skv_select_before(ctx, &c->select, &filters, layer);
}

static void after(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	const struct config *c = ctx->config;
	struct skv_layer_set filters = skv_select_filters(&c->select, ctx->model);

	skv_select_after(ctx, &c->select, &filters, layer);
}

SKV_POLICY_DEFINE("omnikv", struct config, params,
                  .summary = "A few dense filter layers select tokens for the layers after them (OmniKV)",
                  SKV_TAXONOMY(SKV_ACT_SELECT, SKV_GRAN_TOKEN, SKV_EVID_WEIGHTS, SKV_SCOPE_STEP, SKV_SHARE_ALL_HEADS),
                  .check = check, .plan = plan, .before = before, .after = after)
