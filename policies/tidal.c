/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tidal - two layers select tokens for each q head, all others reuse those ("TidalDecode: Fast and Accurate LLM
 * Decoding with Position Persistent Sparse Attention").
 *
 * The first layers attend densely. The next one does so too and selects the k tokens with the largest scores of each q
 * head; all layers after it attend to these, but for one in the middle that attends densely and selects anew (13 of 32
 * in the paper). Nothing is evicted.
 */
#include <stddef.h>
#include <sparsekv/policy.h>

struct config {
	struct skv_budget budget; /* tokens of a q head */
	struct skv_layer_set layers;
	uint32_t dense;
	struct skv_profile profile;
	struct skv_prefill_config prefill;
};

static const struct skv_param params[] = {
        {"budget", SKV_PARAM_BUDGET, offsetof(struct config, budget), "512",
         "tokens selected for a q head; below 1 a share of the sequence, at least 128 tokens"},
        {"layers", SKV_PARAM_LAYERS, offsetof(struct config, layers), "auto",
         "layers that select; auto: the profile's filter layers, without one the first that is not dense, and the one "
         "after 13/32 of the layers"},
        {"dense", SKV_PARAM_UINT, offsetof(struct config, dense), "2", "first layers that stay dense"},
        {"profile", SKV_PARAM_PROFILE, offsetof(struct config, profile), "none",
         "what sparsekv-calibrate has written about the model"},
        SKV_PREFILL_PARAMS(struct config, prefill, ""),
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

	(void)m;
	return skv_prefill_check(&c->prefill, "", err, err_len);
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
		ctx->prims->select_tokens(ctx, &(struct skv_select){
		                                       .layer = layer,
		                                       .budget = c->budget,
		                                       .floor = c->budget.share > 0 ? 128 : 1,
		                                       .no_recent = 1,
		                               });
}

static const struct skv_policy tidal = {
        SKV_POLICY_HEADER,
        .name = "tidal",
        .version = "1",
        .summary = "Two layers select tokens for each q head, the layers after them reuse those (TidalDecode)",
        .action = SKV_ACT_SELECT,
        .granularity = SKV_GRAN_TOKEN,
        .evidence = SKV_EVID_WEIGHTS,
        .scope = SKV_SCOPE_STEP,
        .sharing = SKV_SHARE_Q_HEAD,
        .params = params,
        .n_params = sizeof(params) / sizeof(params[0]),
        .config_size = sizeof(struct config),
        .check = check,
        .plan = plan,
        .after = after,
};

const struct skv_policy *sparsekv_policy(void)
{
	return &tidal;
}
