/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adakv - snapkv with one budget a layer, which its heads share ("Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget
 * Allocation for Efficient LLM Inference").
 *
 * Some heads look at a few tokens, some at many. With a budget for each the former keep what nobody asks for, the latter
 * lose what they need. So all (head, token) pairs of a layer compete:
 *
 *   score       as in snapkv: votes of the last `window` queries, a mean of `pool` positions
 *   sure        of each head the window, and its best until it has `sure` of what an equal share is
 *   kept        of all heads the best pairs, until they are budget * kv heads
 *
 * When: as in snapkv, at the end of a prompt and then whenever `again` tokens have come on top of the budget.
 *
 * What is not kept is not attended to any more. Its memory is another matter: pages hold the tokens of all heads, so a
 * layer's pages can go as far as the head with the most allows. A head has at most `spread` times an equal share (more
 * than all others leave it there cannot be), and memory is for that; what a head of fewer has in its place sleeps there.
 */
#include <stddef.h>
#include <stdio.h>
#include <sparsekv/policy.h>

struct config {
	struct skv_budget budget; /* tokens of a kv head, the mean of a layer; the window among them */
	uint32_t window;
	uint32_t pool;
	uint32_t again;
	uint32_t dense;
	float sure;
	float spread;
	struct skv_prefill_config prefill;
};

static const struct skv_param params[] = {
        {"budget", SKV_PARAM_BUDGET, offsetof(struct config, budget), "1024",
         "tokens that a layer's kv heads keep on average, the window among them; below 1 a share of the sequence, at least "
         "128 tokens"},
        {"window", SKV_PARAM_UINT, offsetof(struct config, window), "32",
         "last queries, which vote; their tokens stay"},
        {"pool", SKV_PARAM_UINT, offsetof(struct config, pool), "5", "positions whose votes are averaged; odd"},
        {"again", SKV_PARAM_UINT, offsetof(struct config, again), "128",
         "tokens that may come on top before tokens go again; 0: they go once, at the end of the prompt"},
        {"dense", SKV_PARAM_UINT, offsetof(struct config, dense), "0", "first layers that stay dense"},
        {"sure", SKV_PARAM_FLOAT, offsetof(struct config, sure), "0.2", "share of the budget that each head has anyhow"},
        {"spread", SKV_PARAM_FLOAT, offsetof(struct config, spread), "2", "most that a head has, in budgets"},
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
	else if (!(c->sure >= 0 && c->sure <= 1))
		snprintf(err, err_len, "sure=%g, expected 0 to 1", (double)c->sure);
	else if (!(c->spread >= 1 && c->spread <= SKV_MAX_HEADS))
		snprintf(err, err_len, "spread=%g, expected 1 to %u", (double)c->spread, SKV_MAX_HEADS);
	else
		return skv_prefill_check(&c->prefill, "prefill_", err, err_len);
	return -1;
}

/* Of n shares, what one head can have while each other one has what is sure. */
static float spread_of(const struct config *c, uint32_t n)
{
	float most = (float)n - (float)(n - 1) * c->sure;

	return most < c->spread ? most : c->spread;
}

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	const struct config *c = config;

	skv_prefill_plan(&c->prefill, m, layer, plan);
	if (layer < c->dense)
		return;
	plan->attend = SKV_ATTEND_TOKENS;
	plan->source = layer;
	plan->sharing = SKV_SHARE_KV_HEAD;
	plan->evict = (struct skv_evict){
	        .granularity = 1,
	        .floor = c->budget.share > 0 ? 128 : 0,
	        .budget = c->budget,
	        .slack = c->again ? c->again : SKV_MAX_TOKENS,
	        .at_prompt_end = 1,
	        .accumulate = 1,
	        .window = c->window,
	        .max_head_ratio = spread_of(c, m->n_kv_heads),
	};
}

static void after(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	const struct config *c = ctx->config;

	if (layer >= c->dense)
		ctx->prims->evict_to_budget(ctx, &(struct skv_evict_to_budget){
		                                   .layer = layer,
		                                   .recent = {.count = c->window},
		                                   .smooth = c->pool,
		                                   .safeguard = c->sure,
		                           });
}

static const struct skv_policy adakv = {
        SKV_POLICY_HEADER,
        .name = "adakv",
        .version = "1",
        .summary = "Keeps what the prompt's last queries attend to, of all heads together the best (Ada-KV)",
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
	return &adakv;
}
