/* SPDX-License-Identifier: Apache-2.0 */
/*
 * template - where to start when writing a policy. sparsekv-policy(7) walks through this file.
 *
 * What it does: the first `dense` layers attend to every token. The last of them scores tokens by its attention
 * weights, and the layers above attend to the tokens with the best scores alone:
 *
 *   score(t) = sum over all q heads of the softmax weight of token t
 *   selected = the last `recent` tokens, and those of the rest with the best scores, up to the budget
 *
 * Rename it, change what it does, then
 *
 *   cc -O2 -shared -fPIC $(pkg-config --cflags sparsekv-client) -o mine.so mine.c
 *   sparsekvctl policy load mine.so
 *   sparsekvctl policy verify 'mine?budget=0.5'
 *   sparsekvctl policy swap 'mine?budget=0.5'
 */
#include <sparsekv/policy.h>

/*
 * 1. What can be set. Plain data, no pointers; the library fills it from the spec. `budget`, `recent`
 * and `dense` have these names in every policy.
 */
struct config {
	struct skv_budget budget;
	uint32_t recent;
	uint32_t dense;
	struct skv_prefill_config prefill; /* how prompts attend: this struct, and its parameters, check and plan below */
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
 * 2. Is that sensible for this model? The form of each value has been checked; say here what one value
 * means for another or for the model, naming the parameter and what was expected.
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
 * 3. How does each layer attend? Asked once for every layer, before the first step. The plan comes
 * zeroed, which is dense attention; say what differs.
 */
static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	const struct config *c = config;
	uint32_t selector = c->dense - 1;

	skv_prefill_plan(&c->prefill, m, layer, plan); /* prompts, as the user says */
	if (layer == selector) {
		plan->scores = SKV_SCORES_TOKENS;        /* leave the weight of each token, */
		plan->reduce = SKV_REDUCE_SUM;             /* added up over the heads that share a row: */
		plan->sharing = SKV_SHARE_ALL_HEADS;   /* all of them */
	} else if (layer > selector) {
		plan->attend = SKV_ATTEND_TOKENS;
		plan->source = selector;
	}
}

/*
 * 4. Act on the scores. Called after a layer's attention, for every sequence of the step at once. Hooks
 * do not see weights or lengths: they ask for primitives, which run wherever the pages are.
 */
static void after(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	const struct config *c = ctx->config;

	if (layer == c->dense - 1)
		ctx->prims->select_tokens(ctx, &(struct skv_select){
		                                       .layer = layer,
		                                       .budget = c->budget,
		                                       .floor = c->budget.share > 0 ? 128 : 1,
		                                       .recent = c->recent,
		                                       .recent_floor = 1, /* the token being decoded */
		                               });
}

/*
 * 5. The block, which the library reads first, and the one symbol that a plugin exports. The macro fills in which ABI this was
 * compiled for; the taxonomy tells the operator what kind of policy it is. This one keeps nothing and evicts
 * nothing, so it has no state, no step_end and no adopt.
 */
SKV_POLICY_DEFINE("template", struct config, params,
                  .summary = "One layer's attention scores select the tokens that the layers above attend to",
                  SKV_TAXONOMY(SKV_ACT_SELECT, SKV_GRAN_TOKEN, SKV_EVID_WEIGHTS, SKV_SCOPE_STEP, SKV_SHARE_ALL_HEADS),
                  .check = check, .plan = plan, .after = after)
