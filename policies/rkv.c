/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rkv - evicts redundant tokens ("R-KV: Redundancy-aware KV Cache Compression for Reasoning Models").
 *
 * Reasoning repeats itself, and repeated content gets attention again and again. So each kv head scores its tokens by
 * two terms:
 *
 *   importance(t)   softmax weights of the last `window` queries, averaged over the GQA group and over the `pool`
 *                   positions around t, as a share of the sum over all tokens
 *   redundancy(t)   softmax over all tokens of the mean cosine similarity of t's key to all retained keys
 *   score(t)        lambda * importance - (1 - lambda) * redundancy
 *   kept            the last `window` tokens, and the best of the rest by score
 *
 * A layer evicts each time that `interval` tokens were added to the budget. If a prompt does not fit into the budget,
 * the layer also evicts after the first decode step. The authors' code differs in two ways. It takes the largest weight
 * of the GQA group and of the positions, instead of means. And it excludes the latest of the keys that are similar to
 * t, for which it compares all pairs of keys. Here one pass over the keys is enough.
 */
#include <sparsekv/policy.h>

struct config {
	float lambda;
	struct skv_evict_config evict;
};

static const struct skv_param params[] = {
        SKV_EVICT_BUDGET_PARAM(struct config, evict, SKV_EVICT_WINDOW_BUDGET_HELP),
        {"lambda", SKV_PARAM_FLOAT, offsetof(struct config, lambda), "0.1",
         "weight of importance; the rest is redundancy's"},
        SKV_EVICT_WINDOW_PARAMS(struct config, evict, "8", "7"),
        SKV_PREFILL_PARAMS(struct config, evict.prefill),
};

static int check(const void *config, const struct skv_model *m, char *err, size_t err_len)
{
	const struct config *c = config;

	(void)m;
	if (c->evict.interval < c->evict.window)
		snprintf(err, err_len, "interval=%u, expected at least the window of %u", c->evict.interval,
		         c->evict.window);
	else if (!(c->lambda > 0 && c->lambda <= 1))
		snprintf(err, err_len, "lambda=%g, expected above 0, at most 1", (double)c->lambda);
	else
		return skv_evict_config_check(&c->evict, err, err_len);
	return -1;
}

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	skv_evict_window_plan(&((const struct config *)config)->evict, m, layer, plan);
}

static void after(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	const struct config *c = ctx->config;
	struct skv_evict_to_budget keep = skv_evict_pooled(&c->evict, layer);

	keep.lambda = c->lambda;
	skv_evict_after(ctx, &c->evict, keep);
}

SKV_POLICY_DEFINE("rkv", struct config, params,
                  .summary = "Keeps tokens that are attended to and unlike the others (R-KV)",
                  SKV_TAXONOMY(SKV_ACT_EVICT, SKV_GRAN_TOKEN, SKV_EVID_WEIGHTS, SKV_SCOPE_LAYER, SKV_SHARE_KV_HEAD),
                  .check = check, .plan = plan, .after = after)
