/* SPDX-License-Identifier: Apache-2.0 */
/*
 * h2o - keeps the tokens that got the most attention (heavy hitters) and the latest tokens ("H2O: Heavy-Hitter Oracle
 * for Efficient Generative Inference of Large Language Models").
 *
 * A few tokens get most of the attention, and tokens that got much attention so far will get much of it again. So each
 * kv head accumulates the attention scores of every token:
 *
 *   score(t)    sum, over the queries from t's own on, of the softmax weight of t, averaged over the GQA group
 *   kept        the last tokens, which take half of the budget, and in the other half the best of the rest by score
 *
 * Each step adds the new token. If the budget is used up, the token with the lowest score is evicted permanently. With
 * a budget that is a count, memory does not grow. Weights are softmax weights over the retained tokens; there is no
 * compensation for the weight of evicted tokens. Rows of a prompt attend to the whole prompt before them, and all of
 * their queries count. The first decode step after a prompt also attends to the whole prompt, its query counts, and at
 * its end the layer evicts tokens down to the budget.
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
