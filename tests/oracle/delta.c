/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/delta.c - delta: Δ-layers run dense and select pages; the layers after each attend to these.
 *
 *   s_t = max over all q heads of α(t);  S_u = Σ s_t of the page;  the last L pages and the best K - L of the rest,
 *   one set for all heads. The first `pin` pages are attended to on top of K.
 *
 * With scores=sketch α is that of the keys' sketches, and a Δ-layer attends to its selection.
 */
#include "tests/oracle/oracle.h"

/* `auto`: guessed, from the first layer that is not dense. */
static bool is_delta(const struct oracle_step *s, const char *spec, uint32_t layer)
{
	if (oracle_is(spec, "layers", "auto"))
		return oracle_guessed(s->model, (uint32_t)oracle_number(spec, "dense"), layer);
	return oracle_layer_in(spec, "layers", layer);
}

static void choose(const struct oracle_step *s, const char *spec, uint32_t layer, struct oracle_set *set)
{
	uint32_t k = oracle_budget(spec, oracle_units(ORACLE_PAGES, s->n), 8);
	uint32_t l = (uint32_t)oracle_number(spec, "recent"), least = oracle_number(spec, "budget") < 1 ? 2 : 1;

	if (l == 0)
		l = k / 8 > least ? k / 8 : least;
	oracle_select(s, layer, set, ORACLE_PAGES, 1, ORACLE_MAX, oracle_sketch_bits(spec, layer), k, l, (uint32_t)oracle_number(spec, "pin"));
}

static void attend(const struct oracle_step *s, const char *spec, struct oracle_set *set)
{
	oracle_followers(s, spec, set, is_delta, choose);
}

const struct oracle_policy oracle_delta = {.name = "delta", .attend = attend};
