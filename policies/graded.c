/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graded - each kv head attends to all tokens. It reads K and V of the heaviest tokens, and 2 bits of each element of
 * all other keys and values. This policy was developed in this project.
 *
 *   evidence   softmax weights from 2-bit keys (sketches), as in the policy `sketch`; a token's weight is the largest of
 *              the q heads in the GQA group
 *   selection  the last `recent` tokens and the K - recent heaviest other tokens, one set for each kv head
 *   attention  one softmax over all tokens: selected tokens with their K and V, others with their sketches' scores and
 *              with values of 2 bits
 *
 * Many light tokens together can carry much weight, which is lost if a policy drops them. Here they stay, and the errors
 * of their values average out, because each element is rounded to the nearest of four numbers. kernels/select.h defines
 * sketches and values of 2 bits. The policy needs no calibration, no layer is dense by default, and nothing is evicted.
 */
#include <sparsekv/policy.h>

#define BITS 2

struct config {
	struct skv_budget budget;
	uint32_t recent, floor, dense;
	struct skv_prefill_config prefill;
};

static const struct skv_param params[] = {
        {"budget", SKV_PARAM_BUDGET, offsetof(struct config, budget), "0.03125",
         "tokens that are attended to with their K and V; below 1 a share of the sequence"},
        {"floor", SKV_PARAM_UINT, offsetof(struct config, floor), "128", "at least so many tokens, from 16 on, where the budget is a share"},
        {"recent", SKV_PARAM_UINT, offsetof(struct config, recent), "32", "the last so many tokens are among them"},
        {"dense", SKV_PARAM_UINT, offsetof(struct config, dense), "0", "first layers that attend densely"},
        SKV_PREFILL_PARAMS(struct config, prefill),
};

static int check(const void *config, const struct skv_model *m, char *err, size_t err_len)
{
	const struct config *c = config;

	if (skv_sketch_config_check(BITS, c->budget.share > 0 ? c->floor : c->budget.count, m, err, err_len) < 0)
		return -1;
	if (c->recent < 1) {
		snprintf(err, err_len, "recent=0, expected at least 1");
		return -1;
	}
	return skv_prefill_check(&c->prefill, err, err_len);
}

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	const struct config *c = config;

	skv_prefill_plan(&c->prefill, m, layer, plan);
	if (layer < c->dense)
		return;
	plan->attend = SKV_ATTEND_TOKENS;
	plan->source = layer;
	plan->scores = SKV_SCORES_TOKENS | SKV_SCORES_SKETCHES;
	plan->sharing = SKV_SHARE_KV_HEAD;
	plan->sketch_bits = BITS;
	plan->value_bits = BITS;
}

static void before(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	const struct config *c = ctx->config;

	if (layer < c->dense)
		return;
	ctx->prims->score_sketches(ctx, layer);
	ctx->prims->select_tokens(ctx, &(struct skv_select){
	                                       .layer = layer,
	                                       .budget = c->budget,
	                                       .floor = c->budget.share > 0 ? c->floor : SKV_PAGE_TOKENS,
	                                       .recent = c->recent,
	                               });
}

SKV_POLICY_DEFINE("graded", struct config, params,
                  .summary = "Each kv head attends to the top-k tokens with K and V, and to all others in 2 bits",
                  SKV_TAXONOMY(SKV_ACT_SELECT, SKV_GRAN_TOKEN, SKV_EVID_QUERY, SKV_SCOPE_LAYER, SKV_SHARE_KV_HEAD),
                  .check = check, .plan = plan, .before = before)
