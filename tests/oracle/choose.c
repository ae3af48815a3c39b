/* SPDX-License-Identifier: Apache-2.0 */
/* tests/oracle/choose.c - sets of entries, and the best k of them. */
#include "tests/oracle/oracle.h"

#include <stdlib.h>
#include <string.h>

uint32_t oracle_units(enum oracle_how how, uint32_t n)
{
	return how == ORACLE_DENSE || how == ORACLE_PAGES ? (n + ORACLE_PAGE - 1) / ORACLE_PAGE : n;
}

bool oracle_there(const struct oracle_step *s, uint32_t layer, enum oracle_how how, uint32_t entry)
{
	return !s->hole[layer][how == ORACLE_DENSE || how == ORACLE_PAGES ? entry : entry / ORACLE_PAGE];
}

void oracle_set_new(const struct oracle_step *s, struct oracle_set *set, enum oracle_how how, uint32_t rows)
{
	*set = (struct oracle_set){.how = how, .rows = rows, .units = oracle_units(how, s->n)};
	set->class = calloc((size_t)rows * set->units, sizeof(*set->class));
	set->count = calloc(rows, sizeof(*set->count));
}

void oracle_sets_free(struct oracle_set *set, uint32_t n_layers)
{
	for (uint32_t i = 0; i < n_layers; i++) {
		free(set[i].class);
		free(set[i].count);
	}
}

void oracle_take(const struct oracle_step *s, uint32_t layer, struct oracle_set *set, uint32_t row, uint32_t first,
                 uint32_t end)
{
	uint8_t *class = set->class + (size_t)row * set->units;

	for (uint32_t u = first; u < end && u < set->units; u++)
		if (class[u] == ORACLE_OUT && oracle_there(s, layer, set->how, u)) {
			class[u] = ORACLE_IN;
			set->count[row]++;
		}
}

void oracle_dense(const struct oracle_step *s, uint32_t layer, struct oracle_set *set)
{
	oracle_set_new(s, set, ORACLE_DENSE, 1);
	oracle_take(s, layer, set, 0, 0, set->units);
}

void oracle_attend_all(const struct oracle_step *s, const char *spec, struct oracle_set *set)
{
	(void)spec;
	for (uint32_t layer = 0; layer < s->model->n_layers; layer++)
		oracle_dense(s, layer, &set[layer]);
}

void oracle_reuse(const struct oracle_step *s, uint32_t layer, const struct oracle_set *from, const uint8_t *map,
                  struct oracle_set *set)
{
	oracle_set_new(s, set, from->how, from->rows);
	for (uint32_t row = 0; row < set->rows; row++) {
		uint32_t source = map ? map[row] : row;

		set->count[row] = from->count[source];
		for (uint32_t u = 0; u < set->units; u++)
			set->class[(size_t)row * set->units + u] = from->class[(size_t)source * set->units + u];
		for (uint32_t u = 0; u < set->units; u++) {
			uint8_t *class = &set->class[(size_t)row * set->units + u];

			if (*class == ORACLE_OUT || oracle_there(s, layer, set->how, u))
				continue;
			if (*class == ORACLE_MAY)
				set->count[row] = UINT32_MAX;
			else if (set->count[row] != UINT32_MAX)
				set->count[row]--;
			*class = ORACLE_OUT;
		}
	}
}

/* ---- the best k -------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* How many of sorted x[n] are above the limit, or, with `at`, equal to it. */
static uint32_t above(const double *x, uint32_t n, double limit, bool at)
{
	uint32_t from = 0, to = n;

	while (from < to) {
		uint32_t mid = from + (to - from) / 2;

		if (x[mid] > limit || (at && x[mid] == limit))
			to = mid;
		else
			from = mid + 1;
	}
	return n - from;
}

/*
 * v ranks before u if its score is larger, or equal and v < u. Certainly: all of its range is above that of u. Maybe:
 * part of it is. If ties hold exactly, equal entries with lower indices rank before u.
 */
