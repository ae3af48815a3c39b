/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapkv - the last queries of a prompt know what the answer will look at ("SnapKV: LLM Knows What You are Looking
 * for Before Generation").
 *
 * At the end of the prompt each kv head keeps its last `window` tokens and, of the rest, those that the queries of
 * this window voted for:
 *
 *   votes(t)    sum over the window's queries of the softmax weight of t, a mean over the head's group (as kvpress
 *               has it; the authors' code keeps a set for each q head)
 *   score(t)    mean of the votes of the `pool` positions around t, so that what stands next to a find stays with it;
 *               beyond the sequence's ends there is none
 *   kept        budget - window tokens with the best scores, and the window
 *
 * The first decode step attends to the whole prompt and votes with the window; the layer shrinks at its end. A
 * prompt that fits into the budget stays as it is. That much is the paper's, and with again=0 all that happens: what
 * is decoded later comes on top. Else the same is done again whenever so many tokens have come on top of the budget,
 * by the votes of the last queries then; so with a budget that is a count memory stays below budget + again tokens.
 */
#include <stddef.h>
#include <stdio.h>
#include <sparsekv/policy.h>

struct config {
	struct skv_budget budget; /* tokens of a kv head, the window among them */
	uint32_t window;
	uint32_t pool;
	uint32_t again;
	uint32_t dense;
	struct skv_prefill_config prefill;
};

static const struct skv_param params[] = {
        {"budget", SKV_PARAM_BUDGET, offsetof(struct config, budget), "1024",
         "tokens that a kv head keeps, the window among them; below 1 a share of the sequence, at least 128 tokens"},
        {"window", SKV_PARAM_UINT, offsetof(struct config, window), "32",
         "last queries, which vote; their tokens stay"},
        {"pool", SKV_PARAM_UINT, offsetof(struct config, pool), "5", "positions whose votes are averaged; odd"},
        {"again", SKV_PARAM_UINT, offsetof(struct config, again), "128",
         "tokens that may come on top before tokens go again; 0: they go once, at the end of the prompt"},
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
	else if (c->again > 0 && c->again < c->window)
		snprintf(err, err_len, "again=%u, expected 0 or at least the window of %u", c->again, c->window);
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
	        .slack = c->again ? c->again : SKV_MAX_TOKENS,
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
	                           });
}

static const struct skv_policy snapkv = {
        SKV_POLICY_HEADER,
        .name = "snapkv",
        .version = "1",
        .summary = "Keeps the tokens that the last queries of the prompt attend to, and those queries' own (SnapKV)",
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
	return &snapkv;
}
