/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/sparse-error.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Returns the number of elements in a row of a layer's output. */
static size_t wide(const struct eng_delta_error_shape *s)
{
	return (size_t)s->n_heads * s->head_dim;
}

int eng_delta_error_init(struct eng_delta_error *d, const struct eng_delta_error_shape *s)
{
	*d = (struct eng_delta_error){.shape = *s};
	d->layer = calloc(s->n_layers, sizeof(*d->layer));
	d->first = calloc(s->n_layers, 2 * wide(s) * sizeof(*d->first));
	d->row = calloc(s->n_layers, 2 * wide(s) * sizeof(*d->row));
	d->scores = calloc(s->n_layers, s->max_tokens * sizeof(*d->scores));
	if (!d->layer || !d->first || !d->row || !d->scores) {
		eng_delta_error_deinit(d);
		return -ENOMEM;
	}
	return 0;
}

void eng_delta_error_deinit(struct eng_delta_error *d)
{
	free(d->layer);
	free(d->first);
	free(d->row);
	free(d->scores);
	*d = ENG_DELTA_ERROR_NULL;
}

/* ---- choosing rows --------------------------------------------------------------------------- */

/*
 * Returns the position in its window of the i-th row to measure. Multiplying by the golden ratio spreads the positions
 * evenly, whichever windows are chosen.
 */
static uint32_t distance(const struct eng_delta_error_shape *s, uint32_t i)
{
	return 1 + (uint32_t)(((uint64_t)(i * 2654435769u) * (s->gamma - 1)) >> 32);
}

void eng_delta_error_choose(const struct eng_delta_error *d, uint32_t n, uint32_t rows, uint8_t *mark)
{
	const struct eng_delta_error_shape *s = &d->shape;
	const uint64_t most = (uint64_t)s->sinks + s->window;
	const uint32_t begin = most < n ? (uint32_t)((most + s->gamma - 1) / s->gamma) : 0, end = n / s->gamma;

	memset(mark, ENG_DELTA_ERROR_NOT, n);
	if (most >= n || begin >= end)
		return;
	if (!rows || rows > (end - begin) * (s->gamma - 1)) {
		for (uint32_t p = begin * s->gamma; p < end * s->gamma; p++)
			mark[p] = p % s->gamma ? ENG_DELTA_ERROR_ROW : ENG_DELTA_ERROR_FIRST;
		return;
	}
	for (uint32_t i = 0; i < rows; i++) {
		const uint32_t first = (begin + (uint32_t)((uint64_t)i * (end - begin) / rows)) * s->gamma;

		mark[first] = ENG_DELTA_ERROR_FIRST;
		mark[first + distance(s, i)] = ENG_DELTA_ERROR_ROW;
	}
}

/* ---- one row --------------------------------------------------------------------------------- */

static bool sees(const struct eng_delta_error_shape *s, uint32_t p, uint32_t t)
{
	return t < s->sinks || (uint64_t)t + s->window > p;
}

/*
 * Computes the output of a head: the average of v weighted by the softmax of the scores, over all tokens up to p if
 * `all` is true, otherwise over the tokens that sparse attention sees.
 */
static void mean(const struct eng_delta_error_shape *s, const struct eng_delta_error_row *r, const float *scores,
                 const float *v, bool all, float *out)
{
	float most = -INFINITY, sum = 0;

	for (uint32_t t = 0; t <= r->p; t++)
		if ((all || sees(s, r->p, t)) && scores[t] > most)
			most = scores[t];
	memset(out, 0, s->head_dim * sizeof(*out));
	for (uint32_t t = 0; t <= r->p; t++) {
		float weight;

		if (!all && !sees(s, r->p, t))
			continue;
		weight = expf(scores[t] - most);
		sum += weight;
		for (uint32_t i = 0; i < s->head_dim; i++)
			out[i] += weight * v[(size_t)t * s->head_dim + i];
	}
	for (uint32_t i = 0; i < s->head_dim; i++)
		out[i] /= sum;
}

static void score(const struct eng_delta_error_shape *s, const float *q, const float *k, uint32_t p, float *ret)
{
	const float scale = 1 / sqrtf((float)s->head_dim);

	for (uint32_t t = 0; t <= p; t++) {
		const float *key = k + (size_t)t * s->head_dim;
		float x = 0;

#pragma omp simd reduction(+ : x)
		for (uint32_t i = 0; i < s->head_dim; i++)
			x += q[i] * key[i];
		ret[t] = x * scale;
	}
}

void eng_delta_error_add(struct eng_delta_error *d, const struct eng_delta_error_row *r)
{
	const struct eng_delta_error_shape *s = &d->shape;
	const size_t at = r->layer * 2 * wide(s);
	float *out = (r->mark == ENG_DELTA_ERROR_FIRST ? d->first : d->row) + at, *scores = d->scores + (size_t)r->layer * s->max_tokens;

	for (uint32_t h = 0; h < s->n_heads; h++, out += s->head_dim) {
		const size_t kv = (size_t)(h / (s->n_heads / s->n_kv_heads)) * r->stride * s->head_dim;
		const float *first = d->first + at + h * s->head_dim;

		score(s, r->q + h * s->head_dim, r->k + kv, r->p, scores);
		mean(s, r, scores, r->v + kv, true, out);
		mean(s, r, scores, r->v + kv, false, out + wide(s));
		if (r->mark == ENG_DELTA_ERROR_ROW)
			eng_delta_similarity_add(&d->layer[r->layer], &(struct eng_delta_similarity_pair){first,
				first + wide(s), out, out + wide(s)}, s->head_dim, r->p % s->gamma);
	}
}

/* ---- results --------------------------------------------------------------------------------- */

bool eng_delta_error_any(const struct eng_delta_error *d)
{
	return d->layer[0].dense > 0;
}

double eng_delta_error_left(const struct eng_delta_error *d)
{
	double left = 0, whole = 0;

	for (uint32_t l = 0; l < d->shape.n_layers; l++)
		if (d->layer[l].dense > 0) {
			left += d->layer[l].left / d->layer[l].dense;
			whole += d->layer[l].whole / d->layer[l].dense;
		}
	return whole > 0 ? left / whole : 0;
}
