/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/omnikv.c - omnikv: filter layers run dense and select tokens for the layers up to the next filter, by
 * the largest weight that any head gives them; recent ones are always selected. `more` layers after a filter are dense
 * as well. With scores=sketch the weights are those of the keys' sketches, and filters attend to their selection.
 */
#include "tests/oracle/oracle.h"

static void choose(const struct oracle_step *s, const char *spec, uint32_t layer, struct oracle_set *set)
{
	uint32_t k = oracle_budget(spec, s->n, 128), recent = (uint32_t)oracle_number(spec, "recent");

	if (recent == 0)
		recent = k / 8 > 1 ? k / 8 : 1;
	oracle_select(s, layer, set, ORACLE_TOKENS, 1, ORACLE_MAX, oracle_sketch_bits(spec, layer), k, recent, 0);
}

bool oracle_is_filter(const struct oracle_step *s, const char *spec, uint32_t layer)
{
	if (oracle_is(spec, "layers", "auto"))
		return oracle_guessed(s->model, (uint32_t)oracle_number(spec, "dense"), layer);
	return oracle_layer_in(spec, "layers", layer);
}

void oracle_attend_filters(const struct oracle_step *s, const char *spec, struct oracle_set *set)
{
	uint32_t after = UINT32_MAX; /* layers since the last filter */

	oracle_followers(s, spec, set, oracle_is_filter, choose);
	for (uint32_t layer = 0; layer < s->model->n_layers; layer++) {
		after = oracle_is_filter(s, spec, layer) ? 0 : after == UINT32_MAX ? after : after + 1;
		if (after == 0 || after > oracle_number(spec, "more"))
			continue;
		oracle_sets_free(&set[layer], 1);
		oracle_dense(s, layer, &set[layer]);
	}
}

const struct oracle_policy oracle_omnikv = {.name = "omnikv", .attend = oracle_attend_filters};
