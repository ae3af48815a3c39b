/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/omnikv.c - omnikv: filter layers run dense and choose tokens for the layers up to the next filter, by the
 * largest weight that any head gives them; recent ones are kept. A filter's choice holds after the `after` dense layers
 * that follow it.
 */
#include "tests/oracle/oracle.h"

static void choose(const struct oracle_step *s, const char *spec, uint32_t layer, struct oracle_set *set)
{
	uint32_t k = oracle_budget(spec, s->n, 128), recent = (uint32_t)oracle_number(spec, "recent");

	if (recent == 0)
		recent = k / 8 > 1 ? k / 8 : 1;
	oracle_select(s, layer, set, ORACLE_TOKENS, 1, ORACLE_MAX, k, recent, 0);
}

static bool is_filter(const struct oracle_step *s, const char *spec, uint32_t layer)
{
	(void)s;
	return oracle_layer_in(spec, "layers", layer);
}

static void look(const struct oracle_step *s, const char *spec, struct oracle_set *set)
{
	oracle_followers(s, spec, set, is_filter, choose);
}

const struct oracle_policy oracle_omnikv = {.name = "omnikv", .look = look};
