/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tidal - two layers select tokens for each q head, and all later layers attend to these tokens ("TidalDecode: Fast and
 * Accurate LLM Decoding with Position Persistent Sparse Attention").
 *
 * The first layers attend densely. The layer after them also attends densely, and selects the k tokens with the largest
 * scores of each q head. All later layers attend to these tokens, except one layer in the middle (layer 13 of 32 in the
 * paper), which attends densely and selects anew. Nothing is evicted.
 */
#include <sparsekv/policy.h>

struct config {
	struct skv_select_config select;
};

static const struct skv_param params[] = {
        {"budget", SKV_PARAM_BUDGET, offsetof(struct config, select.budget), "512",
         "tokens selected for a q head; below 1 a share of the sequence, at least 128 tokens"},
        SKV_SELECT_LAYERS_PARAM(struct config, select, SKV_SELECT_TWICE_HELP),
        SKV_SELECT_DENSE_PARAM(struct config, select),
        SKV_SELECT_PROFILE_PARAMS(struct config, select),
};

static int check(const void *config, const struct skv_model *m, char *err, size_t err_len)
{
	(void)m;
	return skv_prefill_check(&((const struct config *)config)->select.prefill, err, err_len);
}

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	const struct config *c = config;
	struct skv_layer_set layers = skv_select_layers_twice(&c->select, m);

	skv_select_plan(&c->select, &layers, SKV_ATTEND_TOKENS, SKV_SHARE_Q_HEAD, m, layer, plan);
}

static void after(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	const struct config *c = ctx->config;
	struct skv_layer_set layers = skv_select_layers_twice(&c->select, ctx->model);

	if (skv_layer_in(&layers, layer))
		ctx->prims->select_tokens(ctx, &(struct skv_select){
		                                       .layer = layer,
		                                       .budget = c->select.budget,
		                                       .floor = c->select.budget.share > 0 ? 128 : 1,
		                                       .no_recent = 1,
		                               });
}

SKV_POLICY_DEFINE("tidal", struct config, params,
                  .summary = "Two layers select tokens for each q head, the layers after them reuse those (TidalDecode)",
                  SKV_TAXONOMY(SKV_ACT_SELECT, SKV_GRAN_TOKEN, SKV_EVID_WEIGHTS, SKV_SCOPE_STEP, SKV_SHARE_Q_HEAD),
                  .check = check, .plan = plan, .after = after)
