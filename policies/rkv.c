/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rkv - drop what the cache has twice ("R-KV: Redundancy-aware KV Cache Compression for Reasoning Models").
 *
 * Reasoning repeats itself, and what is repeated gets attention again and again. So tokens that are too many go by
 * two things, of each kv head:
 *
 *   importance(t)   votes of the last `window` queries: softmax weights, a mean over the head's group, averaged
 *                   over the `pool` positions around t; its share of the sum over all tokens
 *   redundancy(t)   softmax over all tokens of the mean cosine similarity of t's key to all keys that are there
 *   score(t)        lambda * importance - (1 - lambda) * redundancy
 *   kept            the last `window` tokens, and of the rest those with the best scores
 *
 * The cache is compressed whenever `again` tokens have come on top of the budget, and at the end of a prompt that
 * does not fit into it, after the first decode step. The authors' code takes the largest weight where this takes
 * means, of the group and of the positions around, and does not count the latest of the keys that are similar to t,
 * for which all pairs of keys are compared; here one pass over the keys does.
 */
#include <stddef.h>
#include <stdio.h>
#include <sparsekv/policy.h>

struct config {
	struct skv_budget budget; /* tokens of a kv head, the window among them */
	float lambda;
	uint32_t window;
	uint32_t pool;
	uint32_t again;
	uint32_t dense;
	struct skv_prefill_config prefill;
};

static const struct skv_param params[] = {
        {"budget", SKV_PARAM_BUDGET, offsetof(struct config, budget), "1024",
         "tokens that a kv head keeps, the window among them; below 1 a share of the sequence, at least 128 tokens"},
        {"lambda", SKV_PARAM_FLOAT, offsetof(struct config, lambda), "0.1",
         "weight of importance; the rest is redundancy's"},
        {"window", SKV_PARAM_UINT, offsetof(struct config, window), "8",
         "last queries, which vote; their tokens stay"},
        {"pool", SKV_PARAM_UINT, offsetof(struct config, pool), "7", "positions whose votes are averaged; odd"},
        {"again", SKV_PARAM_UINT, offsetof(struct config, again), "128",
         "tokens that may come on top before tokens go"},
        {"dense", SKV_PARAM_UINT, offsetof(struct config, dense), "0", "first layers that stay dense"},
        SKV_PREFILL_PARAMS(struct config, prefill, "prefill_"),
};

static int check(const void *config, const struct skv_model *m, char *err, size_t err_len)
{
	const struct config *c = config;
	uint32_t least = c->budget.share > 0 ? 128 : c->budget.count;

	(void)m;
	if (c->window < 1 || c->window >= least)
		snprintf(err, err_len, "window=%u, expected 1 to %u: less than the budget", c->window, least - 1);
	else if (c->pool % 2 == 0 || c->pool > 63)
		snprintf(err, err_len, "pool=%u, expected an odd number up to 63", c->pool);
	else if (c->again < c->window)
		snprintf(err, err_len, "again=%u, expected at least the window of %u", c->again, c->window);
	else if (!(c->lambda > 0 && c->lambda <= 1))
		snprintf(err, err_len, "lambda=%g, expected above 0, at most 1", (double)c->lambda);
	else
		return skv_prefill_check(&c->prefill, "prefill_", err, err_len);
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
	        .slack = c->again,
	        .at_prompt_end = 1,
	        .accumulate = 1,
	        .window = c->window,
	};
}

static void after(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	const struct config *c = ctx->config;

	if (layer < c->dense)
		return;
	ctx->prims->accumulate_scores(ctx, layer);
	ctx->prims->evict_to_budget(ctx, &(struct skv_evict_to_budget){
	                                   .layer = layer,
	                                   .recent = {.count = c->window},
	                                   .smooth = c->pool,
	                                   .lambda = c->lambda,
	                           });
}

static const struct skv_policy rkv = {
        SKV_POLICY_HEADER,
        .name = "rkv",
        .version = "1",
        .summary = "Keeps tokens that are attended to and unlike the others (R-KV)",
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
	return &rkv;
}
