/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lessismore - two layers make one selection for all heads, and all later layers reuse it ("Less Is More: Training-Free
 * Sparse Attention with Global Locality for Efficient Reasoning").
 *
 * The policy works like TidalDecode, except that all heads share one selection and one budget. The selection has three
 * parts: the first tokens (attention sinks), the last tokens, and between these the union of the q heads' best tokens.
 * Each head ranks the tokens by its scores. The union takes the first token of every head, then the second token of
 * every head and so on, no token twice, until the budget is used up. Nothing is evicted.
 */
#include <sparsekv/policy.h>

struct config {
	struct skv_select_config select; /* budget: in tokens, including the sinks and the recent tokens */
	uint32_t sinks;
};

static const struct skv_param params[] = {
        {"budget", SKV_PARAM_BUDGET, offsetof(struct config, select.budget), "2048",
         "tokens selected, sinks and recent ones included; below 1 a share of the sequence, at least 128 tokens"},
        {"sinks", SKV_PARAM_UINT, offsetof(struct config, sinks), "4",
         "attention sinks: first tokens, always among the selected"},
        SKV_SELECT_RECENT_PARAM(struct config, select, "0", "tokens"),
        SKV_SELECT_LAYERS_PARAM(struct config, select, SKV_SELECT_TWICE_HELP),
        SKV_SELECT_DENSE_PARAM(struct config, select),
        SKV_SELECT_PROFILE_PARAMS(struct config, select),
};

static int check(const void *config, const struct skv_model *m, char *err, size_t err_len)
{
	const struct config *c = config;
	uint32_t least = c->select.budget.share > 0 ? 128 : c->select.budget.count;

	(void)m;
	if (c->sinks < least && c->select.recent <= least - c->sinks)
		return skv_prefill_check(&c->select.prefill, err, err_len);
	snprintf(err, err_len, "sinks=%u and recent=%u, expected together at most the %u tokens of the budget", c->sinks,
	         c->select.recent, least);
	return -1;
}

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	const struct skv_select_config *c = &((const struct config *)config)->select;
	struct skv_layer_set layers = skv_select_layers_twice(c, m);

	skv_select_plan(c, &layers, SKV_ATTEND_TOKENS, SKV_SHARE_Q_HEAD, m, layer, plan);
}

static void after(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	const struct config *c = ctx->config;
	struct skv_layer_set layers = skv_select_layers_twice(&c->select, ctx->model);

	if (skv_layer_in(&layers, layer))
		ctx->prims->select_union(ctx, &(struct skv_select){
		                                      .layer = layer,
		                                      .budget = c->select.budget,
		                                      .floor = c->select.budget.share > 0 ? 128 : 1,
		                                      .recent = c->select.recent,
		                                      .recent_floor = 1,
		                                      .pin = c->sinks,
		                                      .pin_counts = 1,
		                              });
}

SKV_POLICY_DEFINE("lessismore", struct config, params,
                  .summary = "Two layers select the union of the q heads' best tokens, the layers after them reuse it (LessIsMore)",
                  SKV_TAXONOMY(SKV_ACT_SELECT, SKV_GRAN_TOKEN, SKV_EVID_WEIGHTS, SKV_SCOPE_STEP, SKV_SHARE_ALL_HEADS),
                  .check = check, .plan = plan, .after = after)
