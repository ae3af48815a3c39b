/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/delta.c - delta: Δ-layers run dense and select pages, the layers after each attend to them.
 *
 *   s_t = max over all q heads of α(t);  S_u = Σ s_t of the page;  the last L pages and the best K - L of the rest,
 *   one set for all heads. `pin` first pages are kept on top of K.
 */
#include "tests/oracle/oracle.h"

#include <stdlib.h>

/* `auto`: three, evenly spaced from the first that is not dense. */
static bool is_delta(const struct oracle_step *s, const char *spec, uint32_t layer)
{
	uint32_t dense = (uint32_t)oracle_number(spec, "dense"), layers = s->model->n_layers;

	if (!oracle_is(spec, "layers", "auto"))
		return oracle_layer_in(spec, "layers", layer);
	for (uint32_t i = 0; i < 3 && dense < layers; i++)
		if (layer == dense + (i * (layers - dense) + 2) / 3)
			return true;
	return false;
}

static void choose(const struct oracle_step *s, const char *spec, uint32_t layer, struct oracle_set *set)
{
	struct oracle_score *token = calloc(s->n, sizeof(*token)), *page = calloc(s->n, sizeof(*page));
	uint32_t pages = oracle_units(ORACLE_PAGES, s->n), k = oracle_budget(spec, pages, 8);
	uint32_t l = (uint32_t)oracle_number(spec, "recent"), pin = (uint32_t)oracle_number(spec, "pin");

	if (l == 0) {
		uint32_t least = oracle_number(spec, "budget") < 1 ? 2 : 1;

		l = k / 8 > least ? k / 8 : least;
	}
	l = l < k ? l : k;
	oracle_pooled(s, layer, 0, s->model->n_heads, ORACLE_MAX, token);
	oracle_pages(token, s->n, page);
	oracle_set_new(s, set, ORACLE_PAGES, 1);
	oracle_take(s, layer, set, 0, pages - l, pages);
	oracle_take(s, layer, set, 0, 0, pin);
	oracle_best(s, layer, set, 0, 0, pages, page, k - l);
	free(token);
	free(page);
}

static void look(const struct oracle_step *s, const char *spec, struct oracle_set *set)
{
	struct oracle_set chosen = {0};

	for (uint32_t layer = 0; layer < s->model->n_layers; layer++) {
		if (is_delta(s, spec, layer)) {
			oracle_dense(s, layer, &set[layer]);
			oracle_sets_free(&chosen, 1);
			choose(s, spec, layer, &chosen);
		} else if (layer >= oracle_number(spec, "dense") && chosen.rows > 0) {
			oracle_reuse(s, layer, &chosen, NULL, &set[layer]);
		} else {
			oracle_dense(s, layer, &set[layer]);
		}
	}
	oracle_sets_free(&chosen, 1);
}

const struct oracle_policy oracle_delta = {.name = "delta", .look = look};
