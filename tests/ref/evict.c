/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/ref/evict.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool ref_alloc(const struct ref_unit *was, uint32_t extent, struct ref_unit *now, uint32_t units, uint32_t new_pos,
               uint32_t *from)
{
	uint32_t *source = malloc((extent + 1) * sizeof *source), n = 0, used = 0;
	bool fits;

	for (uint32_t u = units; u < extent; u++)
		if (was[u].alive)
			source[n++] = u;
	if (new_pos != REF_NONE)
		source[n++] = REF_NONE; /* the new unit is the last one that needs a free slot */
	for (uint32_t u = 0; u < units; u++) {
		bool taken = u < extent && was[u].alive;
		from[u] = taken || used == n ? u : source[used];
		used += !taken;
		if (from[u] == REF_NONE)
			now[u] = (struct ref_unit){.alive = true, .pos = new_pos};
		else
			now[u] = from[u] < extent ? was[from[u]] : (struct ref_unit){0};
	}
	fits = used == n;
	free(source);
	return fits;
}

uint32_t ref_latest(const struct ref_unit *unit, uint32_t n)
{
	uint32_t at = 0;
	for (uint32_t u = 1; u < n; u++)
		if (unit[u].pos > unit[at].pos)
			at = u;
	return at;
}

/* ---- choices --------------------------------------------------------------------------------- */

/* What is sorted: the first entries stay. */
struct entry {
	int group; /* lower first */
	double rank; /* higher first */
	uint32_t pos;
	bool old_first; /* ties go to the higher pos, else to the lower one */
	uint32_t u;
};

static int by_merit(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;
	if (x->group != y->group)
		return x->group < y->group ? -1 : 1;
	if (x->rank != y->rank)
		return x->rank > y->rank ? -1 : 1;
	if (x->pos == y->pos)
		return 0;
	return (x->pos < y->pos) != x->old_first ? -1 : 1;
}

static double plain(double rank)
{
	return isnan(rank) ? -INFINITY : rank;
}

void ref_evict(struct ref_unit *unit, uint32_t n, const struct ref_evict *k, const double *rank)
{
	struct entry *e = calloc(n ? n : 1, sizeof *e);

	if (k->n_retained >= n) {
		free(e);
		return;
	}
	for (uint32_t u = 0; u < n; u++) { /* by age: all have the same group and rank */
		e[u] = (struct entry){.pos = unit[u].pos, .old_first = true, .u = u};
	}
	qsort(e, n, sizeof *e, by_merit);
	for (uint32_t x = 0; x < n; x++) {
		e[x].group = x < k->recent ? 0 : e[x].pos < k->pinned ? 1 : 2;
		e[x].rank = plain(rank ? rank[e[x].u] : unit[e[x].u].value);
		e[x].old_first = k->old_first;
	}
	qsort(e, n, sizeof *e, by_merit);
	for (uint32_t x = 0; x < n; x++) {
		unit[e[x].u].alive = x < k->n_retained;
		if (x < k->n_retained && k->forget)
			unit[e[x].u].value = 0;
	}
	free(e);
}

/* Activates the first `want` candidates of e[n] that are not active yet, by pos if `latest`, else by rank. */
static void activate(struct entry *e, uint32_t n, uint32_t want, bool latest, bool *active)
{
	struct entry *some = calloc(n + 1, sizeof *some);
	uint32_t m = 0;

	for (uint32_t x = 0; x < n; x++)
		if (!active[e[x].u]) {
			some[m] = e[x];
			some[m].rank = latest ? e[x].pos : e[x].rank;
			m++;
		}
	qsort(some, m, sizeof *some, by_merit);
	for (uint32_t x = 0; x < m && x < want; x++)
		active[some[x].u] = true;
	free(some);
}

static uint32_t count(const bool *active, uint32_t from, uint32_t end)
{
	uint32_t n = 0;

	for (uint32_t u = from; u < end; u++)
		n += active[u];
	return n;
}

