/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common/plan.c - checks the plans that a policy makes for the layers of a model, and the arguments of the primitives
 * that the policy's hooks call.
 */
#include "common/spec.h"
#include "common/refuse.h"

#include <errno.h>

static bool budget_valid(struct skv_budget b)
{
	return b.count ? b.share == 0 : b.share > 0 && b.share < 1;
}

const char *skv_window_check(const struct skv_window *w)
{
	return budget_valid(w->budget) ? NULL : "a window without a budget";
}

const char *skv_select_check(const struct skv_select *s, uint32_t scores, const struct skv_plan *plans,
                             uint32_t n_layers)
{
	if (s->layer >= n_layers)
		return "a selection of a layer that the model does not have";
	if (!(plans[s->layer].scores & scores))
		return "a selection by scores that the layer's plan does not request";
	if (plans[s->layer].evict.granularity)
		return "a selection by a layer that evicts";
	if (!budget_valid(s->budget))
		return "a selection without a budget";
	if (s->unite && plans[s->layer].sharing != SKV_SHARE_Q_HEAD)
		return "united selections of q heads where the layer's plan has no row for each q head";
	return NULL;
}

const char *skv_union_check(const struct skv_select *s, const struct skv_plan *plans, uint32_t n_layers)
{
	const char *wrong = skv_select_check(s, SKV_SCORES_TOKENS, plans, n_layers);

	if (!wrong && plans[s->layer].sharing != SKV_SHARE_Q_HEAD)
		wrong = "a union of heads where the layer's plan has no row for each q head";
	if (!wrong && s->unite)
		wrong = "a union of all heads that is of each kv head";
	return wrong;
}

static const char *check_map(const struct skv_plan *p, const struct skv_plan *source, const struct skv_model *m)
{
	if (p == source || source->sharing != SKV_SHARE_KV_HEAD)
		return "a map of rows, expected a source that is another layer, with a row a kv head";
	for (uint32_t h = 0; h < m->n_kv_heads; h++)
		if (p->map[h] >= m->n_kv_heads)
			return "a map to a kv head that the model does not have";
	return NULL;
}

const char *skv_score_check(uint32_t layer, const struct skv_plan *plans, uint32_t n_layers)
{
	if (layer >= n_layers)
		return "scores of a layer that the model does not have";
	return plans[layer].scores & SKV_SCORES_PAGE_BOUNDS ? NULL : "scores by page bounds that the layer's plan does not request";
}

const char *skv_sketch_check(uint32_t layer, const struct skv_plan *plans, uint32_t n_layers)
{
	if (layer >= n_layers)
		return "scores of a layer that the model does not have";
	return plans[layer].scores & SKV_SCORES_SKETCHES ? NULL : "scores by sketches that the layer's plan does not request";
}

const char *skv_accumulate_check(uint32_t layer, const struct skv_plan *plans, uint32_t n_layers)
{
	if (layer >= n_layers || !plans[layer].evict.accumulate)
		return "accumulated scores in a layer whose plan has none";
	return plans[layer].evict.max_head_ratio > 0 ? "accumulated scores in a layer whose heads share a budget: the library accumulates them" : NULL;
}

static bool budget_or_none(struct skv_budget b)
{
	return budget_valid(b) || (b.count == 0 && b.share == 0);
}

