/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/fidelity.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- outputs --------------------------------------------------------------------------------- */

double fidelity_cosine(const struct synthetic_shape *s, const float *out, const float *dense, uint32_t from,
                       uint32_t to)
{
	double mean = 0;

	for (size_t r = (size_t)from * s->heads; r < (size_t)to * s->heads; r++) {
		const float *x = out + r * s->dim, *y = dense + r * s->dim;
		double xx = 0, xy = 0, yy = 0;

		for (uint32_t d = 0; d < s->dim; d++) {
			xx += (double)x[d] * x[d];
			xy += (double)x[d] * y[d];
			yy += (double)y[d] * y[d];
		}
		mean += xy / sqrt(xx * yy);
	}
	return mean / ((double)(to - from) * s->heads);
}

double fidelity_error(const struct synthetic_shape *s, const float *out, const float *dense, uint32_t from, uint32_t to)
{
	double off = 0, whole = 0;

	for (size_t i = (size_t)from * s->heads * s->dim; i < (size_t)to * s->heads * s->dim; i++) {
		off += ((double)out[i] - dense[i]) * ((double)out[i] - dense[i]);
		whole += (double)dense[i] * dense[i];
	}
	return off / whole;
}

/* Returns whether the error of a row is larger than rounding errors. */
static bool misses(const struct synthetic_shape *s, const float *dense, const float *sparse, uint32_t p)
{
	return fidelity_error(s, sparse, dense, p, p + 1) > 1e-8;
}

