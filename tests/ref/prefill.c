/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/ref/prefill.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tests/ref/attention.h"

uint32_t ref_begin(const struct ref_rows *r, uint32_t p, uint32_t x)
{
	return p / x * x > r->from ? p / x * x : r->from;
}

static const float *query(const struct ref_rows *r, uint32_t p, uint32_t head)
{
	return r->q + ((size_t)(p - r->from) * r->n_heads + head) * r->dim;
}

static struct ref_softmax softmax_of(const struct ref_rows *r, uint32_t head)
{
	return (struct ref_softmax){.scale = r->scale, .softcap = r->softcap, .sink = r->sinks ? r->sinks + head : NULL};
}

static size_t key_of_head(const struct ref_rows *r, uint32_t head)
{
	return (size_t)(head / (r->n_heads / r->n_kv_heads)) * r->dim;
}

/* ---- outputs --------------------------------------------------------------------------------- */

bool ref_dense(const struct ref_rows *r, const struct ref_correct *c, uint32_t p)
{
	return p >= c->dense || (c->gamma && p == ref_begin(r, p, c->gamma)) ||
	       (c->segment && p < ref_begin(r, p, c->segment) + SKV_MINFERENCE_ROWS);
}

uint32_t ref_tail(uint32_t end, uint32_t gamma, uint32_t tail)
{
	return end % gamma + tail < end ? end - (end % gamma + tail) : 0;
}

double ref_row(const struct ref_rows *r, uint32_t p, uint32_t head, ref_see_fn *see, const void *ctx, double *out,
             double *weight)
{
	const size_t at = key_of_head(r, head);
	bool *visible = calloc(p + 1, sizeof *visible);
	double lse;

	if (see)
		see(ctx, p, head, visible);
	for (uint32_t t = 0; t <= p; t++)
		visible[t] = (visible[t] || !see) && r->there[t];
	lse = ref_attention(query(r, p, head), r->k + at, r->v + at, p + 1, r->n_kv_heads * r->dim, r->dim,
	              softmax_of(r, head), visible, out, weight);
	free(visible);
	return lse;
}

/*
 * The row whose difference row p gets: the last dense row before it, not counting the tail, and of a segment's dense
 * rows only the last one.
 */
static uint32_t correction_row(const struct ref_rows *r, const struct ref_correct *c, uint32_t p)
{
	const uint32_t at = ref_begin(r, p, c->gamma);
	const uint32_t last = c->segment ? ref_begin(r, p, c->segment) + SKV_MINFERENCE_ROWS - 1 : 0;

	return last > at ? last : at;
}

void ref_prompt(const struct ref_rows *r, const struct ref_correct *c, ref_see_fn *see, const void *ctx, double *out,
                double *lse)
{
	double *full = malloc(r->dim * sizeof *full), *sparse = malloc(r->dim * sizeof *sparse);

	for (uint32_t head = 0; head < r->n_heads; head++) {
		uint32_t was = UINT32_MAX; /* the row that full - sparse belongs to */
		for (uint32_t p = r->from; p < r->to; p++) {
			const size_t at = (size_t)(p - r->from) * r->n_heads + head;
			double *to = out + at * r->dim, sum;
			const bool dense = ref_dense(r, c, p);

			sum = ref_row(r, p, head, dense ? NULL : see, ctx, to, NULL);
			if (lse)
				lse[at] = sum;
			if (dense || !c->delta)
				continue;
			if (was != correction_row(r, c, p)) {
				was = correction_row(r, c, p);
				ref_row(r, was, head, NULL, NULL, full, NULL);
				ref_row(r, was, head, see, ctx, sparse, NULL);
			}
			for (uint32_t d = 0; d < r->dim; d++)
				to[d] += full[d] - sparse[d];
		}
	}
	free(full);
	free(sparse);
}

/* ---- choices --------------------------------------------------------------------------------- */

static double score(const struct ref_rows *r, uint32_t p, uint32_t head, uint32_t t)
{
	const float *q = query(r, p, head), *k = r->k + (size_t)t * r->n_kv_heads * r->dim + key_of_head(r, head);
	double dot = 0;

	for (uint32_t d = 0; d < r->dim; d++)
		dot += (double)q[d] * k[d];
	return r->there[t] ? ref_score(softmax_of(r, head), dot) : -INFINITY;
}

