/* SPDX-License-Identifier: Apache-2.0 */
/* common/plan.c - what a policy plans, and what its hooks ask for: does it fit together? */
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

const char *skv_select_check(const struct skv_select *s, uint32_t evidence, const struct skv_plan *plans,
                             uint32_t n_layers)
{
	if (s->layer >= n_layers)
		return "a selection of a layer that the model does not have";
	if (!(plans[s->layer].evidence & evidence))
		return "a selection by evidence that the layer's plan does not ask for";
	if (plans[s->layer].keep.unit)
		return "a selection of a layer that keeps units";
	if (!budget_valid(s->budget))
		return "a selection without a budget";
	return NULL;
}

const char *skv_union_check(const struct skv_select *s, const struct skv_plan *plans, uint32_t n_layers)
{
	const char *wrong = skv_select_check(s, SKV_EV_TOKENS, plans, n_layers);

	if (!wrong && plans[s->layer].sharing != SKV_SHARE_Q_HEAD)
		wrong = "a union of heads where the layer's plan has no row for each q head";
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
	return plans[layer].evidence & SKV_EV_BOUNDS ? NULL : "scores by bounds that the layer's plan does not ask for";
}

const char *skv_tally_check(uint32_t layer, const struct skv_plan *plans, uint32_t n_layers)
{
	if (layer >= n_layers || !plans[layer].keep.votes)
		return "votes in a layer whose plan has none";
	return plans[layer].keep.spread > 0 ? "votes in a layer whose heads share a budget: they are counted anyhow" : NULL;
}

static bool budget_or_none(struct skv_budget b)
{
	return budget_valid(b) || (b.count == 0 && b.share == 0);
}

const char *skv_keep_check(const struct skv_keep_best *k, const struct skv_plan *plans, uint32_t n_layers)
{
	if (k->layer >= n_layers || !plans[k->layer].keep.unit)
		return "a choice of units in a layer that keeps none";
	if (!budget_or_none(k->recent))
		return "the latest units by a budget that is none";
	if (k->smooth > 63 || (k->smooth > 1 && k->smooth % 2 == 0))
		return "a mean of positions around, expected an odd number up to 63";
	if (!(k->lambda >= 0 && k->lambda <= 1))
		return "a lambda that is not from 0 to 1";
	if (plans[k->layer].keep.unit > 1 && (k->smooth > 1 || k->lambda > 0))
		return "a choice of pages by more than their value";
	if (!(k->sure >= 0 && k->sure <= 1) || (k->sure > 0 && !(plans[k->layer].keep.spread > 0)))
		return "a sure share that is not from 0 to 1 of a budget that heads share";
	if (plans[k->layer].keep.spread > 0 && (k->lambda > 0 || k->recent.share > 0 || k->old_first || k->forget))
		return "a choice among heads that share a budget by more than votes and a number of the latest";
	return NULL;
}

const char *skv_stamp_check(const struct skv_stamp_pages *s, const struct skv_plan *plans, uint32_t n_layers)
{
	if (s->layer >= n_layers || plans[s->layer].keep.unit <= 1)
		return "stamps in a layer that keeps no pages";
	return s->scale >= 0 && s->alpha >= 0 && s->ratio >= 0 && s->ratio <= 1 ? NULL : "stamps by a scale, an alpha or a "
	       "ratio that is none";
}

const char *skv_evict_check(uint32_t layer, const struct skv_window *w, const struct skv_plan *plans,
                            uint32_t n_layers)
{
	if (layer >= n_layers)
		return "evictions from a layer that the model does not have";
	if (plans[layer].keep.unit)
		return "evictions from a layer that keeps units";
	return skv_window_check(w);
}

/* What is wrong with a layer that keeps units? */
static const char *check_keep(const struct skv_plan *p, uint32_t layer)
{
	const struct skv_keep *k = &p->keep;

	if (k->unit != 1 && k->unit != SKV_PAGE_TOKENS)
		return "keep: units are tokens or pages";
	if (!budget_valid(k->budget) || (k->budget.share > 0 ? k->floor : k->budget.count) < 2)
		return "keep: a budget of at least 2 units, a floor if it is a share";
	if (!budget_or_none(k->pinned) || (k->pinned.count + k->pinned.share > 0 && (k->unit == 1 || !k->pin_prompt)))
		return "keep: how many of the pinned units count is a budget, of pages that are pinned";
	if (k->slack == 0)
		return "keep: slack is at least 1";
	if (k->window && !k->votes)
		return "keep: a window without votes";
	if (k->unit > 1)
		return !k->votes && p->attend == SKV_ATTEND_PAGES && p->source == layer && p->evidence == SKV_EV_BOUNDS &&
		       p->sharing == SKV_SHARE_Q_HEAD ? NULL : "keep: pages are kept by bounds, a row a q head, and attended to";
	if (k->spread != 0)
		return k->spread >= 1 && k->votes && !k->pin_prompt && p->attend == SKV_ATTEND_TOKENS && p->source == layer &&
		       !p->evidence && p->sharing == SKV_SHARE_KV_HEAD ? NULL : "keep: heads share a budget of at least as "
		       "much as it is, by votes, and attend to TOKENS of their own without other evidence";
	if (p->attend != SKV_ATTEND_DENSE)
		return "keep: tokens that are kept are attended to, all of them";
	if (k->votes ? p->evidence != SKV_EV_TOKENS || p->pool != SKV_POOL_SUM || p->sharing != SKV_SHARE_KV_HEAD
	             : p->evidence)
		return "keep: votes are tokens' weights, sums of a kv head's group, and the only evidence";
	return NULL;
}

