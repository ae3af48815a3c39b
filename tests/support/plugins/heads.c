/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists per head: layer 0 selects tokens for each kv head, and layer 1 uses these lists in reverse order of heads.
 * Layer 2 selects for each q head, for layer 3. Layer 4 selects a union of its q heads' tokens for all layers after it.
 */
#include <sparsekv/policy.h>

struct config {
	struct skv_budget budget;
};

static const struct skv_param params[] = {
        {"budget", SKV_PARAM_BUDGET, offsetof(struct config, budget), NULL, "tokens that are looked at"},
};

static int selects(uint32_t layer)
{
	return layer % 2 == 0 && layer <= 4;
}

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	(void)config;
	if (selects(layer)) {
		plan->scores = SKV_SCORES_TOKENS;
		plan->reduce = SKV_REDUCE_SUM;
		plan->sharing = layer == 0 ? SKV_SHARE_KV_HEAD : SKV_SHARE_Q_HEAD;
		return;
	}
	plan->attend = SKV_ATTEND_TOKENS;
	plan->source = layer > 4 ? 4 : layer - 1;
	plan->mapped = layer == 1;
	for (uint32_t h = 0; h < m->n_kv_heads; h++)
		plan->map[h] = (uint8_t)(m->n_kv_heads - 1 - h);
}

static void after(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	const struct config *c = ctx->config;

	struct skv_select select = {.layer = layer, .budget = c->budget, .recent_floor = 1};

	if (layer == 4)
		ctx->prims->select_union(ctx, &select);
	else if (selects(layer))
		ctx->prims->select_tokens(ctx, &select);
}

SKV_POLICY_DEFINE("heads", struct config, params, .summary = "A test", .plan = plan, .after = after)