const char *skv_evict_to_budget_check(const struct skv_evict_to_budget *k, const struct skv_plan *plans,
                                      uint32_t n_layers)
{
	if (k->layer >= n_layers || !plans[k->layer].evict.granularity)
		return "an eviction in a layer whose plan has none";
	if (!budget_or_none(k->recent))
		return "recent tokens by an invalid budget";
	if (k->smooth > 63 || (k->smooth > 1 && k->smooth % 2 == 0))
		return "smooth, expected an odd number up to 63";
	if (!(k->lambda >= 0 && k->lambda <= 1))
		return "lambda, expected 0 to 1";
	if (plans[k->layer].evict.granularity > 1 && (k->smooth > 1 || k->lambda > 0))
		return "smooth or lambda with pages, which are evicted by score alone";
	if (!(k->safeguard >= 0 && k->safeguard <= 1) || (k->safeguard > 0 && !(plans[k->layer].evict.max_head_ratio > 0)))
		return "safeguard, expected 0 to 1, of a budget that heads share";
	if (plans[k->layer].evict.max_head_ratio > 0 && (k->lambda > 0 || k->recent.share > 0 || k->evict_older || k->reset_scores))
		return "an eviction where heads share a budget, expected scores and a count of recent tokens alone";
	return NULL;
}

const char *skv_touch_check(const struct skv_touch_pages *s, const struct skv_plan *plans, uint32_t n_layers)
{
	if (s->layer >= n_layers || plans[s->layer].evict.granularity <= 1)
		return "touched pages in a layer that does not evict pages";
	return s->scale >= 0 && s->alpha >= 0 && s->ratio >= 0 && s->ratio <= 1 ? NULL : "touched pages by an invalid scale, alpha "
	       "or ratio";
}

const char *skv_evict_outside_check(uint32_t layer, const struct skv_window *w, const struct skv_plan *plans,
                            uint32_t n_layers)
{
	if (layer >= n_layers)
		return "evictions from a layer that the model does not have";
	if (plans[layer].evict.granularity)
		return "evict_outside of a layer with an eviction plan";
	return skv_window_check(w);
}

/* Checks the eviction plan of a layer. This function and the check functions after it return NULL or an error text. */
static const char *check_eviction(const struct skv_plan *p, uint32_t layer)
{
	const struct skv_evict *k = &p->evict;

	if (k->granularity != 1 && k->granularity != SKV_PAGE_TOKENS)
		return "evict: granularity, expected 1 or a page's tokens";
	if (!budget_valid(k->budget) || (k->budget.share > 0 ? k->floor : k->budget.count) < 2)
		return "evict: a budget, expected at least 2, by its floor if it is a share";
	if (!budget_or_none(k->pinned) || (k->pinned.count + k->pinned.share > 0 && (k->granularity == 1 || !k->pin_prompt)))
		return "evict: pinned, expected a budget, of pages of a pinned prompt";
	if (k->slack == 0)
		return "evict: slack, expected at least 1";
	if (k->window && !k->accumulate)
		return "evict: a window without accumulated scores";
	if (k->granularity > 1)
		return !k->accumulate && p->attend == SKV_ATTEND_PAGES && p->source == layer && p->scores == SKV_SCORES_PAGE_BOUNDS &&
		       p->sharing == SKV_SHARE_Q_HEAD ? NULL : "evict: a layer that evicts pages attends to PAGES of its own by page bounds, shared by q head";
	if (k->max_head_ratio != 0)
		return k->max_head_ratio >= 1 && k->accumulate && !k->pin_prompt && p->attend == SKV_ATTEND_TOKENS && p->source == layer &&
		       !p->scores && p->sharing == SKV_SHARE_KV_HEAD ? NULL : "evict: heads that share a budget have a "
		       "max_head_ratio of at least 1, accumulate scores, and attend to TOKENS of their own without other scores";
	if (p->attend != SKV_ATTEND_DENSE)
		return "evict: a layer that evicts tokens attends densely";
	if (k->accumulate ? p->scores != SKV_SCORES_TOKENS || p->reduce != SKV_REDUCE_SUM || p->sharing != SKV_SHARE_KV_HEAD
	             : p->scores)
		return "evict: accumulated scores are SKV_SCORES_TOKENS alone, summed by kv head";
	return NULL;
}

static bool bits_of(uint32_t bits, uint32_t most, uint32_t least)
{
	return bits >= least && bits <= most && (bits & (bits - 1)) == 0;
}