static bool bits_of(uint32_t bits, uint32_t most, uint32_t least)
{
	return bits >= least && bits <= most && (bits & (bits - 1)) == 0;
}

/* What is wrong with residuals to references? */
static const char *check_delta(const struct skv_pack *k)
{
	if (k->bits ? !bits_of(k->bits, 16, 4) : !k->stride)
		return "pack: residuals have 16, 8 or 4 bits, or 0 where there are references";
	if (k->stride > 255 || k->near > 4 || !k->stride != !k->near || k->near > k->sinks)
		return "pack: every so many tokens, at most 255, are a reference, and of these at most 4 a token's; the sinks "
		       "are references, too";
	if (k->stride ? !bits_of(k->ref_bits, 16, 4) : k->ref_bits)
		return "pack: references have 16, 8 or 4 bits";
	return k->sinks > 240 ? "pack: sinks, expected at most 240" : NULL;
}

/* And with K and V in few bits? */
static const char *check_low(const struct skv_pack *k)
{
	if (k->bits != 4 && k->bits != 2)
		return "pack: K and V in few bits have 4 or 2";
	if (k->block % 32 != 0)
		return "pack: K and V in few bits come in blocks of 32 tokens";
	return k->stride || k->near || k->ref_bits || k->sinks ? "pack: K and V in few bits have neither references nor sinks"
	                                                       : NULL;
}

const char *skv_pack_check(const struct skv_pack *k)
{
	if (k->kind > SKV_PACK_LOW)
		return "pack: kind is not one of enum skv_pack_kind";
	if (k->block == 0 || k->block % SKV_PAGE_TOKENS != 0 || k->block > SKV_MAX_TOKENS || k->raw > SKV_MAX_TOKENS)
		return "pack: blocks are of whole pages, and these and what stays behind them no more than a sequence has";
	if (k->group != 32 && k->group != 64)
		return "pack: groups are of 32 or 64 numbers";
	return k->kind == SKV_PACK_LOW ? check_low(k) : check_delta(k);
}

/* What is wrong with a layer that packs? `source`: of its selection, or itself. */
static const char *check_pack(const struct skv_plan *p, const struct skv_plan *source)
{
	const char *wrong = skv_pack_check(&p->pack);

	if (wrong)
		return wrong;
	if (p->keep.unit)
		return "pack: a layer that keeps units packs none";
	if (p->pack.kind == SKV_PACK_LOW)
		return p->attend == SKV_ATTEND_DENSE && !(p->evidence & SKV_EV_BOUNDS) ? NULL : "pack: K and V in few bits are "
		       "attended to all, and have no bounds";
	if (p->evidence)
		return "pack: residuals leave no evidence";
	if (p->attend == SKV_ATTEND_DENSE)
		return NULL;
	return p->attend == SKV_ATTEND_TOKENS && !p->mapped && source->sharing == SKV_SHARE_ALL_HEADS ? NULL : "pack: residuals "
	       "are attended to all, or by TOKENS that another layer selects for all heads";
}

static bool power_of_two(uint32_t x, uint32_t least, uint32_t most)
{
	return x >= least && x <= most && (x & (x - 1)) == 0;
}

/* What is wrong with where a prompt's chosen tokens come from? */
static const char *check_top(const struct skv_plan *plans, uint32_t layer, const struct skv_model *m)
{
	const struct skv_prefill *p = &plans[layer].prefill, *source = &plans[p->source < layer ? p->source : layer].prefill;

	if (!budget_valid(p->top))
		return "prefill: the best tokens without a budget";
	if (p->source > layer || source->how != SKV_PREFILL_KASCADE || (p->source < layer && source->source != p->source))
		return "prefill: source is this layer, or an earlier one that is its own source";
	for (uint32_t i = p->source + 1; i < layer; i++)
		if (plans[i].prefill.how == SKV_PREFILL_KASCADE && plans[i].prefill.source == i)
			return "prefill: source is not the last one that chooses";
	if (p->dense > (p->source == layer))
		return "prefill: dense is 0, or 1 where a layer is its own source";
	if (p->source == layer && p->mapped)
		return "prefill: a map of heads, expected a source that is another layer";
	for (uint32_t h = 0; h < m->n_kv_heads && p->mapped; h++)
		if (p->map[h] >= m->n_kv_heads)
			return "prefill: a map to a kv head that the model does not have";
	return NULL;
}

