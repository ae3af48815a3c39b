/* SPDX-License-Identifier: Apache-2.0 */
/*
 * streaming - attention sinks and a recent window ("Efficient Streaming Language Models with
 * Attention Sinks", Xiao et al. 2024).
 *
 * A layer sees the first `sinks` tokens, to which softmax gives the weight that it has no use for, and
 * the last tokens up to the budget. What lies between is never seen again, so its pages are freed:
 * with a count as the budget, memory no longer grows with the sequence. A share is taken as in
 * Kascade's comparison runs, at least 128 tokens.
 */
#include <stddef.h>
#include <stdio.h>
#include <sparsekv/policy.h>

struct config {
	struct skv_budget budget; /* tokens, sinks included */
	uint32_t sinks;
	uint32_t dense;
	struct skv_prefill_config prefill;
};

static const struct skv_param params[] = {
        {"budget", SKV_PARAM_BUDGET, offsetof(struct config, budget), "1024",
         "tokens that a layer sees, sinks included; below 1 a share of the sequence, at least 128 tokens"},
        {"sinks", SKV_PARAM_UINT, offsetof(struct config, sinks), "4",
         "tokens of the sequence's head that stay"},
        {"dense", SKV_PARAM_UINT, offsetof(struct config, dense), "0", "first layers that stay dense"},
        SKV_PREFILL_PARAMS(struct config, prefill, "prefill_"),
};

static struct skv_window window_of(const struct config *c)
{
	return (struct skv_window){
	        .sinks = c->sinks,
	        .floor = c->budget.share > 0 ? 128 : 0,
	        .budget = c->budget,
	};
}

static int check(const void *config, const struct skv_model *m, char *err, size_t err_len)
{
	const struct config *c = config;
	uint32_t least = c->budget.share > 0 ? 128 : c->budget.count;

	(void)m;
	if (c->sinks < least)
		return skv_prefill_check(&c->prefill, "prefill_", err, err_len);
	snprintf(err, err_len, "sinks=%u leaves no room for recent tokens, expected below %u", c->sinks,
	         least);
	return -1;
}

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	const struct config *c = config;

	skv_prefill_plan(&c->prefill, m, layer, plan);
	if (layer < c->dense)
		return;
	plan->attend = SKV_ATTEND_WINDOW;
	plan->window = window_of(c);
}

/* The window only moves forward: what it has left behind is free to go. */
static void step_end(const struct skv_policy_ctx *ctx)
{
	const struct config *c = ctx->config;
	struct skv_window window = window_of(c);

	for (uint32_t layer = c->dense; layer < ctx->model->n_layers; layer++)
		ctx->prims->evict_outside(ctx, layer, &window);
}

static const struct skv_policy streaming = {
        SKV_POLICY_HEADER,
        .name = "streaming",
        .version = "1",
        .summary = "Attention sinks and a recent window, the rest evicted (StreamingLLM)",
        .action = SKV_ACT_EVICT,
        .granularity = SKV_GRAN_TOKEN,
        .evidence = SKV_EVID_POSITION,
        .scope = SKV_SCOPE_STEP,
        .sharing = SKV_SHARE_ALL_HEADS,
        .params = params,
        .n_params = sizeof(params) / sizeof(params[0]),
        .config_size = sizeof(struct config),
        .check = check,
        .plan = plan,
        .step_end = step_end,
};

const struct skv_policy *sparsekv_policy(void)
{
	return &streaming;
}