/* Checks the parameters of latent compression. */
static const char *check_latent(const struct skv_compress *k)
{
	if (k->bits ? !bits_of(k->bits, 16, 4) : !k->stride)
		return "compress: bits of a latent, expected 16, 8, 4, or 0 with references";
	if (k->stride > 255 || k->n_refs > 4 || !k->stride != !k->n_refs || k->n_refs > k->sinks)
		return "compress: stride, expected at most 255, and n_refs, at most 4 and at most the sinks, which are references";
	if (k->stride ? !bits_of(k->ref_bits, 16, 4) : k->ref_bits)
		return "compress: ref_bits, expected 16, 8 or 4 with references, else 0";
	return k->sinks > 240 ? "compress: sinks, expected at most 240" : NULL;
}

/* Checks the parameters of KV quantization. */
static const char *check_quantized(const struct skv_compress *k)
{
	if (k->bits != 4 && k->bits != 2)
		return "compress: bits of quantized K and V, expected 4 or 2";
	if (k->block % 32 != 0)
		return "compress: block of quantized K and V, expected a multiple of 32";
	return k->stride || k->n_refs || k->ref_bits || k->sinks ? "compress: quantized K and V have neither references nor sinks"
	                                                       : NULL;
}

const char *skv_compress_check(const struct skv_compress *k)
{
	if (k->kind > SKV_COMPRESS_QUANT)
		return "compress: kind is not one of enum skv_compress_kind";
	if (k->block == 0 || k->block % SKV_PAGE_TOKENS != 0 || k->block > SKV_MAX_TOKENS ||
	    k->residual > SKV_MAX_TOKENS)
		return "compress: block, expected whole pages, and block and residual at most a sequence's tokens";
	if (k->scale_block != 32 && k->scale_block != 64)
		return "compress: scale_block, expected 32 or 64";
	return k->kind == SKV_COMPRESS_QUANT ? check_quantized(k) : check_latent(k);
}

/*
 * Checks the compression plan of a layer. `source`: plan of the layer whose selection the layer attends to, or the
 * layer's own plan.
 */
static const char *check_compression(const struct skv_plan *p, const struct skv_plan *source)
{
	const char *wrong = skv_compress_check(&p->compress);

	if (wrong)
		return wrong;
	if (p->evict.granularity)
		return "compress: a layer with an eviction plan compresses nothing";
	if (p->compress.kind == SKV_COMPRESS_QUANT)
		return p->attend == SKV_ATTEND_DENSE && !(p->scores & SKV_SCORES_PAGE_BOUNDS) ? NULL : "compress: a layer with quantized K "
		       "and V attends densely, without page bounds";
	if (p->scores)
		return "compress: a layer with latents makes no scores";
	if (p->attend == SKV_ATTEND_DENSE)
		return NULL;
	return p->attend == SKV_ATTEND_TOKENS && !p->mapped && source->sharing == SKV_SHARE_ALL_HEADS ? NULL : "compress: a layer "
	       "with latents attends densely, or to TOKENS that another layer selects for all heads";
}

static bool power_of_two(uint32_t x, uint32_t least, uint32_t most)
{
	return x >= least && x <= most && (x & (x - 1)) == 0;
}

/* Checks, for a layer with Kascade prefill, the layer that selects the tokens to which the rows of a tile attend. */
static const char *check_top(const struct skv_plan *plans, uint32_t layer, const struct skv_model *m)
{
	const struct skv_prefill *p = &plans[layer].prefill, *source = &plans[p->source < layer ? p->source : layer].prefill;

	if (!budget_valid(p->top))
		return "prefill: top without a budget";
	if (p->source > layer || source->how != SKV_PREFILL_KASCADE ||
	    (p->source < layer && source->source != p->source))
		return "prefill: source is this layer, or an earlier one that is its own source";
	for (uint32_t i = p->source + 1; i < layer; i++)
		if (plans[i].prefill.how == SKV_PREFILL_KASCADE && plans[i].prefill.source == i)
			return "prefill: source is not the last layer that selects";
	if (p->dense > (p->source == layer))
		return "prefill: dense is 0, or 1 where a layer is its own source";
	if (p->source == layer && p->mapped)
		return "prefill: a map of heads, expected a source that is another layer";
	for (uint32_t h = 0; h < m->n_kv_heads && p->mapped; h++)
		if (p->map[h] >= m->n_kv_heads)
			return "prefill: a map to a kv head that the model does not have";
	return NULL;
}

