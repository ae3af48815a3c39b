/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparsekv/policy-select.h - parameters, plans and hooks of policies in which a few layers select tokens or pages for
 * the layers after them, as in several papers (DELTA, OmniKV, TidalDecode, LessIsMore, DeltaKV; Kascade's anchors).
 * Only policy.h includes this header.
 *
 * A selecting layer attends densely and makes attention scores; the layers after it attend to its selection, until the
 * next selecting layer. A selecting layer that scores by sketches of keys also attends to its own selection: then only
 * sketches are read as a whole. Which layers should select depends on the model: the spec names the layers, else the
 * profile that sparsekv-calibrate(1) wrote, else the policy's own rule. The file of a policy defines this rule, the
 * scores that the selecting layers use, and the kind of selection.
 */
#ifndef SPARSEKV_POLICY_SELECT_H
#define SPARSEKV_POLICY_SELECT_H

#ifndef SPARSEKV_POLICY_H
#error "include <sparsekv/policy.h>"
#endif

/* ---- sets of layers -------------------------------------------------------------------------- */

#define SKV_NO_LAYER UINT32_MAX

SKV_INLINE void skv_layer_add(struct skv_layer_set *s, uint32_t layer)
{
	if (layer < SKV_MAX_LAYERS)
		s->bits[layer / 64] |= 1ull << (layer % 64);
}

/* Index of the last layer of the set at or before `layer`, or SKV_NO_LAYER. */
SKV_INLINE uint32_t skv_layer_source(const struct skv_layer_set *s, uint32_t layer)
{
	while (layer > 0 && !skv_layer_in(s, layer))
		layer--;
	return skv_layer_in(s, layer) ? layer : SKV_NO_LAYER;
}

/* ---- selection for later layers -------------------------------------------------------------- */

struct skv_sketch_config {
	uint32_t scores; /* enum skv_scored_by */
	uint32_t bits;
};
enum skv_scored_by { SKV_SCORED_BY_KEYS, SKV_SCORED_BY_SKETCHES };

struct skv_select_config {
	struct skv_budget budget; /* number or share of selected tokens (pages) */
	uint32_t recent; /* how many of the selected tokens (pages) are the latest ones, which are always selected */
	struct skv_layer_set layers;
	uint32_t dense;
	struct skv_sketch_config sketch;
	struct skv_profile profile;
	struct skv_prefill_config prefill;
};

/* Rows of a parameter table, in the order of specs. The budget parameter is not here: each policy defines its own. */
#define SKV_SELECT_LAYERS_PARAM(config, field, help)                                                        \
	{"layers", SKV_PARAM_LAYERS, offsetof(config, field.layers), "auto", help}
#define SKV_SELECT_DENSE_PARAM(config, field)                                                               \
	{"dense", SKV_PARAM_UINT, offsetof(config, field.dense), "2", "first layers that stay dense"}
#define SKV_SKETCH_PARAMS(config, field)                                                                    \
	{"scores", SKV_PARAM_CHOICE, offsetof(config, field.scores), "keys,sketch",                         \
	 "what selecting layers go by: all of their keys, or sketches of these; then they attend to what they select"}, \
	{"bits", SKV_PARAM_UINT, offsetof(config, field.bits), "2", "of an element of a sketch: 1 to 4"}
#define SKV_SELECT_PROFILE_PARAMS(config, field)                                                            \
	{"profile", SKV_PARAM_PROFILE, offsetof(config, field.profile), "none",                             \
	 "what sparsekv-calibrate has written about the model"},                                            \
	SKV_PREFILL_PARAMS(config, field.prefill)

#define SKV_SELECT_FILTERS_HELP                                                                             \
	"filter layers; auto: the profile's, without one the first that is not dense, and those after 2/5 and 3/5 of the layers"
#define SKV_SELECT_TWICE_HELP                                                                               \
	"layers that select; auto: the profile's filter layers, without one the first that is not dense, and the one " \
	"after 13/32 of the layers"

/* Row of the parameter `recent`. `units`: "tokens" or "pages", for the help text. */
#define SKV_SELECT_RECENT_PARAM(config, field, recent_default, units)                                       \
	{"recent", SKV_PARAM_UINT, offsetof(config, field.recent), recent_default,                          \
	 "last " units ", always among the selected; 0: an eighth of the budget"}

/*
 * Are sketches of `bits` bits valid with a budget of at least `least` tokens? Budgets below 16 tokens have no sketches.
 */
static inline int skv_sketch_config_check(uint32_t bits, uint32_t least, const struct skv_model *m, char *err, size_t err_len)
{
	if (bits < 1 || bits > 4)
		snprintf(err, err_len, "bits=%u, expected 1 to 4", bits);
	else if (m->head_dim % 32)
		snprintf(err, err_len, "head_dim %u, expected a multiple of 32", m->head_dim);
	else if (least < SKV_PAGE_TOKENS)
		snprintf(err, err_len, "a budget of at least %u tokens, expected at least %u", least, SKV_PAGE_TOKENS);
	else
		return 0;
	return -1;
}

static inline int skv_select_config_check(const struct skv_select_config *c, const char *units, char *err,
                                          size_t err_len)
{
	if (!c->budget.count || c->recent <= c->budget.count)
		return skv_prefill_check(&c->prefill, err, err_len);
	snprintf(err, err_len, "recent=%u, expected at most the budget of %u %s", c->recent, c->budget.count, units);
	return -1;
}

/*
 * Add the full layer at `fifths` fifths of the depth (rounded), or the next full layer, if it comes after the dense
 * layers.
 */
SKV_INLINE void skv_select_add_fifths(struct skv_layer_set *s, const struct skv_model *m, uint32_t fifths,
                                      uint32_t dense)
{
	uint32_t layer = skv_full_layer(m, (fifths * m->n_layers + 2) / 5, 0);

	if (layer > dense && layer < m->n_layers)
		skv_layer_add(s, layer);
}

/*
 * The selecting layers: those of the spec, else those of the profile, else a guess: the first layer that is not dense,
 * and the layers after 2/5 and 3/5 of the layers. If a guessed layer has a sliding window, the next full layer takes
 * its place. No paper has this guess. On the two models on which the guess was measured, it loses less than half of
 * what evenly spaced layers lose; calibrated layers are better than the guess on both models.
 */
static inline struct skv_layer_set skv_select_layers(const struct skv_select_config *c,
                                                     const struct skv_layer_set *profile, const struct skv_model *m)
{
	struct skv_layer_set s = c->layers;

	if (skv_layer_set_empty(&s))
		s = *profile;
	if (skv_layer_set_empty(&s) && skv_full_layer(m, c->dense, 0) < m->n_layers) {
		skv_layer_add(&s, skv_full_layer(m, c->dense, 0));
		skv_select_add_fifths(&s, m, 2, c->dense);
		skv_select_add_fifths(&s, m, 3, c->dense);
	}
	return s;
}

/* OmniKV's filter layers, which select tokens for the layers after them. */
static inline struct skv_layer_set skv_select_filters(const struct skv_select_config *c, const struct skv_model *m)
{
	return skv_select_layers(c, &c->profile.filters, m);
}

/*
 * TidalDecode's selecting layers: the spec's, else the profile's, else the first non-dense one and the one after 13/32.
 */
static inline struct skv_layer_set skv_select_layers_twice(const struct skv_select_config *c, const struct skv_model *m)
{
	struct skv_layer_set s = {{0}};
	uint32_t first = skv_full_layer(m, c->dense, 0), second = skv_full_layer(m, m->n_layers * 13 / 32, 0);

	if (!skv_layer_set_empty(&c->layers) || !skv_layer_set_empty(&c->profile.filters))
		return skv_select_layers(c, &c->profile.filters, m);
	if (first < m->n_layers)
		skv_layer_add(&s, first);
	if (second < m->n_layers && second > c->dense)
		skv_layer_add(&s, second);
	return s;
}

/* Does a selecting layer score by sketches? A dense layer does not, because it has the softmax weights themselves. */
static inline int skv_select_by_sketches(const struct skv_select_config *c, uint32_t layer)
{
	return c->sketch.scores == SKV_SCORED_BY_SKETCHES && layer >= c->dense;
}

/*
 * Fill a layer's plan. A selecting layer is dense and makes scores, of tokens or pages as `attend` says. Other layers,
 * except the first `dense` ones, attend to the selection of the last selecting layer before them. A selecting layer
 * that scores by sketches attends to its own selection.
 */
static inline void skv_select_plan(const struct skv_select_config *c, const struct skv_layer_set *selecting,
                                   enum skv_attend_mode attend, enum skv_sharing sharing, const struct skv_model *m,
                                   uint32_t layer, struct skv_plan *plan)
{
	uint32_t source = skv_layer_source(selecting, layer);
	int sketches = source == layer && skv_select_by_sketches(c, layer);

	skv_prefill_plan(&c->prefill, m, layer, plan);
	if (source == layer) {
		plan->scores = attend == SKV_ATTEND_PAGES ? SKV_SCORES_PAGES : SKV_SCORES_TOKENS;
		plan->reduce = SKV_REDUCE_MAX;
		plan->sharing = sharing;
	}
	if (sketches) {
		plan->scores |= SKV_SCORES_SKETCHES;
		plan->sketch_bits = c->sketch.bits;
	}
	if (sketches || (source != layer && source != SKV_NO_LAYER && layer >= c->dense)) {
		plan->attend = attend;
		plan->source = source;
	}
}

/*
 * Must the hook select now? A selecting layer selects in its after(), once it has attended; a layer that scores by
 * sketches selects in its before(), and this function then makes the scores.
 */
static inline int skv_select_now(const struct skv_policy_ctx *ctx, const struct skv_select_config *c,
                                 const struct skv_layer_set *selecting, uint32_t layer, int attended)
{
	int sketches = skv_select_by_sketches(c, layer);

	if (!skv_layer_in(selecting, layer) || sketches == attended)
		return 0;
	if (sketches)
		ctx->prims->score_sketches(ctx, layer);
	return 1;
}

/* Select tokens within the budget for a selecting layer; the latest tokens are always selected. */
static inline void skv_select_tokens(const struct skv_policy_ctx *ctx, const struct skv_select_config *c, uint32_t layer)
{
	struct skv_select select;

	memset(&select, 0, sizeof(select));
	select.layer = layer;
	select.budget = c->budget;
	select.floor = c->budget.share > 0 ? 128 : 1;
	select.recent = c->recent;
	select.recent_floor = 1;
	ctx->prims->select_tokens(ctx, &select);
}

/* before() and after() of a policy whose layers select tokens in this way. */
static inline void skv_select_before(const struct skv_policy_ctx *ctx, const struct skv_select_config *c,
                                     const struct skv_layer_set *selecting, uint32_t layer)
{
	if (skv_select_now(ctx, c, selecting, layer, 0))
		skv_select_tokens(ctx, c, layer);
}
static inline void skv_select_after(const struct skv_policy_ctx *ctx, const struct skv_select_config *c,
                                    const struct skv_layer_set *selecting, uint32_t layer)
{
	if (skv_select_now(ctx, c, selecting, layer, 1))
		skv_select_tokens(ctx, c, layer);
}

#endif
