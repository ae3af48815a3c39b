/* SPDX-License-Identifier: Apache-2.0 */
/*
 * delta - a few layers select pages for the layers after them ("DELTA: Dynamic Layer-Aware Token Attention for
 * Efficient Long-Context Reasoning").
 *
 * A few layers, where attention shifts most, attend densely and select pages. The layers after each of them attend to
 * its selection, until the next one selects anew:
 *
 *   token score   s_t = max over all q heads of the softmax weight of token t
 *   page score    S_u = sum of s_t over the tokens of page u
 *   selection     the last L pages, and the best K - L of the rest; one selection for all heads
 *
 * The paper uses K = 64 and L = 8, and keeps the first two layers dense. In a sequence of at most K pages, all pages
 * are selected, so attention is dense. Nothing is evicted.
 *
 * The parameter scores=sketch is not part of the paper: with it, weights come from sketches of keys, and a layer that
 * selects attends to its own selection.
 */
#include <sparsekv/policy.h>

struct config {
	struct skv_select_config select; /* budget: K pages; recent: L pages */
	uint32_t pin;                    /* number of first pages of the sequence that are always selected */
};

static const struct skv_param params[] = {
        {"budget", SKV_PARAM_BUDGET, offsetof(struct config, select.budget), "64",
         "pages selected; below 1 a share of the sequence, at least 8 pages"},
        SKV_SELECT_RECENT_PARAM(struct config, select, "0", "pages"),
        SKV_SELECT_LAYERS_PARAM(struct config, select,
                                "layers that select; auto: the profile's, without one the first that is not dense, and those "
                                "after 2/5 and 3/5 of the layers"),
        SKV_SELECT_DENSE_PARAM(struct config, select),
        {"pin", SKV_PARAM_UINT, offsetof(struct config, pin), "0",
         "first pages of the sequence, always selected on top of the budget"},
        SKV_SELECT_PROFILE_PARAMS(struct config, select),
        SKV_SKETCH_PARAMS(struct config, select.sketch),
};

/*
 * Returns the layers that select. The paper finds them by calibration, as sparsekv-calibrate does: layers 2, 14 and 22
 * of 28; layers 2, 8 and 31 of 32. Without a calibrated profile the layers are guessed: the first one follows the dense
 * layers, as in all sets of the paper.
 */
static struct skv_layer_set selecting(const struct config *c, const struct skv_model *m)
{
	return skv_select_layers(&c->select, &c->select.profile.delta, m);
}

static int check(const void *config, const struct skv_model *m, char *err, size_t err_len)
{
	const struct skv_select_config *c = &((const struct config *)config)->select;

	if (c->sketch.scores == SKV_SCORED_BY_SKETCHES && skv_sketch_config_check(c->sketch.bits, SKV_PAGE_TOKENS, m, err, err_len) < 0)
		return -1;
	return skv_select_config_check(c, "pages", err, err_len);
}

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	const struct config *c = config;
	struct skv_layer_set layers = selecting(c, m);

	skv_select_plan(&c->select, &layers, SKV_ATTEND_PAGES, SKV_SHARE_ALL_HEADS, m, layer, plan);
	plan->reduce = SKV_REDUCE_MAX; /* the paper takes the largest weight of all heads */
}

static void select_top(const struct skv_policy_ctx *ctx, uint32_t layer, int attended)
{
	const struct config *c = ctx->config;
	struct skv_layer_set layers = selecting(c, ctx->model);
	int share = c->select.budget.share > 0;

	if (skv_select_now(ctx, &c->select, &layers, layer, attended))
		ctx->prims->select_pages(ctx, &(struct skv_select){
		                                      .layer = layer,
		                                      .budget = c->select.budget,
		                                      .floor = share ? 8 : 1,
		                                      .recent = c->select.recent,
		                                      .recent_floor = share && !c->select.recent ? 2 : 1,
		                                      .pin = c->pin,
		                              });
}

static void before(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	select_top(ctx, layer, 0);
}

static void after(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	select_top(ctx, layer, 1);
}

SKV_POLICY_DEFINE("delta", struct config, params,
                  .summary = "A few dense layers select pages for the layers after them (DELTA)",
                  SKV_TAXONOMY(SKV_ACT_SELECT, SKV_GRAN_PAGE, SKV_EVID_WEIGHTS, SKV_SCOPE_STEP, SKV_SHARE_ALL_HEADS),
                  .check = check, .plan = plan, .before = before, .after = after)