/* Checks the parameters of a layer's sparse prefill method. */
static const char *check_rows(const struct skv_prefill *p)
{
	const uint32_t *keep = p->keep;

	if (p->correct && !power_of_two(p->gamma, 2, 4096))
		return "prefill: gamma is a power of two from 2 to 4096";
	if (p->correct && (p->tail < p->gamma || p->tail > SKV_MAX_TOKENS))
		return "prefill: tail is at least gamma, and no more than a sequence has";
	if (p->sinks > SKV_MAX_TOKENS || p->window > SKV_MAX_TOKENS)
		return "prefill: sinks and window, expected no more than a sequence has";
	if (p->how == SKV_PREFILL_STREAMING)
		return p->window ? NULL : "prefill: a window of at least 1";
	if (p->how == SKV_PREFILL_HIP)
		return p->sinks % 64 == 0 && p->window % 64 == 0 && keep[0] % 64 == 0 && keep[1] % 32 == 0 && keep[2] % 8 == 0 &&
		       keep[0] >= keep[1] && keep[1] >= keep[2] && keep[2] && keep[0] <= SKV_MAX_TOKENS ? NULL : "prefill: hip has "
		       "sinks and a window of multiples of 64, and keeps multiples of 64, 32 and 8 tokens, none above the one before";
	if (p->how == SKV_PREFILL_KASCADE)
		return NULL;
	if (!power_of_two(p->segment, 2 * SKV_MINFERENCE_ROWS, SKV_MAX_TOKENS))
		return "prefill: segments are a power of two, at least 128";
	return p->vertical >= SKV_MINFERENCE_FORCED && p->slash >= SKV_MINFERENCE_FORCED && p->vertical <= SKV_MAX_TOKENS &&
	       p->slash <= SKV_MAX_TOKENS ? NULL : "prefill: vertical and slash are at least 30, and no more than a sequence has";
}

/* Checks the prefill plan of a layer. */
static const char *check_prefill(const struct skv_plan *plans, uint32_t layer, const struct skv_model *m)
{
	const struct skv_prefill *p = &plans[layer].prefill;
	const char *wrong;

	if (p->how > SKV_PREFILL_KASCADE)
		return "prefill: how is not one of enum skv_prefill_how";
	if (p->correct > SKV_CORRECT_RECOMPUTE || (p->correct && p->how == SKV_PREFILL_DENSE))
		return "prefill: correct is not one of enum skv_correction, or of a layer that is dense";
	for (uint32_t i = 0; i < layer && p->correct; i++)
		if (plans[i].prefill.correct && (plans[i].prefill.gamma != p->gamma || plans[i].prefill.tail != p->tail))
			return "prefill: gamma and tail are the same in all layers";
	wrong = p->how == SKV_PREFILL_DENSE ? NULL : check_rows(p);
	return wrong || p->how != SKV_PREFILL_KASCADE ? wrong : check_top(plans, layer, m);
}

static const char *check_sketches(const struct skv_plan *p, const struct skv_model *m)
{
	if (!(p->scores & (SKV_SCORES_TOKENS | SKV_SCORES_PAGES)) || p->scores & SKV_SCORES_PAGE_BOUNDS)
		return "sketches give scores of tokens or of pages, and the layer has no others";
	if (p->sketch_bits < 1 || p->sketch_bits > 4)
		return "sketch_bits, expected 1 to 4";
	if (m->head_dim % 32)
		return "sketches of a head_dim that is no multiple of 32";
	if (p->reduce == SKV_REDUCE_MEAN_Q)
		return "reduce is the mean of q, expected with page bounds only";
	return p->evict.granularity || p->compress.kind ? "sketches in a layer that evicts or compresses tokens" : NULL;
}

