/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/snapkv.c - snapkv and policies with its rule: the tokens with the best scores by the last `window`
 * queries are retained with their neighbours, and so are the tokens of these queries. Evicts at the end of a prompt,
 * and whenever `interval` tokens have come on top of the budget.
 *
 *   snapkv      every layer has the budget
 *   pyramidkv   the budget falls linearly from layer to layer, to 1/beta (kvpress) or a sixtieth (sparse-vllm)
 *   rkv         attention scores count with weight lambda; the rest is how dissimilar a key is from all others
 */
#include "tests/oracle/oracle.h"

#include <math.h>

static struct oracle_snap snap_of(const char *spec)
{
	uint32_t again = (uint32_t)oracle_number(spec, "interval");

	return (struct oracle_snap){
	        .window = (uint32_t)oracle_number(spec, "window"),
	        .again = again ? again : SKV_MAX_TOKENS,
	        .pool = (uint32_t)oracle_number(spec, "pool"),
	        .lambda = oracle_number(spec, "lambda"),
	};
}

/* Which queries count: the last ones of a window; those of a shorter chunk of a prompt count with earlier ones. */
static void prompt(const struct oracle_step *s, const char *spec, uint32_t rows)
{
	oracle_snap_prompt(s, (uint32_t)oracle_number(spec, "window"), rows);
}

static void evict(const struct oracle_step *s, const char *spec)
{
	struct oracle_snap snap = snap_of(spec);

	snap.most = oracle_budget(spec, s->n + 1, 128);
	for (uint32_t layer = (uint32_t)oracle_number(spec, "dense"); layer < s->model->n_layers; layer++)
		oracle_snap(s, layer, &snap);
}

const struct oracle_policy oracle_snapkv = {
        .name = "snapkv", .attend = oracle_kept_tokens, .evict = evict, .granularity = 1, .prompt = prompt};

const struct oracle_policy oracle_rkv = {
        .name = "rkv", .attend = oracle_kept_tokens, .evict = evict, .granularity = 1, .prompt = prompt};

/* ---- pyramidkv -------------------------------------------------------------------------------------- */

/* The layer's part of the budget. In float, as shares are: the last digit may decide about a token. */
static float part_of(const struct skv_model *m, const char *spec, uint32_t layer)
{
	bool mean = oracle_is(spec, "variant", "kvpress");
	float beta = (float)oracle_number(spec, "beta"), first = mean ? 2 - 1 / beta : 1;
	float last = mean ? 1 / beta : 1 / 60.0f;
	uint32_t dense = (uint32_t)oracle_number(spec, "dense"), steps = m->n_layers - dense - 1;

	return steps ? first + (last - first) * (float)(layer - dense) / (float)steps : (first + last) / 2;
}

/*
 * A part of the budget. If the budget is a count, the part is taken of the tokens beyond window + 1; so is the minimum
 * of a share.
 */
static uint32_t most_of(const struct oracle_step *s, const char *spec, uint32_t layer, uint32_t n)
{
	float budget = (float)oracle_number(spec, "budget"), part = part_of(s->model, spec, layer);
	uint32_t window = (uint32_t)oracle_number(spec, "window");
	uint32_t count = window + 1 + (uint32_t)(((budget < 1 ? 128 : budget) - (float)(window + 1)) * part);
	double most = (double)(budget * part) * n;

	if (budget >= 1)
		most = count;
	else
		most = budget * part < 1 ? fmax(ceil(most - 1e-4), count) : n;
	return most < n ? (uint32_t)most : n;
}

static void evict_pyramid(const struct oracle_step *s, const char *spec)
{
	struct oracle_snap snap = snap_of(spec);

	for (uint32_t layer = (uint32_t)oracle_number(spec, "dense"); layer < s->model->n_layers; layer++) {
		snap.most = most_of(s, spec, layer, s->n + 1);
		oracle_snap(s, layer, &snap);
	}
}

const struct oracle_policy oracle_pyramidkv = {
        .name = "pyramidkv", .attend = oracle_kept_tokens, .evict = evict_pyramid, .granularity = 1, .prompt = prompt};
