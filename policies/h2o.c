/* SPDX-License-Identifier: Apache-2.0 */
/*
 * h2o - heavy hitters and what is recent ("H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large
 * Language Models").
 *
 * Few tokens get most of the attention, and who got much will get much. So each kv head adds up what every token has
 * got so far:
 *
 *   score(t)    sum over all queries since t of the softmax weight of t, a mean over the head's group
 *   kept        half of the budget: the latest tokens; the other half: of the rest those with the best scores
 *
 * In each step the new token comes in and, when the budget is used up, the one with the worst score goes, for good;
 * with a budget that is a count memory does not grow. Weights are those over the tokens that are there: what a
 * token lost to others that are gone is not made up for. A prompt is attended to as a whole, all of its queries
 * vote, and the first decode step after it sees all of it, votes too and shrinks the layer to its budget.
 */
#include <stddef.h>
#include <stdio.h>
#include <sparsekv/policy.h>

struct config {
	struct skv_budget budget; /* tokens of a kv head */
	uint32_t dense;
	struct skv_prefill_config prefill;
};

static const struct skv_param params[] = {
        {"budget", SKV_PARAM_BUDGET, offsetof(struct config, budget), "1024",
         "tokens that a kv head keeps, half of them recent; below 1 a share of the sequence, at least 128 tokens"},
        {"dense", SKV_PARAM_UINT, offsetof(struct config, dense), "0", "first layers that stay dense"},
        SKV_PREFILL_PARAMS(struct config, prefill, ""),
};

static int check(const void *config, const struct skv_model *m, char *err, size_t err_len)
{
	const struct config *c = config;

	(void)m;
	if (c->budget.share > 0 || c->budget.count >= 4)
		return skv_prefill_check(&c->prefill, "", err, err_len);
	snprintf(err, err_len, "budget=%u, expected at least 4 tokens: two halves", c->budget.count);
	return -1;
}

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	const struct config *c = config;

	skv_prefill_plan(&c->prefill, m, layer, plan);
	if (layer < c->dense)
		return;
	plan->scores = SKV_SCORES_TOKENS;
	plan->reduce = SKV_REDUCE_SUM;
	plan->sharing = SKV_SHARE_KV_HEAD;
	plan->evict = (struct skv_evict){
	        .granularity = 1,
	        .floor = c->budget.share > 0 ? 128 : 0,
	        .budget = c->budget,
	        .slack = 1,
	        .accumulate = 1,
	};
}

static void after(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	const struct config *c = ctx->config;

	if (layer < c->dense)
		return;
	ctx->prims->accumulate_scores(ctx, layer);
	ctx->prims->evict_to_budget(ctx, &(struct skv_evict_to_budget){.layer = layer, .recent = {.share = 0.5f}});
}

static const struct skv_policy h2o = {
        SKV_POLICY_HEADER,
        .name = "h2o",
        .version = "1",
        .summary = "Keeps the tokens that got the most attention so far, and the latest ones (H2O)",
        .action = SKV_ACT_EVICT,
        .granularity = SKV_GRAN_TOKEN,
        .evidence = SKV_EVID_WEIGHTS,
        .scope = SKV_SCOPE_LAYER,
        .sharing = SKV_SHARE_KV_HEAD,
        .params = params,
        .n_params = sizeof(params) / sizeof(params[0]),
        .config_size = sizeof(struct config),
        .check = check,
        .plan = plan,
        .after = after,
};

const struct skv_policy *sparsekv_policy(void)
{
	return &h2o;
}