/* Checks value_bits. The layer must select by its own sketches, and the q heads of a kv head must share a list. */
static const char *check_values(const struct skv_plan *p, uint32_t layer)
{
	if (p->value_bits != 2)
		return "value_bits, expected 0 or 2";
	if (!skv_plan_chooses_by_sketches(p, layer) || p->sharing == SKV_SHARE_Q_HEAD)
		return "value_bits in a layer that does not select tokens by its own sketches, for all heads or each kv head";
	return NULL;
}

/* Checks the scores that a layer's plan requests. `itself`: the layer attends to tokens that it selects itself. */
static const char *check_scores(const struct skv_plan *p, const struct skv_model *m, bool itself)
{
	if (p->scores & ~(uint32_t)(SKV_SCORES_TOKENS | SKV_SCORES_PAGES | SKV_SCORES_PAGE_BOUNDS | SKV_SCORES_SKETCHES))
		return "scores has unknown bits";
	if (p->scores & SKV_SCORES_SKETCHES)
		return check_sketches(p, m);
	if (p->sketch_bits)
		return "sketch_bits without SKV_SCORES_SKETCHES";
	if (itself && p->scores != SKV_SCORES_TOKENS)
		return "a layer that selects its own tokens requests SKV_SCORES_TOKENS, and no others";
	if (p->scores & SKV_SCORES_PAGE_BOUNDS)
		return p->scores == SKV_SCORES_PAGE_BOUNDS ? NULL : "page bounds are a layer's only scores";
	if (p->reduce == SKV_REDUCE_MEAN_Q)
		return "reduce is the mean of q, expected with page bounds only";
	if (p->scores && p->attend != SKV_ATTEND_DENSE && !itself)
		return "scores come from dense layers, and from those that select their own tokens";
	return NULL;
}

/* Checks the plan of `layer`. The plans of the layers before it have been checked. */
static const char *check_plan(const struct skv_plan *plans, uint32_t layer, const struct skv_model *m)
{
	const struct skv_plan *p = &plans[layer];
	uint32_t needs = p->attend == SKV_ATTEND_PAGES ? SKV_SCORES_PAGES | SKV_SCORES_PAGE_BOUNDS : SKV_SCORES_TOKENS;
	bool itself = skv_plan_chooses(p, layer), scores = p->attend == SKV_ATTEND_PAGES ? p->scores : p->scores & SKV_SCORES_SKETCHES;
	const char *wrong = check_scores(p, m, itself);

	if (p->attend > SKV_ATTEND_TOKENS)
		return "attend is not one of enum skv_attend_mode";
	if (p->reduce > SKV_REDUCE_MEAN_Q)
		return "reduce is not one of enum skv_reduce";
	if (wrong)
		return wrong;
	if (p->sharing > SKV_SHARE_Q_HEAD)
		return "sharing is not one of enum skv_sharing";
	if (p->value_bits && (wrong = check_values(p, layer)))
		return wrong;
	if (p->reduce == SKV_REDUCE_MEAN_Q && p->sharing == SKV_SHARE_Q_HEAD)
		return "reduce is the mean of q, which leaves no row a q head";
	if (p->evict.granularity && (wrong = check_eviction(p, layer)))
		return wrong;
	if (p->compress.kind && (wrong = check_compression(p, &plans[p->source <= layer ? p->source : layer])))
		return wrong;
	if ((wrong = check_prefill(plans, layer, m)))
		return wrong;
	if (itself && p->sharing == SKV_SHARE_Q_HEAD)
		return "a layer that selects its own tokens shares by all heads or by kv head";
	if (p->attend == SKV_ATTEND_WINDOW || p->attend == SKV_ATTEND_DENSE) {
		if (p->mapped)
			return "a map of a layer that attends to no other layer's selection";
		return p->attend == SKV_ATTEND_WINDOW ? skv_window_check(&p->window) : NULL;
	}
	if (p->evict.max_head_ratio > 0)
		return p->mapped ? "a map of a layer that attends to no other layer's selection" : NULL;
	if (p->source > layer || (p->source == layer && !itself && !scores))
		return "source is not an earlier layer";
	if (!(plans[p->source].scores & needs))
		return "source makes no scores to select by";
	if (p->source < layer && plans[p->source].evict.granularity)
		return "source has an eviction plan: its tokens are no other layer's";
	return p->mapped ? check_map(p, &plans[p->source], m) : NULL;
}

