/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adakv - SnapKV with one budget for each layer, which the kv heads of the layer share ("Ada-KV: Optimizing KV Cache
 * Eviction by Adaptive Budget Allocation for Efficient LLM Inference").
 *
 * Some heads attend to few tokens, others to many. With equal budgets the former heads keep tokens that they do not
 * need, and the latter lose tokens that they need. So all (head, token) pairs of a layer compete:
 *
 *   score       as in SnapKV: the weights of the last `window` queries, averaged over `pool` positions
 *   safeguard   each head keeps the window, and its best tokens up to a share of `safeguard` of the budget
 *   kept        the best pairs of all heads, up to budget * kv heads
 *
 * Layers evict as in SnapKV: at the end of a prompt, and then each time that `interval` tokens were added to the
 * budget.
 *
 * No head attends to its evicted tokens any more, but their memory is freed only in part. A page holds the tokens of
 * all heads, so a layer frees only the pages that the head with the most tokens does not need. Memory is reserved for
 * the largest share that a head can get: `max_head_ratio` times the budget, or less if the other heads' safeguards
 * leave less. Tokens beyond a head's share stay in their slots, inactive.
 */
#include <sparsekv/policy.h>

struct config {
	float safeguard;
	float max_head_ratio;
	struct skv_evict_config evict;
};

static const struct skv_param params[] = {
        SKV_EVICT_BUDGET_PARAM(struct config, evict,
                               "tokens that a layer's kv heads keep on average, the observation window among them"),
        SKV_EVICT_WINDOW_PARAMS(struct config, evict, "32", "5"),
        {"safeguard", SKV_PARAM_FLOAT, offsetof(struct config, safeguard), "0.2",
         "share of the budget that each head has in any case"},
        {"max_head_ratio", SKV_PARAM_FLOAT, offsetof(struct config, max_head_ratio), "2",
         "the most that a head has, in budgets"},
        SKV_PREFILL_PARAMS(struct config, evict.prefill),
};

static int check(const void *config, const struct skv_model *m, char *err, size_t err_len)
{
	const struct config *c = config;

	(void)m;
	if (!(c->safeguard >= 0 && c->safeguard <= 1))
		snprintf(err, err_len, "safeguard=%g, expected 0 to 1", (double)c->safeguard);
	else if (!(c->max_head_ratio >= 1 && c->max_head_ratio <= SKV_MAX_HEADS))
		snprintf(err, err_len, "max_head_ratio=%g, expected 1 to %u", (double)c->max_head_ratio, SKV_MAX_HEADS);
	else
		return skv_evict_config_check(&c->evict, err, err_len);
	return -1;
}

/*
 * The largest share of the tokens that one of n heads can get, as a multiple of the budget, while every other head has
 * its safeguard.
 */
static float max_ratio_of(const struct config *c, uint32_t n)
{
	float most = (float)n - (float)(n - 1) * c->safeguard;

	return most < c->max_head_ratio ? most : c->max_head_ratio;
}

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	const struct config *c = config;

	skv_prefill_plan(&c->evict.prefill, m, layer, plan);
	if (layer < c->evict.dense)
		return;
	plan->attend = SKV_ATTEND_TOKENS; /* each head attends to its own active tokens */
	plan->source = layer;
	plan->sharing = SKV_SHARE_KV_HEAD;
	skv_evict_by_window(&c->evict, &plan->evict);
	plan->evict.max_head_ratio = max_ratio_of(c, m->n_kv_heads);
}

static void after(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	const struct config *c = ctx->config;
	struct skv_evict_to_budget keep = skv_evict_pooled(&c->evict, layer);

	keep.safeguard = c->safeguard;
	if (layer >= c->evict.dense)
		ctx->prims->evict_to_budget(ctx, &keep);
}

SKV_POLICY_DEFINE("adakv", struct config, params,
                  .summary = "Keeps what the prompt's last queries attend to, of all heads together the best (Ada-KV)",
                  SKV_TAXONOMY(SKV_ACT_EVICT, SKV_GRAN_TOKEN, SKV_EVID_WEIGHTS, SKV_SCOPE_LAYER, SKV_SHARE_KV_HEAD),
                  .check = check, .plan = plan, .after = after)
