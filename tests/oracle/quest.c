/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/quest.c - quest: each layer but the first `dense` ones attends to the pages whose keys have the highest
 * upper bounds,
 *
 *   U(page) = Σ_d max(q_d·kmin_d, q_d·kmax_d), unscaled
 *
 *   paper    per q head: the last page and the best K - 1
 *   eval     per q head: the best max(3, K/16), K counted in tokens (a share is of pages); the last page competes
 *   shared   one set: max over all heads; the last page and the best K - 1
 *   sglang   one set: q averaged over the group, U summed over kv heads; the last four pages and the best K - 4
 */
#include "tests/oracle/oracle.h"

#include <stdlib.h>

/* The mean query of heads [from, to), all of one kv head. */
static void mean_query(const struct oracle_step *s, uint32_t layer, uint32_t from, uint32_t to, double *q)
{
	uint32_t dim = s->model->head_dim;

	for (uint32_t d = 0; d < dim; d++) {
		q[d] = 0;
		for (uint32_t head = from; head < to; head++)
			q[d] += s->q[layer][((size_t)(s->n - 1) * s->model->n_heads + head) * dim + d] / (to - from);
	}
}

/* page[pages]: U for heads [from, to): the largest of any head, or reduced as SGLang does. */
static void bounds(const struct oracle_step *s, uint32_t layer, uint32_t from, uint32_t to, bool sglang,
                   struct oracle_score *page)
{
	uint32_t group = s->model->n_heads / s->model->n_kv_heads, together = sglang ? group : 1;
	double q[SKV_MAX_HEAD_DIM];

	for (uint32_t head = from; head < to; head += together) {
		mean_query(s, layer, head, head + together, q);
		for (uint32_t u = 0; u < oracle_units(ORACLE_PAGES, s->n); u++) {
			struct oracle_score x = oracle_bound(s, layer, head / group, q, u);

			page[u] = head == from ? x : sglang ? oracle_add(page[u], x) : oracle_more(page[u], x);
		}
	}
}

static void choose(const struct oracle_step *s, const char *spec, uint32_t layer, struct oracle_set *set)
{
	bool eval = oracle_is(spec, "variant", "eval"), sglang = oracle_is(spec, "variant", "sglang");
	bool apart = eval || oracle_is(spec, "variant", "paper");
	uint32_t pages = oracle_units(ORACLE_PAGES, s->n), rows = apart ? s->model->n_heads : 1;
	uint32_t k = oracle_budget(spec, pages, eval ? 3 : 8), recent = sglang ? 4 : !eval;
	uint32_t heads = s->model->n_heads / rows;
	struct oracle_score *page = calloc(pages, sizeof(*page));

	if (eval && oracle_number(spec, "budget") >= 1) {
		k = (uint32_t)oracle_number(spec, "budget") / ORACLE_PAGE;
		k = k > 3 ? k : 3;
	}
	oracle_set_new(s, set, ORACLE_PAGES, rows);
	recent = recent < k ? recent : k;
	for (uint32_t row = 0; row < rows; row++) {
		bounds(s, layer, row * heads, (row + 1) * heads, sglang, page);
		oracle_take(s, layer, set, row, pages - (recent < pages ? recent : pages), pages);
		oracle_best(s, layer, set, row, 0, pages, page, k - recent);
	}
	free(page);
}

static void attend(const struct oracle_step *s, const char *spec, struct oracle_set *set)
{
	struct oracle_step exact = *s;

	exact.ties_hold = true; /* for equal bounds, whatever a backend does to weights */
	for (uint32_t layer = 0; layer < s->model->n_layers; layer++)
		if (layer < oracle_number(spec, "dense"))
			oracle_dense(s, layer, &set[layer]);
		else
			choose(&exact, spec, layer, &set[layer]);
}

const struct oracle_policy oracle_quest = {.name = "quest", .attend = attend};