/*
 * Returns the plan of a layer that has a sliding window in the model, which is the same under every policy: attend to
 * the window, evict nothing.
 */
static struct skv_plan windowed_plan(uint32_t window)
{
	return (struct skv_plan){
	        .size = sizeof(struct skv_plan),
	        .attend = SKV_ATTEND_WINDOW,
	        .window = {.budget = {.count = window}},
	};
}

/*
 * Returns the layer whose selection this plan uses, for decode or for prompt rows, if that layer has a sliding window;
 * otherwise n_layers. A layer with a sliding window makes no selection.
 */
static uint32_t windowed_source(const struct skv_plan *p, const struct skv_model *m)
{
	const uint32_t source[] = {
	        p->attend == SKV_ATTEND_PAGES || p->attend == SKV_ATTEND_TOKENS ? p->source : m->n_layers,
	        p->prefill.how == SKV_PREFILL_KASCADE ? p->prefill.source : m->n_layers,
	};

	for (int i = 0; i < 2; i++)
		if (source[i] < m->n_layers && skv_model_window(m, source[i]))
			return source[i];
	return m->n_layers;
}

/* Rejects a layer's plan that the model does not allow: because of sliding windows, or because layers share K and V. */
static int check_model(const struct skv_policy *p, const struct skv_plan *plan, uint32_t layer, const struct skv_model *m,
                       char *err, size_t err_len)
{
	const uint32_t source = windowed_source(plan, m);

	if (source < m->n_layers)
		return skv_refuse(-EINVAL, err, err_len, "%s: layer %u goes by what layer %u selects, which has a sliding window of "
		                  "%u tokens: expected layers without one, by the spec or its profile", p->name, layer, source,
		                  skv_model_window(m, source));
	if ((plan->evict.granularity || plan->compress.kind) && skv_model_kv_shared(m, layer))
		return skv_refuse(-EINVAL, err, err_len, "%s %s layer %u, whose K and V are those of more than one layer: expected a "
		                  "policy that leaves them as they are", p->name,
		                  plan->evict.granularity ? "evicts from" : "compresses", layer);
	return 0;
}

int skv_policy_plan(const struct skv_policy *p, const void *config, const struct skv_model *m,
                    struct skv_plan *plans, char *err, size_t err_len)
{
	for (uint32_t layer = 0; layer < m->n_layers; layer++) {
		const char *wrong;
		int e;

		plans[layer] = (struct skv_plan){.size = sizeof(struct skv_plan)};
		p->plan(config, m, layer, &plans[layer]);
		if (skv_model_window(m, layer))
			plans[layer] = windowed_plan(skv_model_window(m, layer));
		e = check_model(p, &plans[layer], layer, m, err, err_len);
		if (e < 0)
			return e;
		wrong = check_plan(plans, layer, m);
		if (wrong)
			return skv_refuse(-EBADMSG, err, err_len, "%s: plan of layer %u: %s", p->name, layer, wrong);
	}
	return 0;
}
