/* SPDX-License-Identifier: Apache-2.0 */
/*
 * streaming - attention sinks and a window of recent tokens ("Efficient Streaming Language Models with Attention
 * Sinks", Xiao et al. 2024).
 *
 * A layer attends to the first `sinks` tokens, on which softmax puts the weight that no other token needs, and to the
 * last tokens, up to the budget. No later query attends to the tokens between these, so their pages are freed. With a
 * budget that is a count, memory does not grow with the sequence. A budget that is a share is at least 128 tokens, as
 * in Kascade's comparison runs.
 */
#include <sparsekv/policy.h>

struct config {
	struct skv_budget budget; /* tokens, sinks included */
	uint32_t sinks;
	uint32_t dense;
	struct skv_prefill_config prefill;
};

static const struct skv_param params[] = {
        {"budget", SKV_PARAM_BUDGET, offsetof(struct config, budget), "1024",
         "tokens that a layer attends to, sinks included; below 1 a share of the sequence, at least 128 tokens"},
        {"sinks", SKV_PARAM_UINT, offsetof(struct config, sinks), "4",
         "attention sinks: first tokens of the sequence, which stay"},
        {"dense", SKV_PARAM_UINT, offsetof(struct config, dense), "0", "first layers that stay dense"},
        SKV_PREFILL_PARAMS(struct config, prefill),
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
		return skv_prefill_check(&c->prefill, err, err_len);
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

/* Evict the pages between the sinks and the window. The window only moves forward, so no later step attends to them. */
static void step_end(const struct skv_policy_ctx *ctx)
{
	const struct config *c = ctx->config;
	struct skv_window window = window_of(c);

	for (uint32_t layer = c->dense; layer < ctx->model->n_layers; layer++)
		ctx->prims->evict_outside(ctx, layer, &window);
}

SKV_POLICY_DEFINE("streaming", struct config, params,
                  .summary = "Attention sinks and a recent window, the rest evicted (StreamingLLM)",
                  SKV_TAXONOMY(SKV_ACT_EVICT, SKV_GRAN_TOKEN, SKV_EVID_POSITION, SKV_SCOPE_STEP, SKV_SHARE_ALL_HEADS),
                  .check = check, .plan = plan, .step_end = step_end)
