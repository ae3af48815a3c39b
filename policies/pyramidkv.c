/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pyramidkv - snapkv with more for the lower layers ("PyramidKV: Dynamic KV Cache Compression based on Pyramidal
 * Information Funneling").
 *
 * Lower layers spread their attention over all of the prompt, upper ones gather it in few tokens. So the budget falls
 * linearly with the depth, from the first layer that is not dense to the last, and in each layer tokens are kept as
 * in snapkv: the window, and of the rest what the window's queries vote for. How fast it falls:
 *
 *   kvpress       from 2 - 1/beta times the budget to 1/beta of it, so that the budget is the mean of all layers
 *   sparse-vllm   from the budget to a sixtieth of it, as from 0.6 to 0.01 of the prompt: the mean is about half of
 *   it
 *
 * A layer has no less than its window and so much of the rest of 128 tokens. Of a budget that is more than the
 * sequence, upper layers get nothing.
 */
#include <stddef.h>
#include <stdio.h>
#include <sparsekv/policy.h>

enum variant { KVPRESS, SPARSE_VLLM };

struct config {
	uint32_t variant;
	struct skv_budget budget; /* tokens of a kv head, the window among them */
	float beta;
	uint32_t window;
	uint32_t pool;
	uint32_t again;
	uint32_t dense;
	struct skv_prefill_config prefill;
};

static const struct skv_param params[] = {
        {"variant", SKV_PARAM_CHOICE, offsetof(struct config, variant), "kvpress,sparse-vllm",
         "whether the budget is the mean of all layers or what the first one has"},
        {"budget", SKV_PARAM_BUDGET, offsetof(struct config, budget), "1024",
         "tokens that a kv head keeps, the window among them; below 1 a share of the sequence, at least 128 tokens"},
        {"beta", SKV_PARAM_FLOAT, offsetof(struct config, beta), "20",
         "kvpress: how much more the first layers have"},
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
	else if (!(c->beta >= 1))
		snprintf(err, err_len, "beta=%g, expected at least 1", (double)c->beta);
	else
		return skv_prefill_check(&c->prefill, "prefill_", err, err_len);
	return -1;
}

/* How much of the budget the layer gets. */
static float part_of(const struct config *c, const struct skv_model *m, uint32_t layer)
{
	float first = c->variant == KVPRESS ? 2 - 1 / c->beta : 1;
	float last = c->variant == KVPRESS ? 1 / c->beta : 1 / 60.0f;
	uint32_t steps = m->n_layers - c->dense - 1;

	return steps ? first + (last - first) * (float)(layer - c->dense) / (float)steps : (first + last) / 2;
}

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	const struct config *c = config;
	struct skv_evict *keep = &plan->evict;
	float part;

	skv_prefill_plan(&c->prefill, m, layer, plan);
	if (layer < c->dense)
		return;
	plan->scores = SKV_SCORES_TOKENS;
	plan->reduce = SKV_REDUCE_SUM;
	plan->sharing = SKV_SHARE_KV_HEAD;
	part = part_of(c, m, layer);
	*keep = (struct skv_evict){
	        .granularity = 1,
	        .slack = c->again ? c->again : SKV_MAX_TOKENS,
	        .at_prompt_end = 1,
	        .accumulate = 1,
	        .window = c->window,
	};
	if (c->budget.share > 0) {
		keep->budget.share = c->budget.share * part;
		keep->floor = c->window + 1 + (uint32_t)((float)(127 - c->window) * part);
	} else {
		keep->budget.count = c->window + 1 + (uint32_t)((float)(c->budget.count - c->window - 1) * part);
	}
	if (keep->budget.share >= 1) /* all of the sequence */
		keep->budget = (struct skv_budget){.count = SKV_MAX_TOKENS};
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

static const struct skv_policy pyramidkv = {
        SKV_POLICY_HEADER,
        .name = "pyramidkv",
        .version = "1",
        .summary = "Keeps what the last queries of the prompt attend to, less of it in upper layers (PyramidKV)",
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
	return &pyramidkv;
}
