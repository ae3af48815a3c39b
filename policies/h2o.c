/* SPDX-License-Identifier: Apache-2.0 */
/*
 * h2o - heavy hitters and recent tokens ("H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language
 * Models").
 *
 * A few tokens get most of the attention, and tokens that got much of it will get much of it again. So each kv head
 * accumulates the attention scores of every token:
 *
 *   score(t)    sum over all queries since t of the softmax weight of t, averaged over the GQA group
 *   kept        half of the budget: the last tokens; the other half: those of the rest with the best scores
 *
 * Each step adds the new token. If the budget is used up, the token with the worst score is evicted permanently. With a
 * budget that is a count, memory does not grow. Weights are softmax weights over the remaining tokens; there is no
 * compensation for evicted ones. A prompt attends to all of itself, and all of its queries count. The first decode step
 * after it attends to the whole prompt, too, its query counts, and it then evicts down to the budget.
 */
#include <sparsekv/policy.h>

struct config {
	struct skv_evict_config evict;
};

static const struct skv_param params[] = {
        SKV_EVICT_BUDGET_PARAM(struct config, evict, "tokens that a kv head keeps, half of them recent"),
        SKV_EVICT_DENSE_PARAM(struct config, evict),
        SKV_PREFILL_PARAMS(struct config, evict.prefill),
};

static int check(const void *config, const struct skv_model *m, char *err, size_t err_len)
{
	const struct config *c = config;

	(void)m;
	if (c->evict.budget.share > 0 || c->evict.budget.count >= 4)
		return skv_prefill_check(&c->evict.prefill, err, err_len);
	snprintf(err, err_len, "budget=%u, expected at least 4 tokens: two halves", c->evict.budget.count);
	return -1;
}

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	const struct config *c = config;

	if (skv_evict_plan(&c->evict, m, layer, plan))
		skv_evict_by_scores(&c->evict, &plan->evict);
}

static void after(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	const struct config *c = ctx->config;

	skv_evict_after(ctx, &c->evict, (struct skv_evict_to_budget){.layer = layer, .recent = {.share = 0.5f}});
}

SKV_POLICY_DEFINE("h2o", struct config, params,
                  .summary = "Keeps the tokens that got the most attention so far, and the latest ones (H2O)",
                  SKV_TAXONOMY(SKV_ACT_EVICT, SKV_GRAN_TOKEN, SKV_EVID_WEIGHTS, SKV_SCOPE_LAYER, SKV_SHARE_KV_HEAD),
                  .check = check, .plan = plan, .after = after)