struct eng_delta_similarity fidelity_alike(const struct synthetic_shape *s, const float *dense, const float *sparse,
                                           uint32_t gamma)
{
	struct eng_delta_similarity a = {0};

	for (uint32_t p = 0; p < s->tokens; p++) {
		const uint32_t first = p - p % gamma;

		for (uint32_t h = 0; h < s->heads && p != first && misses(s, dense, sparse, first); h++) {
			const size_t from = ((size_t)first * s->heads + h) * s->dim, to = ((size_t)p * s->heads + h) * s->dim;

			eng_delta_similarity_add(&a, &(struct eng_delta_similarity_pair){dense + from, sparse + from,
				dense + to, sparse + to}, s->dim, p - first);
		}
	}
	return a;
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* Computes the scaled scores of row p's query in one head for all keys up to p. */
static void scores_of(const struct synthetic_shape *s, const struct synthetic_layer *l, uint32_t p, uint32_t head,
                      double *ret)
{
	const uint32_t kv = head / (s->heads / s->kv_heads);
	const float *q = l->q + ((size_t)p * s->heads + head) * s->dim;

	for (uint32_t t = 0; t <= p; t++) {
		const float *k = l->k + ((size_t)t * s->kv_heads + kv) * s->dim;
		double sum = 0;

		for (uint32_t d = 0; d < s->dim; d++)
			sum += (double)q[d] * k[d];
		ret[t] = sum / sqrt(s->dim);
	}
}

struct ranked {
	double score;
	uint32_t id;
};

static int by_score(const void *a, const void *b)
{
	const struct ranked *x = a, *y = b;

	return x->score < y->score ? 1 : x->score > y->score ? -1 : x->id < y->id ? -1 : 1;
}

/* Sorts the tokens by score, the best first. */
static void sort(const double *score, uint32_t n, struct ranked *ret)
{
	for (uint32_t i = 0; i < n; i++)
		ret[i] = (struct ranked){score[i], i};
	qsort(ret, n, sizeof *ret, by_score);
}

static double spearman(const double *a, const double *b, uint32_t n, struct ranked *sorted, uint32_t *rank)
{
	double sum = 0;

	sort(a, n, sorted);
	for (uint32_t i = 0; i < n; i++)
		rank[sorted[i].id] = i;
	sort(b, n, sorted);
	for (uint32_t i = 0; i < n; i++) {
		const double d = (double)rank[sorted[i].id] - i;

		sum += d * d;
	}
	return 1 - 6 * sum / ((double)n * ((double)n * n - 1));
}

static void *room(size_t n, size_t bytes)
{
	void *p = calloc(n, bytes);

	if (!p) {
		fputs("sparsekv-bench: no memory for a row's scores\n", stderr);
		exit(1);
	}
	return p;
}

double fidelity_ranks(const struct synthetic_shape *s, const struct synthetic_layer *l, const struct synthetic_layer *dense,
                      uint32_t from, uint32_t to)
{
	double *score = room(2 * s->tokens, sizeof *score), mean = 0;
	struct ranked *sorted = room(s->tokens, sizeof *sorted);
	uint32_t *rank = room(s->tokens, sizeof *rank);

	for (uint32_t p = from; p < to; p++) {
		scores_of(s, l, p, p % s->heads, score);
		scores_of(s, dense, p, p % s->heads, score + s->tokens);
		mean += spearman(score, score + s->tokens, p + 1, sorted, rank);
	}
	free(score);
	free(sorted);
	free(rank);
	return mean / (to - from);
}

#define ROUNDING 1e-4 /* rounding error of a row in fp32, relative to the largest value */

/* ---- Lemma 1 --------------------------------------------------------------------------------- */

/* Replaces the scores with their softmax. */
static void weigh(double *score, uint32_t n)
{
	double most = score[0], sum = 0;

	for (uint32_t t = 1; t < n; t++)
		most = score[t] > most ? score[t] : most;
	for (uint32_t t = 0; t < n; t++)
		sum += score[t] = exp(score[t] - most);
	for (uint32_t t = 0; t < n; t++)
		score[t] /= sum;
}

/*
 * Marks the tokens of [0, p] that sparse attention sees: those of streaming attention or, if `oracle` is true, as many
 * tokens with the largest weights.
 */
static void see(const double *weight, uint32_t p, const struct skv_prefill *plan, bool oracle, struct ranked *sorted,
                bool *ret)
{
	uint32_t n = 0;

	for (uint32_t t = 0; t <= p; t++)
		n += ret[t] = t < plan->sinks || t + plan->window > p;
	if (!oracle)
		return;
	sort(weight, p + 1, sorted);
	memset(ret, 0, (p + 1) * sizeof *ret);
	for (uint32_t i = 0; i < n; i++)
		ret[sorted[i].id] = true;
}

/*
 * Sums for one element of a row's output: weighted values of the unseen tokens and of the seen tokens; the largest
 * value of a seen token.
 */
struct element {
	double missing, seen, most;
};

static struct element sum_up(const struct synthetic_shape *s, const float *v, const double *weight, const bool *seen,
                             uint32_t p)
{
	struct element e = {0};

	for (uint32_t t = 0; t <= p; t++, v += (size_t)s->kv_heads * s->dim) {
		if (!seen[t]) {
			e.missing += weight[t] * *v;
			continue;
		}
		e.seen += weight[t] * *v;
		e.most = fabs(*v) > e.most ? fabs(*v) : e.most;
	}
	return e;
}

static void lemma_row(const struct synthetic_shape *s, const struct synthetic_layer *l, const double *weight,
                      const bool *seen, uint32_t p, const float *out, bool oracle, struct fidelity_lemma *sum)
{
	const uint32_t head = p % s->heads, kv = head / (s->heads / s->kv_heads);
	const size_t row = ((size_t)p * s->heads + head) * s->dim;
	double hidden = 0;

	for (uint32_t t = 0; t <= p; t++)
		hidden += seen[t] ? 0 : weight[t];
	for (uint32_t d = 0; d < s->dim; d++) {
		const struct element e = sum_up(s, l->v + (size_t)kv * s->dim + d, weight, seen, p);
		const double sparse = oracle ? e.seen / (1 - hidden) : out[row + d];
		const double rest = fabs(l->out[row + d] - sparse - e.missing), bound = hidden * e.most;

		sum->rest += rest;
		sum->bound += bound;
		/* differences within rounding errors do not count */
		if (rest - ROUNDING * e.most > sum->worst * bound)
			sum->worst = (rest - ROUNDING * e.most) / bound;
	}
}

struct fidelity_lemma fidelity_lemma(const struct synthetic_shape *s, const struct synthetic_layer *l,
                                     const struct skv_prefill *plan, bool oracle, const float *out, uint32_t from,
                                     uint32_t to)
{
	const double n = (double)(to - from) * s->dim;
	double *weight = room(s->tokens, sizeof *weight);
	struct ranked *sorted = room(s->tokens, sizeof *sorted);
	bool *seen = room(s->tokens, sizeof *seen);
	struct fidelity_lemma sum = {0};

	for (uint32_t p = from; p < to; p++) {
		scores_of(s, l, p, p % s->heads, weight);
		weigh(weight, p + 1);
		see(weight, p, plan, oracle, sorted, seen);
		lemma_row(s, l, weight, seen, p, out, oracle, &sum);
	}
	free(weight);
	free(sorted);
	free(seen);
	return (struct fidelity_lemma){sum.rest / n, sum.bound / n, sum.worst};
}
