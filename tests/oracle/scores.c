/* SPDX-License-Identifier: Apache-2.0 */
/* tests/oracle/scores.c - q·k, softmax weights, scores computed from them, and the possible error of a kernel's. */
#include "tests/oracle/oracle.h"

#include <math.h>
#include <stdlib.h>

#define SUM_SLACK 1e-6  /* of a sum of up to some hundred weights in fp32 */
#define ADD_SLACK 0x1p-22 /* of a sum, for each number that is added */
#define LEAST 1e-37     /* fp32 has few digits below it, or none */

static struct oracle_score about(double is, double slack)
{
	return (struct oracle_score){.lo = is - slack, .is = is, .hi = is + slack};
}

static bool there(const struct oracle_step *s, uint32_t layer, uint32_t t)
{
	return s->there ? s->there[t] : !s->hole[layer][t / ORACLE_PAGE];
}

void oracle_logits(const struct oracle_step *s, uint32_t layer, uint32_t head, struct oracle_score *score)
{
	const struct skv_model *m = s->model;
	const float *q = s->q[layer] + ((size_t)(s->n - 1) * m->n_heads + head) * m->head_dim;
	uint32_t kv = head / (m->n_heads / m->n_kv_heads);

	for (uint32_t t = 0; t < s->n; t++) {
		const float *k = s->k[layer] + ((size_t)t * m->n_kv_heads + kv) * m->head_dim;
		double sum = 0, size = 0;

		if (!there(s, layer, t))
			continue;
		for (uint32_t d = 0; d < m->head_dim; d++) {
			sum += (double)q[d] * k[d];
			size += fabs((double)q[d] * k[d]);
		}
		score[t] = about(sum, size * s->logit_slack);
	}
}

/*
 * α_t = exp(x_t) / Σ exp(x). If a kernel's x_t is off by up to δ_t, and its sum by a factor of up to exp(Δ), its α is
 * off by a factor of up to exp(δ_t + Δ).
 */
void oracle_weights(const struct oracle_step *s, uint32_t layer, uint32_t head, struct oracle_score *score)
{
	double scale = s->model->scale > 0 ? s->model->scale : 1 / sqrt(s->model->head_dim);
	double max = -INFINITY, sum = 0, most = 0;

	oracle_logits(s, layer, head, score);
	for (uint32_t t = 0; t < s->n; t++) {
		if (!there(s, layer, t))
			continue;
		max = fmax(max, scale * score[t].is);
		most = fmax(most, scale * (score[t].hi - score[t].is));
	}
	for (uint32_t t = 0; t < s->n; t++)
		if (there(s, layer, t))
			sum += exp(scale * score[t].is - max);
	for (uint32_t t = 0; t < s->n; t++) {
		double weight, off;

		if (!there(s, layer, t))
			continue;
		weight = exp(scale * score[t].is - max) / sum;
		off = scale * (score[t].hi - score[t].is) + s->kept_slack * (max - scale * score[t].is);
		off = expm1(off + most) + SUM_SLACK;
		score[t] = about(weight, weight * off + LEAST);
	}
}

struct oracle_score oracle_more(struct oracle_score a, struct oracle_score b)
{
	return (struct oracle_score){.lo = fmax(a.lo, b.lo), .is = fmax(a.is, b.is), .hi = fmax(a.hi, b.hi)};
}

struct oracle_score oracle_add(struct oracle_score a, struct oracle_score b)
{
	double slack = SUM_SLACK * fabs(b.is);

	return (struct oracle_score){.lo = a.lo + b.lo - slack, .is = a.is + b.is, .hi = a.hi + b.hi + slack};
}

struct oracle_score oracle_sum(struct oracle_score a, struct oracle_score b)
{
	double slack = ADD_SLACK * fabs(a.is + b.is);

	return (struct oracle_score){.lo = a.lo + b.lo - slack, .is = a.is + b.is, .hi = a.hi + b.hi + slack};
}

void oracle_reduced(const struct oracle_step *s, uint32_t layer, uint32_t from, uint32_t to, enum oracle_reduce pool,
                   struct oracle_score *score)
{
	struct oracle_score *one = calloc(s->n, sizeof(*one));

	oracle_weights(s, layer, from, score);
	for (uint32_t head = from + 1; head < to; head++) {
		oracle_weights(s, layer, head, one);
		for (uint32_t t = 0; t < s->n; t++)
			score[t] = pool == ORACLE_MAX ? oracle_more(score[t], one[t]) : oracle_add(score[t], one[t]);
	}
	free(one);
}

struct oracle_score oracle_stepped(const struct oracle_step *s, struct oracle_score x)
{
	const double slack = 0.0008, least = 0x1p-30 / s->n, most = 0x1p32 / s->n;

	x.lo *= 1 - slack;
	x.hi *= 1 + slack;
	if (x.lo < least)
		x = (struct oracle_score){0, x.is, fmax(x.hi, least)};
	if (x.hi > most)
		x = (struct oracle_score){fmin(x.lo, most), x.is, INFINITY};
	return x;
}

/* Page bounds of fp8 are rows of fp8, too: elements that are small for such a row are rounded up. */
static void round_up(const struct skv_model *m, double *row)
{
	double most = 0, unit = 0x1p-126;

	for (uint32_t d = 0; d < m->head_dim; d++)
		most = fmax(most, fabs(row[d]));
	while (most > 448 * unit)
		unit *= 2;
	for (uint32_t d = 0; d < m->head_dim; d++)
		if (m->kv_dtype == SKV_FP8 && fabs(row[d]) < unit * 0x1p-6)
			row[d] = ceil(row[d] / unit * 512) / 512 * unit;
}

struct oracle_score oracle_bound(const struct oracle_step *s, uint32_t layer, uint32_t kv, const double *q,
                                 uint32_t page)
{
	const struct skv_model *m = s->model;
	double sum = 0, size = 0, least[SKV_MAX_HEAD_DIM], most[SKV_MAX_HEAD_DIM]; /* least: times -1 */

	for (uint32_t d = 0; d < m->head_dim; d++) {
		least[d] = most[d] = -INFINITY;
		for (uint32_t t = page * ORACLE_PAGE; t < s->n && t < (page + 1) * ORACLE_PAGE; t++) {
			double k = s->k[layer][((size_t)t * m->n_kv_heads + kv) * m->head_dim + d];

			least[d] = fmax(least[d], -k);
			most[d] = fmax(most[d], k);
		}
	}
	round_up(m, least);
	round_up(m, most);
	for (uint32_t d = 0; d < m->head_dim; d++) {
		sum += fmax(-q[d] * least[d], q[d] * most[d]);
		size += fmax(fabs(q[d] * least[d]), fabs(q[d] * most[d]));
	}
	return (struct oracle_score){.lo = sum - size * s->logit_slack, .is = sum, .hi = sum + size * s->logit_slack};
}

/*
 * As in a kernel, the sum depends slightly on the order of its numbers: pages of the same weights in another order must
 * not count as equal.
 */
void oracle_pages(const struct oracle_score *token, uint32_t n, struct oracle_score *page)
{
	for (uint32_t t = 0; t < n; t++) {
		struct oracle_score x = token[t];

		x.is *= 1 + 1e-13 * (t % ORACLE_PAGE);
		page[t / ORACLE_PAGE] = t % ORACLE_PAGE ? oracle_add(page[t / ORACLE_PAGE], x) : x;
	}
}
