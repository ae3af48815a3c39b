/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/tidal.c - tidal: a layer after the dense ones, and one further up, choose tokens for each q head by its own
 * scores; the layers after each attend to them.
 */
#include "tests/oracle/oracle.h"

static void choose(const struct oracle_step *s, const char *spec, uint32_t layer, struct oracle_set *set)
{
	oracle_select(s, layer, set, ORACLE_TOKENS, s->model->n_heads, ORACLE_MAX, oracle_budget(spec, s->n, 128), 0, 0);
}

static bool selects(const struct oracle_step *s, const char *spec, uint32_t layer)
{
	(void)s;
	return oracle_layer_in(spec, "layers", layer);
}

static void look(const struct oracle_step *s, const char *spec, struct oracle_set *set)
{
	oracle_followers(s, spec, set, selects, choose);
}

const struct oracle_policy oracle_tidal = {.name = "tidal", .look = look};
