/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every layer from the first on reads all of its keys, selects tokens for each kv head by them, and then reads only the
 * values of these. The last layer uses the selection of the layer before it.
 */
#include <sparsekv/policy.h>

struct config {
	struct skv_budget budget;
};

static const struct skv_param params[] = {
        {"budget", SKV_PARAM_BUDGET, offsetof(struct config, budget), NULL, "tokens that are looked at"},
};

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	(void)config;
	plan->attend = SKV_ATTEND_TOKENS;
	plan->source = layer;
	if (layer == m->n_layers - 1) {
		plan->source--;
		return;
	}
	plan->scores = SKV_SCORES_TOKENS;
	plan->sharing = SKV_SHARE_KV_HEAD;
}

static void before(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	const struct config *c = ctx->config;

	if (layer < ctx->model->n_layers - 1)
		ctx->prims->select_tokens(
			ctx, &(struct skv_select){.layer = layer, .budget = c->budget, .recent_floor = 1});
}

SKV_POLICY_DEFINE("keys-first", struct config, params, .summary = "A test", .plan = plan, .before = before)
