/* SPDX-License-Identifier: Apache-2.0 */
/*
 * template - a starting point for writing a policy. sparsekv-policy(7) walks through this file.
 *
 * The first `dense` layers attend to every token. The last dense layer also selects tokens by its attention scores, and
 * all later layers attend only to the selected tokens:
 *
 *   score(t) = sum over all q heads of the softmax weight of token t
 *   selected = the last `recent` tokens, and of the rest those with the highest scores, up to the budget
 *
 * Copy and rename this file, change what the policy does, then run
 *
 *   cc -O2 -shared -fPIC $(pkg-config --cflags sparsekv-client) -o mine.so mine.c
 *   sparsekvctl policy load mine.so
 *   sparsekvctl policy verify 'mine?budget=0.5'
 *   sparsekvctl policy swap --all 'mine?budget=0.5'
 */
#include <sparsekv/policy.h>

/*
 * 1. The config and its parameters. The config is plain data without pointers; the library fills it from the spec. The
 * parameters `budget`, `recent` and `dense` have these names in every policy.
 */
struct config {
	struct skv_budget budget;
	uint32_t recent;
	uint32_t dense;
	/* how prompts attend: SKV_PREFILL_PARAMS, skv_prefill_check() and skv_prefill_plan() handle this field */
	struct skv_prefill_config prefill;
};

static const struct skv_param params[] = {
        {"budget", SKV_PARAM_BUDGET, offsetof(struct config, budget), "0.25",
         "tokens selected; below 1 a share of the sequence, at least 128 tokens"},
        {"recent", SKV_PARAM_UINT, offsetof(struct config, recent), "0",
         "last tokens, always among the selected; 0: an eighth of the budget"},
        {"dense", SKV_PARAM_UINT, offsetof(struct config, dense), "3",
         "first layers that stay dense; the last of them selects"},
        SKV_PREFILL_PARAMS(struct config, prefill),
};

/*
 * 2. Is the config valid for this model? The library has already checked the form of each value. check() checks only
 * what depends on other values or on the model. The error text names the parameter and the expected values.
 */
static int check(const void *config, const struct skv_model *m, char *err, size_t err_len)
{
	const struct config *c = config;

	if (c->dense >= 1 && c->dense <= m->n_layers)
		return skv_prefill_check(&c->prefill, err, err_len);
	snprintf(err, err_len, "dense=%u, expected 1 to %u, the layers of the model", c->dense, m->n_layers);
	return -1;
}

/*
 * Returns the layer that selects: the last dense layer, or, if that layer has a sliding window, which policies do not
 * control, the next layer without a sliding window.
 */
static uint32_t selector_of(const struct config *c, const struct skv_model *m)
{
	return skv_full_layer(m, c->dense - 1, 0);
}

/*
 * 3. How does each layer attend? The library calls plan() once for every layer, before the first step. The plan is
 * zeroed, which means dense attention; set only the fields that differ.
 */
static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	const struct config *c = config;
	uint32_t selector = selector_of(c, m);

	skv_prefill_plan(&c->prefill, m, layer, plan); /* how prompts attend, as the spec says */
	if (layer == selector) {
		plan->scores = SKV_SCORES_TOKENS;    /* compute the softmax weight of each token, */
		plan->reduce = SKV_REDUCE_SUM;       /* summed over the heads that share a row: */
		plan->sharing = SKV_SHARE_ALL_HEADS; /* all heads share one row */
	} else if (layer > selector) {
		plan->attend = SKV_ATTEND_TOKENS;
		plan->source = selector;
	}
}

/*
 * 4. Select by the scores. The library calls after() after a layer's attention, for all sequences of the step at once.
 * Hooks see neither scores nor lengths: they call primitives, which run where the pages are.
 */
static void after(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	const struct config *c = ctx->config;

	if (layer == selector_of(c, ctx->model))
		ctx->prims->select_tokens(ctx, &(struct skv_select){
		                                       .layer = layer,
		                                       .budget = c->budget,
		                                       .floor = c->budget.share > 0 ? 128 : 1,
		                                       .recent = c->recent,
		                                       /* the token being decoded is always selected */
		                                       .recent_floor = 1,
		                               });
}

/*
 * 5. The block, which the library reads first, and the only symbol that a plugin exports. The macro fills in the ABI
 * version for which the plugin was compiled. The taxonomy tells the operator what kind of policy this is. This policy
 * evicts nothing and needs nothing from earlier steps, so it has no state, no step_end and no adopt.
 */
SKV_POLICY_DEFINE("template", struct config, params,
                  .summary = "One dense layer's attention scores select the tokens that the layers above attend to",
                  SKV_TAXONOMY(SKV_ACT_SELECT, SKV_GRAN_TOKEN, SKV_EVID_WEIGHTS, SKV_SCOPE_STEP, SKV_SHARE_ALL_HEADS),
                  .check = check, .plan = plan, .after = after)
