/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/raas.c - raas: a page of a kv head is stamped with the sequence's length when the page begins, and
 * whenever its weight is above alpha:
 *
 *   w(page)  softmax of U(page) / sqrt(head_dim) over the pages in memory, averaged over the group; U as in Quest
 *
 * When a page is full and the next one would exceed the budget, the page with the oldest stamp is evicted, the oldest
 * page of equals, but never a page of the prompt.
 *
 *   :unscaled  U is not divided
 *   :ratio     the best half of the pages by w are stamped, regardless of alpha
 *   :quest     the best pages of the prompt are attended to, half of the budget or as many as there are; the rest of
 *              the budget is for pages of the decode
 */
#include "tests/oracle/oracle.h"

#include <math.h>
#include <stdlib.h>

#define SUM_SLACK 1e-6

/* Adds weight[pages] of one q head for the pages in memory, including the newest one. */
static void add_weights(const struct oracle_step *s, const char *spec, uint32_t layer, uint32_t head, uint32_t pages,
                        struct oracle_score *weight)
{
	const struct skv_model *m = s->model;
	uint32_t group = m->n_heads / m->n_kv_heads;
	const struct oracle_head *h = oracle_head(s, layer, head / group);
	double scale = oracle_is(spec, "variant", "unscaled") ? 1 : m->scale > 0 ? m->scale : 1 / sqrt(m->head_dim);
	double q[SKV_MAX_HEAD_DIM], max = -INFINITY, sum = 0, most = 0;
	struct oracle_score *u = calloc(pages, sizeof(*u));

	for (uint32_t d = 0; d < m->head_dim; d++)
		q[d] = s->q[layer][((size_t)(s->n - 1) * m->n_heads + head) * m->head_dim + d];
	for (uint32_t p = 0; p < pages; p++) {
		if (h->lives[p] != ORACLE_IN)
			continue;
		u[p] = oracle_bound(s, layer, head / group, q, p);
		max = fmax(max, scale * u[p].is);
		most = fmax(most, scale * (u[p].hi - u[p].is));
	}
	for (uint32_t p = 0; p < pages; p++)
		sum += h->lives[p] == ORACLE_IN ? exp(scale * u[p].is - max) : 0;
	for (uint32_t p = 0; p < pages; p++)
		if (h->lives[p] == ORACLE_IN) {
			double w = exp(scale * u[p].is - max) / sum / group;
			double off = w * (expm1(scale * (u[p].hi - u[p].is) + most) + SUM_SLACK) + 1e-37;

			weight[p].lo += w - off;
			weight[p].is += w;
			weight[p].hi += w + off;
		}
	free(u);
}

static void weights(const struct oracle_step *s, const char *spec, uint32_t layer, uint32_t kv, uint32_t pages,
                    struct oracle_score *weight)
{
	uint32_t group = s->model->n_heads / s->model->n_kv_heads;

	for (uint32_t head = kv * group; head < (kv + 1) * group; head++)
		add_weights(s, spec, layer, head, pages, weight);
}

/* Which of the pages [0, end) in memory are among the best k by weight: class[end]. */
static void best(const struct oracle_head *h, const struct oracle_score *weight, uint32_t end, uint32_t k,
                 uint8_t *class)
{
	struct oracle_step ties = {.ties_hold = true}; /* for equal bounds, whatever a backend does to weights */
	bool *candidate = calloc(end + 1, sizeof(*candidate));
	uint32_t *sure = calloc(end + 1, sizeof(*sure)), *may = calloc(end + 1, sizeof(*may));

	for (uint32_t p = 0; p < end; p++)
		candidate[p] = h->lives[p] == ORACLE_IN;
	oracle_ranks(&ties, weight, candidate, end, sure, may);
	for (uint32_t p = 0; p < end; p++)
		class[p] = !candidate[p] ? ORACLE_OUT : may[p] < k ? ORACLE_IN : sure[p] < k ? ORACLE_MAY : ORACLE_OUT;
	free(candidate);
	free(sure);
	free(may);
}

static uint32_t pages_of(uint32_t n)
{
	return (n + ORACLE_PAGE - 1) / ORACLE_PAGE;
}

