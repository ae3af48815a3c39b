/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/measure.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One layer's attention in the current row. */
struct eng_measured_layer {
	double norm;      /* Euclidean norm of all weights */
	float *reduced;    /* [n_kv_heads][n]: weights summed over the q heads of each kv head */
	uint32_t *top;    /* [n_kv_heads][top]: the tokens with the largest weights */
	double *top_mass; /* [n_kv_heads]: sum of the weights of these tokens */
};

/* Returns the index of layers a and b in a table [layer][layer][kv head][kv head]. */
static size_t pair_at(const struct eng_measure_shape *s, uint32_t a, uint32_t b)
{
	return ((size_t)a * s->n_layers + b) * s->n_kv_heads * s->n_kv_heads;
}

static void begin_text(struct eng_measure *m)
{
	for (size_t i = 0; i < pair_at(&m->shape, m->shape.n_layers, 0); i++)
		m->least[i] = INFINITY;
}

static int init_layers(struct eng_measure *m)
{
	const struct eng_measure_shape *s = &m->shape;

	m->layers = calloc(s->n_layers, sizeof(*m->layers));
	for (uint32_t l = 0; m->layers && l < s->n_layers; l++) {
		struct eng_measured_layer *layer = &m->layers[l];

		layer->reduced = calloc((size_t)s->n_kv_heads * s->max_tokens, sizeof(*layer->reduced));
		layer->top = calloc((size_t)s->n_kv_heads * s->top, sizeof(*layer->top));
		layer->top_mass = calloc(s->n_kv_heads, sizeof(*layer->top_mass));
		if (!layer->reduced || !layer->top || !layer->top_mass)
			return -ENOMEM;
	}
	return m->layers ? 0 : -ENOMEM;
}

int eng_measure_init(struct eng_measure *m, const struct eng_measure_shape *shape)
{
	size_t pairs = pair_at(shape, shape->n_layers, 0);

	*m = (struct eng_measure){.shape = *shape};
	m->shift = calloc(shape->n_layers, sizeof(*m->shift));
	m->change = calloc(shape->n_layers, sizeof(*m->change));
	m->changes = calloc(shape->n_layers, sizeof(*m->changes));
	m->least = calloc(pairs, sizeof(*m->least));
	m->similarity = calloc(pairs, sizeof(*m->similarity));
	if (!m->shift || !m->change || !m->changes || !m->least || !m->similarity || init_layers(m)) {
		eng_measure_deinit(m);
		return -ENOMEM;
	}
	begin_text(m);
	return 0;
}

void eng_measure_deinit(struct eng_measure *m)
{
	for (uint32_t l = 0; m->layers && l < m->shape.n_layers; l++) {
		free(m->layers[l].reduced);
		free(m->layers[l].top);
		free(m->layers[l].top_mass);
	}
	free(m->layers);
	free(m->shift);
	free(m->change);
	free(m->changes);
	free(m->least);
	free(m->similarity);
	*m = ENG_MEASURE_NULL;
}

/* ---- one layer ------------------------------------------------------------------------------- */

/*
 * Writes the indices of the k largest of n elements in descending order of the elements; of equal elements the lower
 * index comes first.
 */
static void best_of(const float *x, uint32_t n, uint32_t k, uint32_t *ret)
{
	uint32_t filled = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t at;

		if (filled == k && !(x[i] > x[ret[k - 1]]))
			continue;
		at = filled < k ? filled++ : k - 1;
		for (; at > 0 && x[i] > x[ret[at - 1]]; at--)
			ret[at] = ret[at - 1];
		ret[at] = i;
	}
}

static uint32_t top_of(const struct eng_measure_shape *s, uint32_t n)
{
	return s->top < n ? s->top : n;
}

/* Sums the weights [n_heads][n] over the q heads of each kv head, and finds each kv head's best tokens. */
static void pool_and_rank(const struct eng_measure_shape *s, struct eng_measured_layer *layer, const float *weights,
                          uint32_t n)
{
	uint32_t group = s->n_heads / s->n_kv_heads, k = top_of(s, n);

	for (uint32_t h = 0; h < s->n_kv_heads; h++) {
		const float *of = weights + (size_t)h * group * n;
		float *reduced = layer->reduced + (size_t)h * n;
		uint32_t *top = layer->top + (size_t)h * s->top;

		memcpy(reduced, of, n * sizeof(*reduced));
		for (uint32_t j = 1; j < group; j++)
			for (uint32_t t = 0; t < n; t++)
				reduced[t] += of[(size_t)j * n + t];
		best_of(reduced, n, k, top);
		layer->top_mass[h] = 0;
		for (uint32_t i = 0; i < k; i++)
			layer->top_mass[h] += reduced[top[i]];
	}
}

