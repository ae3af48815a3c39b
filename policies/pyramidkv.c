/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pyramidkv - SnapKV with more tokens for the lower layers ("PyramidKV: Dynamic KV Cache Compression based on Pyramidal
 * Information Funneling").
 *
 * Lower layers spread their attention over the whole prompt, while upper layers concentrate it on a few tokens. So the
 * budget of a layer falls linearly with its depth, from the first layer that is not dense to the last layer. Each layer
 * keeps tokens as SnapKV does: the observation window, and the tokens before it to which the window's queries attend
 * most. The slope depends on the variant:
 *
 *   kvpress       from 2 - 1/beta times the budget to 1/beta of it, so that the budget is the mean of all layers
 *   sparse-vllm   from the budget to a sixtieth of it, as from 0.6 to 0.01 of the prompt: the mean is about half of it
 *
 * The floor of 128 tokens falls in the same way, but every layer has at least its window and one token. If a lower
 * layer's budget exceeds the length of the sequence, upper layers do not get the excess.
 */
#include <sparsekv/policy.h>

enum variant { KVPRESS, SPARSE_VLLM };

struct config {
	uint32_t variant;
	float beta;
	struct skv_evict_config evict;
};

static const struct skv_param params[] = {
        {"variant", SKV_PARAM_CHOICE, offsetof(struct config, variant), "kvpress,sparse-vllm",
         "whether the budget is the mean of all layers or what the first one has"},
        SKV_EVICT_BUDGET_PARAM(struct config, evict, SKV_EVICT_WINDOW_BUDGET_HELP),
        {"beta", SKV_PARAM_FLOAT, offsetof(struct config, beta), "20",
         "kvpress: the last layers have 1/beta of the budget"},
        SKV_EVICT_WINDOW_PARAMS(struct config, evict, "32", "5"),
        SKV_PREFILL_PARAMS(struct config, evict.prefill),
};

static int check(const void *config, const struct skv_model *m, char *err, size_t err_len)
{
	const struct config *c = config;

	(void)m;
	if (c->beta >= 1)
		return skv_evict_config_check(&c->evict, err, err_len);
	snprintf(err, err_len, "beta=%g, expected at least 1", (double)c->beta);
	return -1;
}

/* Returns the factor by which the budget is multiplied in this layer. */
static float share_of(const struct config *c, const struct skv_model *m, uint32_t layer)
{
	float first = c->variant == KVPRESS ? 2 - 1 / c->beta : 1;
	float last = c->variant == KVPRESS ? 1 / c->beta : 1 / 60.0f;
	uint32_t full = skv_full_layers(m, c->evict.dense, m->n_layers), before = skv_full_layers(m, c->evict.dense, layer);

	return full > 1 ? first + (last - first) * (float)before / (float)(full - 1) : (first + last) / 2;
}

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	const struct config *c = config;
	const struct skv_budget budget = c->evict.budget;
	uint32_t window = c->evict.window;
	float share;

	if (!skv_evict_window_plan(&c->evict, m, layer, plan))
		return;
	share = share_of(c, m, layer);
	if (budget.share > 0) {
		plan->evict.budget.share = budget.share * share;
		plan->evict.floor = window + 1 + (uint32_t)((float)(127 - window) * share);
	} else {
		plan->evict.budget.count = window + 1 + (uint32_t)((float)(budget.count - window - 1) * share);
	}
	if (plan->evict.budget.share >= 1) /* the layer keeps the whole sequence */
		plan->evict.budget = (struct skv_budget){.count = SKV_MAX_TOKENS};
}

static void after(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	const struct config *c = ctx->config;

	skv_evict_after(ctx, &c->evict, skv_evict_pooled(&c->evict, layer));
}

SKV_POLICY_DEFINE("pyramidkv", struct config, params,
                  .summary = "Keeps what the last queries of the prompt attend to, less of it in upper layers (PyramidKV)",
                  SKV_TAXONOMY(SKV_ACT_EVICT, SKV_GRAN_TOKEN, SKV_EVID_WEIGHTS, SKV_SCOPE_LAYER, SKV_SHARE_KV_HEAD),
                  .check = check, .plan = plan, .after = after)
