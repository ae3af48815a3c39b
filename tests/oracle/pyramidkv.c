/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/pyramidkv.c - pyramidkv: evicts as SnapKV does, but the budget falls linearly from layer to layer, to
 * 1/beta (kvpress) or a sixtieth (sparse-vllm).
 */
#include "tests/oracle/oracle.h"

#include <math.h>

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

static void evict(const struct oracle_step *s, const char *spec)
{
	struct oracle_snap snap = oracle_snap_of(spec);

	for (uint32_t layer = (uint32_t)oracle_number(spec, "dense"); layer < s->model->n_layers; layer++) {
		snap.most = most_of(s, spec, layer, s->n + 1);
		oracle_snap(s, layer, &snap);
	}
}

const struct oracle_policy oracle_pyramidkv = {.name = "pyramidkv", .attend = oracle_kept_tokens, .evict = evict,
                                               .granularity = 1, .prompt = oracle_snap_prompt};
