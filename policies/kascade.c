/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kascade - anchor layers select the top-k tokens of each kv head, and later layers reuse these selections ("Kascade: A
 * Practical Sparse Attention Method for Long-Context LLM Inference").
 *
 *   token score   of kv head h: the sum over its q heads of the softmax weight (reduced after the softmax)
 *   selection     the k best tokens of each kv head; k = min(max(0.1 N, 128), N) of the sequence's N tokens
 *   reuse         kv head h attends to the selection of one of the anchor's kv heads, as a head map says
 *
 * Layer 0 attends densely and scores. Other anchor layers score all keys and attend to their own top-k tokens, or
 * attend densely like layer 0 (variant dense-anchors). In the variants named shared, the weights of all heads are
 * reduced to one selection. The paper uses layers 0, 2, 8, 13 and 14 of 32 as anchors, and layers 0, 2, 7, 14 and 23 of
 * 36, found on a development set. Nothing is evicted. With prefill=kascade, rows of prompts use the same anchors and
 * head maps, tile by tile.
 *
 * The parameter scores=sketch is not part of the paper: with it, weights come from sketches of keys, and all anchor
 * layers, including layer 0, attend to their own top-k tokens.
 */
#include <sparsekv/policy.h>

enum variant { PAPER, DENSE_ANCHORS, SHARED, SHARED_DENSE_ANCHORS };

struct config {
	struct skv_budget budget; /* k in tokens */
	struct skv_layer_set layers;
	uint32_t variant;
	struct skv_sketch_config sketch;
	struct skv_profile profile;
	struct skv_prefill_config prefill;
};

static const struct skv_param params[] = {
        {"variant", SKV_PARAM_CHOICE, offsetof(struct config, variant),
         "paper,dense-anchors,shared,shared-dense-anchors",
         "whether anchors attend densely, and whether all heads share one selection"},
        {"budget", SKV_PARAM_BUDGET, offsetof(struct config, budget), "0.1",
         "tokens selected for a kv head; below 1 a share of the sequence, at least 128 tokens"},
        {"layers", SKV_PARAM_LAYERS, offsetof(struct config, layers), "auto",
         "anchor layers; auto: the profile's with its head maps, without one the first, the third and those after 2/5, 1/2 "
         "and 3/5 of the layers"},
        {"profile", SKV_PARAM_PROFILE, offsetof(struct config, profile), "none",
         "what sparsekv-calibrate has written about the model"},
        SKV_PREFILL_PARAMS_BUT_ANCHORS(struct config, prefill),
        SKV_SKETCH_PARAMS(struct config, sketch),
};

/*
 * Is the layer an anchor if neither the spec nor a profile names anchors? Guesses five layers, at depths like those of
 * skv_select_layers().
 */
static int guessed(const struct skv_model *m, uint32_t layer)
{
	const uint32_t depth[] = {0, 2, (2 * m->n_layers + 2) / 5, m->n_layers / 2, (3 * m->n_layers + 2) / 5};

	for (size_t i = 0; i < sizeof(depth) / sizeof(*depth); i++)
		if (layer == skv_full_layer(m, depth[i], 0))
			return 1;
	return 0;
}

static int anchor(const struct config *c, const struct skv_model *m, uint32_t layer)
{
	if (!skv_layer_set_empty(&c->layers))
		return skv_layer_in(&c->layers, layer);
	if (!skv_layer_set_empty(&c->profile.anchors))
		return skv_layer_in(&c->profile.anchors, layer);
	return guessed(m, layer);
}

static int dense_anchors(const struct config *c)
{
	return c->variant == DENSE_ANCHORS || c->variant == SHARED_DENSE_ANCHORS;
}

/* Does this anchor layer attend to all tokens, and not only to its own top-k tokens? */
static int attends_densely(const struct config *c, const struct skv_model *m, uint32_t layer)
{
	return c->sketch.scores == SKV_SCORED_BY_KEYS && (layer == skv_full_layer(m, 0, 0) || dense_anchors(c));
}

static int check(const void *config, const struct skv_model *m, char *err, size_t err_len)
{
	const struct config *c = config;

	if (c->profile.crosses && skv_layer_set_empty(&c->layers) && c->variant < SHARED) {
		snprintf(err, err_len, "the profile's head map of layer %u leads from one rank's kv heads to another's: expected one that "
		         "was made for %u ranks (sparsekv-calibrate --ranks)", c->profile.crosses - 1, m->n_ranks);
		return -1;
	}
	if (c->sketch.scores == SKV_SCORED_BY_SKETCHES && dense_anchors(c)) {
		snprintf(err, err_len, "scores=sketch, expected a variant whose anchors do not attend densely");
		return -1;
	}
	if (c->sketch.scores == SKV_SCORED_BY_SKETCHES &&
	    skv_sketch_config_check(c->sketch.bits, c->budget.share > 0 ? 128 : c->budget.count, m, err, err_len) < 0)
		return -1;
	return skv_prefill_check(&c->prefill, err, err_len);
}

/*
 * Sets the head map: for each kv head of the layer, the anchor's kv head whose selection it reuses. The profile's map
 * is only valid if `source` is the layer's anchor in the profile, too. Returns 1, or 0 if there is no valid map: each
 * kv head then reuses the selection of the anchor's kv head with the same number.
 */
static uint32_t map(const struct config *c, const struct skv_model *m, uint32_t layer, uint32_t source, uint8_t *ret)
{
	if (skv_layer_set_empty(&c->profile.anchors) || skv_layer_source(&c->profile.anchors, layer) != source)
		return 0;
	for (uint32_t h = 0; h < m->n_kv_heads; h++)
		ret[h] = c->profile.map[layer][h];
	return 1;
}

/* Plans how rows of prompts attend. With prefill=kascade they use the same anchors and head maps as decode rows. */
static void prefill(const struct config *c, const struct skv_model *m, uint32_t layer, uint32_t source,
                    struct skv_prefill *ret)
{
	struct skv_plan all = {0};

	skv_prefill_plan(&c->prefill, m, layer, &all);
	if (all.prefill.how == SKV_PREFILL_KASCADE && !anchor(c, m, source))
		return;
	*ret = all.prefill;
	if (ret->how != SKV_PREFILL_KASCADE)
		return;
	ret->source = source;
	ret->dense = layer == skv_full_layer(m, 0, 0);
	if (source < layer)
		ret->mapped = map(c, m, layer, source, ret->map);
}

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	const struct config *c = config;
	uint32_t source = layer;

	while (source > 0 && !anchor(c, m, source))
		source--;
	prefill(c, m, layer, source, &plan->prefill);
	if (!anchor(c, m, source)) /* layers before the first anchor are dense */
		return;
	if (source == layer) {
		plan->scores = SKV_SCORES_TOKENS;
		plan->reduce = SKV_REDUCE_SUM;
		plan->sharing = c->variant >= SHARED ? SKV_SHARE_ALL_HEADS : SKV_SHARE_KV_HEAD;
	}
	if (source == layer && c->sketch.scores == SKV_SCORED_BY_SKETCHES) {
		plan->scores |= SKV_SCORES_SKETCHES;
		plan->sketch_bits = c->sketch.bits;
	}
	if (source < layer || !attends_densely(c, m, layer)) {
		plan->attend = SKV_ATTEND_TOKENS;
		plan->source = source;
		if (source < layer && c->variant < SHARED)
			plan->mapped = map(c, m, layer, source, plan->map);
	}
}

static void select_top(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	const struct config *c = ctx->config;

	ctx->prims->select_tokens(ctx, &(struct skv_select){
	                                       .layer = layer,
	                                       .budget = c->budget,
	                                       .floor = c->budget.share > 0 ? 128 : 1,
	                                       .no_recent = 1,
	                               });
}

static void before(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	const struct config *c = ctx->config;

	if (!anchor(c, ctx->model, layer) || attends_densely(c, ctx->model, layer))
		return;
	if (c->sketch.scores == SKV_SCORED_BY_SKETCHES)
		ctx->prims->score_sketches(ctx, layer);
	select_top(ctx, layer);
}

static void after(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	if (anchor(ctx->config, ctx->model, layer) && attends_densely(ctx->config, ctx->model, layer))
		select_top(ctx, layer);
}

SKV_POLICY_DEFINE("kascade", struct config, params,
                  .summary = "Anchor layers select tokens for each kv head, the layers after them reuse those (Kascade)",
                  SKV_TAXONOMY(SKV_ACT_SELECT, SKV_GRAN_TOKEN, SKV_EVID_WEIGHTS, SKV_SCOPE_STEP, SKV_SHARE_KV_HEAD),
                  .check = check, .plan = plan, .before = before, .after = after)
