/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/evict/schedule.c - how many tokens or pages a layer retains after a step, from lengths alone.
 *
 * An eviction frees units: a unit is one token, or one page of one kv head. All kv heads of a layer have the same number
 * of units. So the host computes how many units stay and never reads the number back from the device; the kernels
 * choose which units stay. The number follows from the commit's lengths and the plan, so a step that is repeated after
 * the engine died gets the same number.
 */
#include "libclient/evict/schedule.h"

#include <math.h>

static uint32_t units_of(uint32_t unit, uint32_t tokens)
{
	return (tokens + unit - 1) / unit;
}

/*
 * Units that may stay after a decode step at whose end the sequence has n tokens: the budget of the next step, less one
 * for that step's new unit, plus the pinned units that the budget does not count.
 */
static uint64_t stays(const struct skv_evict *k, uint64_t n, uint32_t pinned)
{
	uint32_t units = units_of(k->granularity, (uint32_t)n + 1), counted = pinned;
	uint64_t keep;

	if (k->pinned.count > 0 || k->pinned.share > 0)
		counted = skv_budget_of(k->pinned, units, k->pinned_floor);
	if (counted > pinned)
		counted = pinned;
	keep = (uint64_t)skv_budget_of(k->budget, units, k->floor) - 1 + (pinned - counted);
	return pinned > 0 && keep < pinned + 1u ? pinned + 1u : keep;
}

/* Is an eviction due when a layer has u units and the sequence n tokens? */
static bool full(const struct skv_evict *k, uint64_t n, uint64_t u, uint32_t pinned)
{
	return u >= stays(k, n, pinned) + k->slack;
}

/*
 * Does the query of a decode step add to the accumulated scores, or replace them? With an observation window, a query
 * counts if an eviction follows within `window` steps, and the first query that counts replaces earlier scores.
 */
static enum skv_accumulate accumulates(const struct skv_evict *k, uint32_t n, uint32_t u, bool prompted,
                                       uint32_t pinned)
{
	uint64_t ahead = k->window - 1u;

	if (!k->accumulate)
		return SKV_ACCUMULATE_NONE;
	if (k->window == 0 || prompted)
		return SKV_ACCUMULATE_ADD;
	if (!full(k, n + ahead, u + ahead, pinned))
		return SKV_ACCUMULATE_NONE;
	return full(k, n + ahead - 1, u + ahead - 1, pinned) ? SKV_ACCUMULATE_ADD : SKV_ACCUMULATE_RESET;
}

/*
 * Units that each head retains, where `stay` is the mean over the heads. Each head retains `stay` units; or, if heads
 * share a budget, up to max_head_ratio times the mean of the next step.
 */
static uint32_t retained_of(const struct skv_evict *k, uint32_t stay, uint32_t units)
{
	double most = k->max_head_ratio > 0 ? ceil((double)k->max_head_ratio * (stay + 1.0)) : stay;

	return most < units ? (uint32_t)most : units;
}

void evict_schedule(const struct skv_evict *k, uint32_t about, bool decodes, uint32_t active, struct skv_kseq *ks,
                   struct skv_layer_slots *ret)
{
	bool prompted = about & SKV_ABOUT_PROMPTED, chooses;
	uint32_t u, counted, pinned, stay;

	*ret = (struct skv_layer_slots){.live = ks->len, .slot_end = ks->len, .granularity = k->granularity,
	                                .n_active = ks->len};
	if (!k->granularity)
		return;
	u = units_of(k->granularity, ks->len);
	pinned = k->pin_prompt ? units_of(k->granularity, about & SKV_ABOUT_PROMPT) : 0;
	ks->pinned = pinned;
	ks->n_retained = u;
	if (!decodes)
		return; /* a prompt evicts no token, and makes inactive tokens active */
	if (k->max_head_ratio > 0)
		ret->n_active = active;
	counted = k->max_head_ratio > 0 ? active : u;
	ks->accumulate = accumulates(k, ks->n_tokens, counted, prompted, pinned);
	if (ks->len % k->granularity != 0) /* the last page is not full yet */
		return;
	stay = (uint32_t)stays(k, ks->n_tokens, pinned);
	chooses = full(k, ks->n_tokens, counted, pinned) || (k->at_prompt_end && prompted && counted > stay);
	if (chooses) {
		ks->n_retained = retained_of(k, stay, u);
		ks->n_active = k->max_head_ratio > 0 ? stay : UINT32_MAX;
		ret->live = ks->n_retained * k->granularity;
		ret->n_active = stay * k->granularity;
	}
}
