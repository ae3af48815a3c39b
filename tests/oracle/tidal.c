/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/tidal.c - tidal: the first layer after the dense ones, and one further up, select tokens for each q head
 * by its own scores; the layers after each attend to these.
 */
#include "tests/oracle/oracle.h"

static void choose(const struct oracle_step *s, const char *spec, uint32_t layer, struct oracle_set *set)
{
	uint32_t k = oracle_budget(spec, s->n, 128);

	oracle_select(s, layer, set, ORACLE_TOKENS, s->model->n_heads, ORACLE_MAX, 0, k, 0, 0);
}

bool oracle_chooses_twice(const struct oracle_step *s, const char *spec, uint32_t layer)
{
	uint32_t dense = (uint32_t)oracle_number(spec, "dense"), layers = s->model->n_layers;

	if (oracle_is(spec, "layers", "auto"))
		return layer == dense || (layer > dense && layer == layers * 13 / 32);
	return oracle_layer_in(spec, "layers", layer);
}

static void attend(const struct oracle_step *s, const char *spec, struct oracle_set *set)
{
	oracle_followers(s, spec, set, oracle_chooses_twice, choose);
}

const struct oracle_policy oracle_tidal = {.name = "tidal", .attend = attend};