static double dot(const float *x, const float *y, size_t n)
{
	double sum = 0;

#pragma omp simd reduction(+ : sum)
	for (size_t i = 0; i < n; i++)
		sum += (double)x[i] * y[i];
	return sum;
}

/* ---- pairs of layers ------------------------------------------------------------------------- */

/*
 * Compares each kv head of layer b with each kv head of layer a: the weight that b's head gives to the best tokens of
 * a's head.
 */
static void compare_heads(struct eng_measure *m, uint32_t a, uint32_t b, uint32_t n)
{
	const struct eng_measure_shape *s = &m->shape;
	const struct eng_measured_layer *from = &m->layers[a], *to = &m->layers[b];
	float *least = m->least + pair_at(s, a, b);
	uint32_t k = top_of(s, n);

	for (uint32_t h = 0; h < s->n_kv_heads; h++)
		for (uint32_t other = 0; other < s->n_kv_heads; other++, least++) {
			const float *reduced = to->reduced + (size_t)h * n;
			const uint32_t *top = from->top + (size_t)other * s->top;
			double mass = 0;
			float part;

			for (uint32_t i = 0; i < k; i++)
				mass += reduced[top[i]];
			part = (float)(mass / to->top_mass[h]);
			*least = part < *least ? part : *least;
		}
}

void eng_measure_row(struct eng_measure *m, const float *weights, uint32_t n)
{
	const struct eng_measure_shape *s = &m->shape;
	size_t all = (size_t)s->n_heads * n;

#pragma omp parallel for schedule(dynamic)
	for (uint32_t l = 0; l < s->n_layers; l++) {
		pool_and_rank(s, &m->layers[l], weights + l * all, n);
		m->layers[l].norm = sqrt(dot(weights + l * all, weights + l * all, all));
	}
#pragma omp parallel for schedule(dynamic)
	for (uint32_t b = 0; b < s->n_layers; b++) {
		if (b)
			m->shift[b] += 1 - dot(weights + (b - 1) * all, weights + b * all, all) /
			                           (m->layers[b - 1].norm * m->layers[b].norm);
		for (uint32_t a = 0; a <= b; a++)
			compare_heads(m, a, b, n);
	}
	m->rows++;
}

void eng_measure_change(struct eng_measure *m, uint32_t layer, const float *x, const float *y, uint32_t n)
{
	double before = 0, both = 0, after = 0;

	for (uint32_t i = 0; i < n; i++) {
		double sum = (double)x[i] + y[i];

		before += (double)x[i] * x[i];
		both += x[i] * sum;
		after += sum * sum;
	}
	m->change[layer] += 1 - both / sqrt(before * after);
	m->changes[layer]++;
}

void eng_measure_end_text(struct eng_measure *m)
{
	const struct eng_measure_shape *s = &m->shape;

	m->texts++;
	for (uint32_t a = 0; a < s->n_layers; a++)
		for (size_t i = pair_at(s, a, a); i < pair_at(s, a, s->n_layers); i++)
			m->similarity[i] += (m->least[i] - m->similarity[i]) / (double)m->texts;
	begin_text(m);
}

/* ---- results --------------------------------------------------------------------------------- */

double eng_measure_shift(const struct eng_measure *m, uint32_t layer)
{
	return m->shift[layer] / (double)m->rows;
}

double eng_measure_change_mean(const struct eng_measure *m, uint32_t layer)
{
	return m->change[layer] / (double)m->changes[layer];
}

const double *eng_measure_similarity(const struct eng_measure *m, uint32_t a, uint32_t b)
{
	return m->similarity + pair_at(&m->shape, a, b);
}

double eng_measure_best_heads(const struct eng_measure *m, uint32_t a, uint32_t b)
{
	const double *similarity = eng_measure_similarity(m, a, b);
	uint32_t n = m->shape.n_kv_heads;
	double sum = 0;

	for (uint32_t h = 0; h < n; h++, similarity += n) {
		double best = similarity[0];

		for (uint32_t other = 1; other < n; other++)
			best = similarity[other] > best ? similarity[other] : best;
		sum += best;
	}
	return sum / n;
}