void oracle_ranks(const struct oracle_step *s, const struct oracle_score *score, const bool *candidate, uint32_t n,
                  uint32_t *ret_sure, uint32_t *ret_may)
{
	double *lo = calloc(n + 1, sizeof(*lo)), *hi = calloc(n + 1, sizeof(*hi)), *is = calloc(n + 1, sizeof(*is));
	uint32_t *before = calloc(n + 1, sizeof(*before)); /* by position in is[]: equal entries so far */
	uint32_t m = 0;

	for (uint32_t u = 0; u < n; u++) {
		if (!candidate[u])
			continue;
		lo[m] = score[u].lo;
		is[m] = score[u].is;
		hi[m++] = score[u].hi;
	}
	qsort(lo, m, sizeof(*lo), ascending);
	qsort(is, m, sizeof(*is), ascending);
	qsort(hi, m, sizeof(*hi), ascending);
	for (uint32_t u = 0; u < n; u++) {
		uint32_t larger, equals, earlier;

		if (!candidate[u])
			continue;
		larger = above(is, m, score[u].is, false);
		equals = above(is, m, score[u].is, true) - larger;
		earlier = before[m - larger - 1]++;
		/* the equal entries, including itself, are within its range: none is certain, all are possible */
		ret_sure[u] = above(lo, m, score[u].hi, false) + (s->ties_hold ? earlier : 0);
		ret_may[u] = above(hi, m, score[u].lo, true) - (s->ties_hold ? equals - earlier : 1);
	}
	free(lo);
	free(is);
	free(hi);
	free(before);
}

void oracle_best(const struct oracle_step *s, uint32_t layer, struct oracle_set *set, uint32_t row, uint32_t first,
                 uint32_t end, const struct oracle_score *score, uint32_t k)
{
	uint8_t *class = set->class + (size_t)row * set->units;
	bool *candidate = calloc(set->units + 1, sizeof(*candidate));
	uint32_t *sure = calloc(set->units + 1, sizeof(*sure)), *may = calloc(set->units + 1, sizeof(*may));
	uint32_t there = 0;

	for (uint32_t u = first; u < end && u < set->units; u++) {
		candidate[u] = class[u] == ORACLE_OUT && oracle_there(s, layer, set->how, u);
		there += candidate[u];
	}
	oracle_ranks(s, score, candidate, set->units, sure, may);
	for (uint32_t u = first; u < end && u < set->units; u++)
		if (candidate[u])
			class[u] = may[u] < k ? ORACLE_IN : sure[u] < k ? ORACLE_MAY : ORACLE_OUT;
	set->count[row] += k < there ? k : there;
	free(candidate);
	free(sure);
	free(may);
}

void oracle_select(const struct oracle_step *s, uint32_t layer, struct oracle_set *set, enum oracle_how how,
                   uint32_t rows, enum oracle_reduce pool, uint32_t bits, uint32_t k, uint32_t recent, uint32_t pin)
{
	struct oracle_step exact = *s;
	struct oracle_score *token = calloc(s->n, sizeof(*token)), *page = calloc(s->n, sizeof(*page));
	uint32_t heads = s->model->n_heads / rows;

	exact.ties_hold |= bits > 0; /* equal keys have equal sketches, and sums of integers are exact */
	s = &exact;
	oracle_set_new(s, set, how, rows);
	recent = recent < k ? recent : k;
	for (uint32_t row = 0; row < rows; row++) {
		if (bits)
			oracle_sketched(s, layer, bits, row * heads, (row + 1) * heads, pool, token);
		else
			oracle_reduced(s, layer, row * heads, (row + 1) * heads, pool, token);
		for (uint32_t t = 0; t < s->n && s->weight_steps; t++)
			token[t] = oracle_stepped(s, token[t]);
		oracle_pages(token, s->n, page);
		oracle_take(s, layer, set, row, set->units - recent, set->units);
		oracle_take(s, layer, set, row, 0, pin);
		oracle_best(s, layer, set, row, 0, set->units, how == ORACLE_PAGES ? page : token, k - recent);
	}
	free(token);
	free(page);
}

uint32_t oracle_sketch_bits(const char *spec, uint32_t layer)
{
	return oracle_is(spec, "scores", "sketch") && layer >= oracle_number(spec, "dense") ? (uint32_t)oracle_number(spec, "bits") : 0;
}

void oracle_followers(const struct oracle_step *s, const char *spec, struct oracle_set *set,
                      bool (*chooses)(const struct oracle_step *, const char *spec, uint32_t layer),
                      void (*choose)(const struct oracle_step *, const char *spec, uint32_t layer,
                                     struct oracle_set *))
{
	struct oracle_set chosen = {0};

	for (uint32_t layer = 0; layer < s->model->n_layers; layer++) {
		if (chooses(s, spec, layer)) {
			oracle_sets_free(&chosen, 1);
			choose(s, spec, layer, &chosen);
			if (oracle_sketch_bits(spec, layer))
				oracle_reuse(s, layer, &chosen, NULL, &set[layer]);
			else
				oracle_dense(s, layer, &set[layer]);
		} else if (layer >= oracle_number(spec, "dense") && chosen.rows > 0) {
			oracle_reuse(s, layer, &chosen, NULL, &set[layer]);
		} else {
			oracle_dense(s, layer, &set[layer]);
		}
	}
	oracle_sets_free(&chosen, 1);
}