/* And with what is measured in rows and tokens? */
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
	if (!power_of_two(p->segment, 2 * SKV_LINE_ROWS, SKV_MAX_TOKENS))
		return "prefill: segments are a power of two, at least 128";
	return p->vertical >= SKV_LINES_FORCED && p->slash >= SKV_LINES_FORCED && p->vertical <= SKV_MAX_TOKENS &&
	       p->slash <= SKV_MAX_TOKENS ? NULL : "prefill: vertical and slash are at least 30, and no more than a sequence has";
}

/* What is wrong with how the layer's prompts attend? */
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

/* What is wrong with the evidence that the plan asks for? */
static const char *check_evidence(const struct skv_plan *p, bool itself)
{
	if (p->evidence & ~(uint32_t)(SKV_EV_TOKENS | SKV_EV_PAGES | SKV_EV_BOUNDS))
		return "evidence has unknown bits";
	if (itself && p->evidence != SKV_EV_TOKENS)
		return "a layer that chooses its own tokens has them as its evidence, and no other";
	if (p->evidence & SKV_EV_BOUNDS)
		return p->evidence == SKV_EV_BOUNDS ? NULL : "bounds are a layer's only evidence";
	if (p->pool == SKV_POOL_MEAN_Q)
		return "pool is the mean of q, which is for scores by bounds";
	if (p->evidence && p->attend != SKV_ATTEND_DENSE && !itself)
		return "evidence comes from dense layers, and from those that attend to tokens of their own choice";
	return NULL;
}

/* What is wrong with the plan of `layer`, given those of the layers before it? */
static const char *check_plan(const struct skv_plan *plans, uint32_t layer, const struct skv_model *m)
{
	const struct skv_plan *p = &plans[layer];
	uint32_t needs = p->attend == SKV_ATTEND_PAGES ? SKV_EV_PAGES | SKV_EV_BOUNDS : SKV_EV_TOKENS;
	bool itself = skv_plan_chooses(p, layer), scores = p->attend == SKV_ATTEND_PAGES && p->evidence;
	const char *wrong = check_evidence(p, itself);

	if (p->attend > SKV_ATTEND_TOKENS)
		return "attend is not one of enum skv_attend_how";
	if (p->pool > SKV_POOL_MEAN_Q)
		return "pool is not one of enum skv_pool";
	if (wrong)
		return wrong;
	if (p->sharing > SKV_SHARE_Q_HEAD)
		return "sharing is not one of enum skv_sharing";
	if (p->pool == SKV_POOL_MEAN_Q && p->sharing == SKV_SHARE_Q_HEAD)
		return "pool is the mean of q, which leaves no row a q head";
	if (p->keep.unit && (wrong = check_keep(p, layer)))
		return wrong;
	if (p->pack.kind && (wrong = check_pack(p, &plans[p->source <= layer ? p->source : layer])))
		return wrong;
	if ((wrong = check_prefill(plans, layer, m)))
		return wrong;
	if (itself && p->sharing == SKV_SHARE_Q_HEAD)
		return "a layer that chooses its own tokens does so for all heads or kv heads";
	if (p->attend == SKV_ATTEND_WINDOW || p->attend == SKV_ATTEND_DENSE) {
		if (p->mapped)
			return "a map of a layer that attends to no other layer's selection";
		return p->attend == SKV_ATTEND_WINDOW ? skv_window_check(&p->window) : NULL;
	}
	if (p->keep.spread > 0)
		return p->mapped ? "a map of a layer that attends to no other layer's selection" : NULL;
	if (p->source > layer || (p->source == layer && !itself && !scores))
		return "source is not an earlier layer";
	if (!(plans[p->source].evidence & needs))
		return "source leaves no evidence to select by";
	if (p->source < layer && plans[p->source].keep.unit)
		return "source keeps units, which are no other layer's";
	return p->mapped ? check_map(p, &plans[p->source], m) : NULL;
}

int skv_policy_plan(const struct skv_policy *p, const void *config, const struct skv_model *m,
                    struct skv_plan *plans, char *err, size_t err_len)
{
	for (uint32_t layer = 0; layer < m->n_layers; layer++) {
		const char *wrong;

		plans[layer] = (struct skv_plan){.size = sizeof(struct skv_plan)};
		p->plan(config, m, layer, &plans[layer]);
		wrong = check_plan(plans, layer, m);
		if (wrong)
			return skv_refuse(-EBADMSG, err, err_len, "%s: plan of layer %u: %s", p->name, layer, wrong);
	}
	return 0;
}