/* Softmax weights of row p of a q head over [0, n). */
static void weights(const struct ref_rows *r, uint32_t p, uint32_t head, uint32_t n, double *weight)
{
	double max = -INFINITY, sum = 0;

	for (uint32_t t = 0; t < n; t++) {
		weight[t] = score(r, p, head, t);
		max = fmax(max, weight[t]);
	}
	for (uint32_t t = 0; t < n; t++) {
		weight[t] = weight[t] == -INFINITY ? 0 : exp(weight[t] - max);
		sum += weight[t];
	}
	for (uint32_t t = 0; t < n; t++)
		weight[t] = sum == 0 ? 0 : weight[t] / (sum + ref_sink(softmax_of(r, head), max));
}

void ref_tile_weights(const struct ref_rows *r, uint32_t x, uint32_t h, double *weight)
{
	const uint32_t group = r->n_heads / r->n_kv_heads, p = x > r->from ? x : r->from;
	double *one = malloc((x + 1) * sizeof *one);

	for (uint32_t t = 0; t < x; t++)
		weight[t] = 0;
	for (uint32_t head = h * group; head < (h + 1) * group; head++) {
		weights(r, p, head, x, one);
		for (uint32_t t = 0; t < x; t++)
			weight[t] += one[t];
	}
	free(one);
}

struct ranked {
	double weight;
	uint32_t at;
};

static int by_weight(const void *a, const void *b)
{
	const struct ranked *x = a, *y = b;

	return x->weight != y->weight ? (x->weight < y->weight) - (x->weight > y->weight)
	                              : (x->at > y->at) - (x->at < y->at);
}

void ref_mark_topk(const double *weight, uint32_t n, uint32_t k, uint32_t forced, const bool *there, bool *chosen)
{
	struct ranked *all = malloc((n + 1) * sizeof *all);
	uint32_t m = 0;

	for (uint32_t i = 0; i < n; i++) {
		chosen[i] = false;
		if (!there || there[i])
			all[m++] = (struct ranked){i < forced ? INFINITY : weight[i], i};
	}
	qsort(all, m, sizeof *all, by_weight);
	for (uint32_t i = 0; i < m && i < k; i++)
		chosen[all[i].at] = true;
	free(all);
}

/* The score of the chunk of n tokens from `at` on: that of the token found by halving the chunk. */
static double chunk_score(const struct ref_rows *r, uint32_t p, uint32_t head, uint32_t at, uint32_t n)
{
	if (n == 1)
		return score(r, p, head, at);
	const bool second = score(r, p, head, at + n / 2) > score(r, p, head, at);
	return chunk_score(r, p, head, second ? at + n / 2 : at, n / 2);
}

void ref_stages(const struct ref_rows *r, const struct skv_prefill *plan, uint32_t x, uint32_t head, bool *chosen)
{
	static const uint32_t sizes[SKV_HIP_STAGES] = {64, 32, 8};
	const uint32_t end = x > plan->window ? x - plan->window : 0, p = x > r->from ? x : r->from;
	double *scores = malloc((x + 1) * sizeof *scores);
	bool *some = malloc(x + 1), *best = malloc(x + 1);

	for (uint32_t t = 0; t < x; t++)
		chosen[t] = t >= plan->sinks && t < end;
	for (uint32_t stage = 0; stage < SKV_HIP_STAGES; stage++) {
		const uint32_t size = sizes[stage];
		for (uint32_t c = 0; c < x / size; c++) {
			scores[c] = chosen[c * size] ? chunk_score(r, p, head, c * size, size) : -INFINITY;
			some[c] = scores[c] > -INFINITY;
		}
		ref_mark_topk(scores, x / size, plan->keep[stage] / size, 0, some, best);
		for (uint32_t t = 0; t < x; t++)
			chosen[t] = t / size < x / size && best[t / size];
	}
	free(scores);
	free(some);
	free(best);
}

void ref_lines(const struct ref_rows *r, uint32_t begin, uint32_t head, double *column, double *diagonal)
{
	const uint32_t n = begin + SKV_MINFERENCE_ROWS;
	double *weight = malloc(n * sizeof *weight);

	for (uint32_t t = 0; t < n; t++)
		column[t] = diagonal[t] = 0;
	for (uint32_t p = begin; p < n; p++) {
		weights(r, p, head, p + 1, weight);
		for (uint32_t t = 0; t <= p; t++) {
			column[t] += weight[t];
			diagonal[p - t] += weight[t];
		}
	}
	free(weight);
}

/* ---- a plan ---------------------------------------------------------------------------------- */