/* Pages that a step of n tokens attends to, and how many of these may be of the prompt: with :quest half, else all. */
static uint32_t most_of(const struct oracle_step *s, const char *spec, uint32_t n, uint32_t *ret_pinned)
{
	double budget = oracle_number(spec, "budget");
	uint32_t pages = pages_of(n), pinned = pages_of(s->kept->prompt);
	uint32_t half = budget < 1 ? (uint32_t)fmax(ceil(budget / 2 * pages - 1e-6), 4) : (uint32_t)budget / 2;

	*ret_pinned = oracle_is(spec, "variant", "quest") && half < pinned ? half : pinned;
	return oracle_budget(spec, pages, 8);
}

/* ---- a step ---------------------------------------------------------------------------------------- */

/* Attends only to the best pages of the prompt; the page that is being filled is attended to in any case. */
static void leave_out(const struct oracle_step *s, const char *spec, uint32_t layer, uint32_t kv,
                      struct oracle_set *set)
{
	struct oracle_score *weight = calloc(set->units, sizeof(*weight));
	struct oracle_head *h = oracle_head(s, layer, kv);
	uint8_t was = h->lives[set->units - 1];
	uint32_t pinned, end = pages_of(s->kept->prompt), compete = 0;

	h->lives[set->units - 1] = ORACLE_IN;
	weights(s, spec, layer, kv, set->units, weight);
	most_of(s, spec, s->n, &pinned);
	end -= end == set->units;
	for (uint32_t p = 0; p < end; p++) /* another policy may have evicted some */
		compete += h->lives[p] == ORACLE_IN;
	if (pinned < compete) {
		best(h, weight, end, pinned, set->class + (size_t)kv * set->units);
		set->count[kv] -= compete - pinned;
	}
	h->lives[set->units - 1] = was;
	free(weight);
}

static void attend(const struct oracle_step *s, const char *spec, struct oracle_set *set)
{
	for (uint32_t layer = 0; layer < s->model->n_layers; layer++) {
		if (layer < oracle_number(spec, "dense")) {
			oracle_dense(s, layer, &set[layer]);
			continue;
		}
		oracle_kept_attend(s, layer, ORACLE_PAGES, &set[layer]);
		for (uint32_t kv = 0; kv < s->model->n_kv_heads && oracle_is(spec, "variant", "quest"); kv++)
			leave_out(s, spec, layer, kv, &set[layer]);
	}
}

static void stamp(const struct oracle_step *s, const char *spec, uint32_t layer, uint32_t kv)
{
	uint32_t pages = pages_of(s->n);
	struct oracle_head *h = oracle_head(s, layer, kv);
	struct oracle_score *weight = calloc(pages, sizeof(*weight)), now = {s->n, s->n, s->n};
	double alpha = (float)oracle_number(spec, "alpha");
	uint8_t *class = calloc(pages, sizeof(*class));

	weights(s, spec, layer, kv, pages, weight);
	best(h, weight, pages, (uint32_t)ceil(oracle_number(spec, "ratio") * h->n - 1e-6), class);
	for (uint32_t p = 0; p < pages; p++) {
		if (h->lives[p] != ORACLE_IN)
			continue;
		if (!oracle_is(spec, "variant", "ratio"))
			class[p] = weight[p].lo > alpha ? ORACLE_IN : weight[p].hi > alpha ? ORACLE_MAY : ORACLE_OUT;
		if (class[p] == ORACLE_IN || (p == pages - 1 && s->n % ORACLE_PAGE == 1))
			h->value[p] = now;
		else if (class[p] == ORACLE_MAY) /* equal to no other stamp */
			h->value[p] = (struct oracle_score){h->value[p].lo, s->n - 0.5 - 1e-6 * p, s->n};
	}
	free(weight);
	free(class);
}

static void evict(const struct oracle_step *s, const char *spec)
{
	uint32_t counted, most = most_of(s, spec, s->n + 1, &counted), pinned = pages_of(s->kept->prompt);
	struct oracle_stay stay = {.pinned = pinned, .old_first = true, .ties_hold = true};

	/* the next page counts towards the budget, and at least one more page is retained */
	stay.keep = pinned + (most > counted + 2 ? most - counted - 1 : 1);
	for (uint32_t layer = (uint32_t)oracle_number(spec, "dense"); layer < s->model->n_layers; layer++)
		for (uint32_t kv = 0; kv < s->model->n_kv_heads; kv++) {
			struct oracle_head *h = oracle_head(s, layer, kv);

			stamp(s, spec, layer, kv);
			if (s->n % ORACLE_PAGE == 0)
				oracle_stay(h, pages_of(s->n), h->value, &stay);
		}
}

const struct oracle_policy oracle_raas = {.name = "raas", .attend = attend, .evict = evict, .granularity = ORACLE_PAGE};
