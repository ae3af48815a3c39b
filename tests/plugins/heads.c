/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of heads: layer 0 selects tokens for each kv head, layer 1 goes by them the other way round, and layer 2 selects
 * for each q head what the layers after it see.
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
	if (layer % 2 == 0 && layer <= 2) {
		plan->evidence = SKV_EV_TOKENS;
		plan->pool = SKV_POOL_SUM;
		plan->sharing = layer == 0 ? SKV_SHARE_KV_HEAD : SKV_SHARE_Q_HEAD;
		return;
	}
	plan->attend = SKV_ATTEND_TOKENS;
	plan->source = layer == 1 ? 0 : 2;
	plan->mapped = layer == 1;
	for (uint32_t h = 0; h < m->n_kv_heads; h++)
		plan->map[h] = (uint8_t)(m->n_kv_heads - 1 - h);
}

static void after(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	const struct config *c = ctx->config;

	if (layer % 2 == 0 && layer <= 2)
		ctx->prims->select_tokens(
			ctx, &(struct skv_select){.layer = layer, .budget = c->budget, .recent_floor = 1});
}

static const struct skv_policy policy = {
        SKV_POLICY_HEADER,
        .name = "heads",
        .version = "1",
        .summary = "A test",
        .params = params,
        .n_params = 1,
        .config_size = sizeof(struct config),
        .plan = plan,
        .after = after,
};

const struct skv_policy *sparsekv_policy(void)
{
	return &policy;
}