void ref_head_budgets(struct ref_unit *const *unit, uint32_t heads, uint32_t n, const struct ref_head_budgets *a,
               const double *const *rank)
{
	struct entry *e = calloc((size_t)heads * n + 1, sizeof *e);
	bool *active = calloc((size_t)heads * n + 1, sizeof *active);
	uint32_t m = 0;

	for (uint32_t h = 0; h < heads; h++) {
		const uint32_t first = m;
		for (uint32_t u = 0; u < n; u++)
			/* pos and head: ties go to the lower ones */
			if (unit[h][u].alive && !signbit(unit[h][u].value))
				e[m++] = (struct entry){.rank = plain(rank[h][u]), .pos = unit[h][u].pos * heads + h,
				                        .u = h * n + u};
		activate(e + first, m - first, a->recent, true, active);
		activate(e + first, m - first, a->safeguard - count(active, h * n, (h + 1) * n), false, active);
	}
	activate(e, m, heads * a->active - count(active, 0, heads * n), false, active);
	for (uint32_t x = 0; x < m; x++) {
		struct ref_unit *u = &unit[e[x].u / n][e[x].u % n];
		u->value = active[e[x].u] ? u->value : -u->value;
	}
	free(active);
	free(e);
}

void ref_best_entries(const struct ref_unit *unit, uint32_t n, const double *score, const bool *may, uint32_t want,
                      bool *chosen)
{
	struct entry *e = calloc(n ? n : 1, sizeof *e);
	uint32_t m = 0;

	for (uint32_t u = 0; u < n; u++) {
		chosen[u] = false;
		if (may[u])
			e[m++] = (struct entry){.rank = plain(score[u]), .pos = unit[u].pos, .u = u};
	}
	qsort(e, m, sizeof *e, by_merit);
	for (uint32_t x = 0; x < m && x < want; x++)
		chosen[e[x].u] = true;
	free(e);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static double dot(const float *a, const float *b, uint32_t dim)
{
	double sum = 0;
	for (uint32_t d = 0; d < dim; d++)
		sum += (double)a[d] * b[d];
	return sum;
}

/* Compares all pairs. */
static void redundancy(uint32_t n, const float *k, uint32_t stride, uint32_t dim, double *ret)
{
	double *length = calloc(n ? n : 1, sizeof *length), sum = 0;

	for (uint32_t u = 0; u < n; u++)
		length[u] = sqrt(dot(k + (size_t)u * stride, k + (size_t)u * stride, dim));
	for (uint32_t u = 0; u < n; u++) {
		double similar = 0;
		for (uint32_t v = 0; v < n; v++)
			if (length[u] > 0 && length[v] > 0)
				similar += dot(k + (size_t)u * stride, k + (size_t)v * stride, dim) / length[u] / length[v];
		ret[u] = exp(similar / n);
		sum += ret[u];
	}
	for (uint32_t u = 0; u < n; u++)
		ret[u] /= sum;
	free(length);
}

void ref_rank(const struct ref_unit *unit, uint32_t n, uint32_t width, double lambda, const float *k, uint32_t stride,
              uint32_t dim, double *rank)
{
	double *alike = calloc(n ? n : 1, sizeof *alike), sum = 0;
	const uint32_t half = width / 2;

	for (uint32_t u = 0; u < n; u++) {
		rank[u] = 0;
		for (uint32_t v = 0; v < n; v++)
			if (unit[v].pos + half >= unit[u].pos && unit[v].pos <= unit[u].pos + half &&
			    !signbit(unit[v].value))
				rank[u] += unit[v].value;
		rank[u] /= width ? width : 1;
		sum += rank[u];
		if (signbit(unit[u].value))
			rank[u] = -INFINITY;
	}
	if (lambda > 0) {
		redundancy(n, k, stride, dim, alike);
		for (uint32_t u = 0; u < n; u++)
			rank[u] = lambda * (sum > 0 ? rank[u] / sum : 0) - (1 - lambda) * alike[u];
	}
	free(alike);
}

void ref_weights(const float *score, uint32_t rows, uint32_t stride, uint32_t n, double scale, double *weight)
{
	memset(weight, 0, n * sizeof *weight);
	for (uint32_t r = 0; r < rows; r++) {
		const float *x = score + (size_t)r * stride;
		double max = -INFINITY, sum = 0;
		for (uint32_t u = 0; u < n; u++)
			max = fmax(max, x[u]);
		for (uint32_t u = 0; u < n; u++)
			sum += x[u] > -INFINITY ? exp(scale * (x[u] - max)) : 0;
		for (uint32_t u = 0; u < n; u++)
			weight[u] += x[u] > -INFINITY ? exp(scale * (x[u] - max)) / sum / rows : 0;
	}
}