/* The tokens that rows see besides their neighbourhood, for the tile and q head of the last query. */
struct seer {
	const struct ref_rows *rows, *source;
	const struct skv_prefill *plan;
	uint32_t tile;
	uint32_t x, head, begin; /* begin: first row of the segment that `distance` belongs to */
	bool *chosen;            /* tokens before x */
	bool *vertical, *distance;
};

static void choose_best(struct seer *s)
{
	const struct skv_prefill *plan = s->plan;
	const uint32_t h = s->head / (s->rows->n_heads / s->rows->n_kv_heads);
	double *weight = malloc((s->x + 1) * sizeof *weight);

	ref_tile_weights(s->source, s->x, plan->mapped ? plan->map[h] : h, weight);
	ref_mark_topk(weight, s->x, skv_budget_of(plan->top, s->x, plan->top_floor), 0, s->source->there, s->chosen);
	free(weight);
}

static void choose_of_segment(struct seer *s)
{
	const uint32_t n = s->begin + SKV_MINFERENCE_ROWS;
	double *column = malloc(n * sizeof *column), *diagonal = malloc(n * sizeof *diagonal);

	ref_lines(s->rows, s->begin, s->head, column, diagonal);
	ref_mark_topk(column, n, s->plan->vertical, SKV_MINFERENCE_FORCED, NULL, s->vertical);
	ref_mark_topk(diagonal, n, s->plan->slash, SKV_MINFERENCE_FORCED, NULL, s->distance);
	free(column);
	free(diagonal);
}

/* The chosen tokens, and the blocks of 64 that a chosen distance reaches from some position of the tile. */
static void choose_lines(struct seer *s)
{
	const uint32_t n = s->begin + SKV_MINFERENCE_ROWS;

	for (uint32_t t = 0; t < s->x; t++)
		s->chosen[t] = t < n && s->vertical[t];
	for (uint32_t p = s->x; p < s->x + 64; p++)
		for (uint32_t t = 0; t < s->x; t++)
			if (p - t < n && s->distance[p - t])
				memset(s->chosen + t / 64 * 64, true, 64);
}

static void choose(struct seer *s, uint32_t x, uint32_t head)
{
	const uint32_t begin = s->plan->how == SKV_PREFILL_MINFERENCE ? ref_begin(s->rows, x, s->plan->segment) : 0;
	const bool same = s->head == head && s->begin == begin;

	s->x = x;
	s->head = head;
	s->begin = begin;
	if (s->plan->how == SKV_PREFILL_HIP) {
		ref_stages(s->rows, s->plan, x, head, s->chosen);
	} else if (s->plan->how == SKV_PREFILL_KASCADE) {
		choose_best(s);
	} else {
		if (!same)
			choose_of_segment(s);
		choose_lines(s);
	}
}

static void see(const void *ctx, uint32_t p, uint32_t head, bool *visible)
{
	struct seer *s = (struct seer *)ctx;
	const struct skv_prefill *plan = s->plan;
	const uint32_t x = p / s->tile * s->tile;

	if (plan->how != SKV_PREFILL_STREAMING && (s->x != x || s->head != head))
		choose(s, x, head);
	for (uint32_t t = 0; t <= p; t++) {
		if (plan->how == SKV_PREFILL_STREAMING)
			visible[t] = t < plan->sinks || t + plan->window > p;
		else if (plan->how == SKV_PREFILL_HIP)
			visible[t] = t < plan->sinks || t + plan->window >= x || s->chosen[t];
		else
			visible[t] = t >= x || s->chosen[t];
	}
}

void ref_prefill(const struct ref_rows *r, const struct ref_rows *source, const struct skv_prefill *plan, double *out)
{
	const bool corrected = plan->correct != SKV_CORRECT_NONE, kascade = plan->how == SKV_PREFILL_KASCADE;
	const struct ref_correct correct = {
		.gamma = corrected ? plan->gamma : 0,
		.delta = plan->correct == SKV_CORRECT_DELTA,
		.dense = corrected ? ref_tail(r->to, plan->gamma, plan->tail) : UINT32_MAX,
		.segment = plan->how == SKV_PREFILL_MINFERENCE ? plan->segment : 0,
	};
	struct seer s = {.rows = r, .source = source, .plan = plan, .x = UINT32_MAX, .head = UINT32_MAX,
	                 .tile = kascade ? skv_kascade_tile(r->n_heads / r->n_kv_heads) : 64,
	                 .chosen = malloc(r->to), .vertical = malloc(r->to), .distance = malloc(r->to)};

	ref_prompt(r, &correct, see, &s, out, NULL);
	free(s.chosen);
	free(s.vertical);
	free(s.distance);
}
