/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sketch - each kv head of each layer keeps a quantized second copy (sketch) of its keys, scores all tokens by these
 * sketches, and attends to the best tokens. This policy was developed in this project.
 *
 *   evidence   the softmax weights from the sketches, with estimated denominators; for each token the largest weight of
 *              the q heads in the GQA group
 *   selection  the last `recent` tokens and the K - recent heaviest other tokens, one set for each kv head
 *
 * In the variant q each q head selects K tokens by its own weights, and its kv head attends to the union of these
 * selections. The policy needs no calibration, no layer is dense by default, and nothing is evicted. The codes are
 * those of RaBitQ and TurboQuant: a random rotation gives all elements of a key the same distribution, so 2 bits for
 * each element preserve the key's direction. kernels/select.h describes how sketches are made.
 */
#include <sparsekv/policy.h>

enum variant { KV, Q };

struct config {
	uint32_t variant;
	struct skv_budget budget;
	uint32_t bits, recent, floor, dense;
	struct skv_prefill_config prefill;
};

static const struct skv_param params[] = {
        {"variant", SKV_PARAM_CHOICE, offsetof(struct config, variant), "kv,q",
         "whether a kv head selects, by all of its q heads, or each q head, and the kv head attends to what any of these selects"},
        {"bits", SKV_PARAM_UINT, offsetof(struct config, bits), "2", "of an element of a sketch: 1 to 4"},
        {"budget", SKV_PARAM_BUDGET, offsetof(struct config, budget), "0.0625",
         "tokens selected; below 1 a share of the sequence"},
        {"floor", SKV_PARAM_UINT, offsetof(struct config, floor), "128", "at least so many tokens, from 16 on, where the budget is a share"},
        {"recent", SKV_PARAM_UINT, offsetof(struct config, recent), "32", "the last so many tokens are among them"},
        {"dense", SKV_PARAM_UINT, offsetof(struct config, dense), "0", "first layers that attend densely"},
        SKV_PREFILL_PARAMS(struct config, prefill),
};

static int check(const void *config, const struct skv_model *m, char *err, size_t err_len)
{
	const struct config *c = config;

	if (skv_sketch_config_check(c->bits, c->budget.share > 0 ? c->floor : c->budget.count, m, err, err_len) < 0)
		return -1;
	if (c->recent < 1) {
		snprintf(err, err_len, "recent=0, expected at least 1");
		return -1;
	}
	return skv_prefill_check(&c->prefill, err, err_len);
}

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	const struct config *c = config;

	skv_prefill_plan(&c->prefill, m, layer, plan);
	if (layer < c->dense)
		return;
	plan->attend = SKV_ATTEND_TOKENS;
	plan->source = layer;
	plan->scores = SKV_SCORES_TOKENS | SKV_SCORES_SKETCHES;
	plan->sharing = c->variant == Q ? SKV_SHARE_Q_HEAD : SKV_SHARE_KV_HEAD;
	plan->sketch_bits = c->bits;
}

static void before(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	const struct config *c = ctx->config;

	if (layer < c->dense)
		return;
	ctx->prims->score_sketches(ctx, layer);
	ctx->prims->select_tokens(ctx, &(struct skv_select){
	                                       .layer = layer,
	                                       .budget = c->budget,
	                                       .floor = c->budget.share > 0 ? c->floor : SKV_PAGE_TOKENS,
	                                       .recent = c->recent,
	                                       .unite = c->variant == Q,
	                               });
}

SKV_POLICY_DEFINE("sketch", struct config, params,
                  .summary = "Each kv head attends to the top-k tokens by scores of its keys in 2 bits (sketches)",
                  SKV_TAXONOMY(SKV_ACT_SELECT, SKV_GRAN_TOKEN, SKV_EVID_QUERY, SKV_SCOPE_LAYER, SKV_SHARE_KV_HEAD),
                  .check = check, .plan = plan, .before = before)
