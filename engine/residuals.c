/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/residuals.h"

#include <cblas.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sparsekv/client.h>
#include "engine/ops.h"

/* ---- which tokens are references ------------------------------------------------------------- */

static bool is_reference(const struct eng_residuals *r, uint32_t token)
{
	return r->shape.stride && (token < r->shape.first || (token - r->shape.first) % r->shape.stride == 0);
}

/* Returns the number of reference tokens before this token. */
static uint32_t references_before(const struct eng_residuals *r, uint32_t token)
{
	if (!r->shape.stride)
		return 0;
	if (token <= r->shape.first)
		return token;
	return r->shape.first + (token - r->shape.first + r->shape.stride - 1) / r->shape.stride;
}

/* ---- memory ---------------------------------------------------------------------------------- */

int eng_residuals_init(struct eng_residuals *r, const struct eng_residuals_shape *shape)
{
	size_t layers = shape->n_layers, d = 2 * (size_t)shape->n_kv_heads * shape->head_dim, rows = shape->rows, n;

	*r = (struct eng_residuals){.shape = *shape, .d = (uint32_t)d};
	n = references_before(r, shape->max_tokens) + 1;
	r->moment = calloc(layers * d * d, sizeof(*r->moment));
	r->sum = calloc(layers * d, sizeof(*r->sum));
	r->square = calloc(layers, sizeof(*r->square));
	r->rope = eng_rope_table(&shape->rope, shape->head_dim, shape->max_tokens);
	r->refs = malloc(layers * n * d * sizeof(*r->refs));
	r->norm = malloc(layers * n * sizeof(*r->norm));
	r->x = malloc(rows * d * sizeof(*r->x));
	r->score = malloc(rows * n * sizeof(*r->score));
	r->left = malloc(rows * d * sizeof(*r->left));
	if (r->moment && r->sum && r->square && r->rope && r->refs && r->norm && r->x && r->score && r->left)
		return 0;
	eng_residuals_deinit(r);
	return -ENOMEM;
}

void eng_residuals_deinit(struct eng_residuals *r)
{
	free(r->moment);
	free(r->sum);
	free(r->square);
	free(r->rope);
	free(r->refs);
	free(r->norm);
	free(r->x);
	free(r->score);
	free(r->left);
	*r = ENG_RESIDUALS_NULL;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/*
 * Undoes the rotary embedding of one head of a token's K. K and the table of cosines and sines are both multiplied by
 * skv_rope_scale(), so the result is divided by its square.
 */
static void turn_back(const struct eng_residuals *r, uint32_t token, const float *k, double *to)
{
	uint32_t dim = r->shape.head_dim, half = dim / 2;
	const float *cosine = r->rope + (size_t)token * dim, *sine = cosine + half;
	double scale = skv_rope_scale(&r->shape.rope);

	for (uint32_t i = 0; i < half; i++) {
		to[i] = (k[i] * (double)cosine[i] + k[half + i] * (double)sine[i]) / (scale * scale);
		to[half + i] = (k[half + i] * (double)cosine[i] - k[i] * (double)sine[i]) / (scale * scale);
	}
}

static void take_rows(struct eng_residuals *r, const float *k, const float *v, uint32_t rows)
{
	uint32_t dim = r->shape.head_dim, half = r->d / 2;

	for (uint32_t i = 0; i < rows; i++) {
		double *x = r->x + (size_t)i * r->d;

		for (uint32_t h = 0; h < r->shape.n_kv_heads; h++)
			turn_back(r, r->at + i, k + (size_t)i * half + (size_t)h * dim, x + (size_t)h * dim);
		for (uint32_t e = 0; e < half; e++)
			x[half + e] = v[(size_t)i * half + e];
	}
}

static void take_references(struct eng_residuals *r, double *refs, double *norm, uint32_t rows)
{
	for (uint32_t i = 0; i < rows; i++) {
		uint32_t number = references_before(r, r->at + i);

		if (!is_reference(r, r->at + i))
			continue;
		cblas_dcopy((int)r->d, r->x + (size_t)i * r->d, 1, refs + (size_t)number * r->d, 1);
		norm[number] = cblas_ddot((int)r->d, r->x + (size_t)i * r->d, 1, r->x + (size_t)i * r->d, 1);
	}
}

/* Finds the `near` of n references with the smallest distance; writes their indices in ascending order. */
static void nearest(const struct eng_residuals *r, const double *dot, const double *norm, uint32_t n, uint32_t *to)
{
	double best[ENG_RESIDUALS_NEAR]; /* scores of the nearest references found so far, in descending order */
	uint32_t have = 0, number[ENG_RESIDUALS_NEAR];

	for (uint32_t c = 0; c < n; c++) {
		double score = 2 * dot[c] - norm[c];
		uint32_t i;

		if (have == r->shape.near && score <= best[have - 1])
			continue;
		have += have < r->shape.near;
		for (i = have - 1; i > 0 && score > best[i - 1]; i--) {
			best[i] = best[i - 1];
			number[i] = number[i - 1];
		}
		best[i] = score;
		number[i] = c;
	}
	for (uint32_t i = 0; i < have; i++) {
		uint32_t at = 0;

		for (uint32_t j = 0; j < have; j++)
			at += number[j] < number[i];
		to[at] = number[i];
	}
}

/* Computes x - b of row i of the current rows. */
static void leave(const struct eng_residuals *r, uint32_t i, const double *refs, const double *norm, uint32_t known,
                  double *to)
{
	uint32_t near[ENG_RESIDUALS_NEAR];

	cblas_dcopy((int)r->d, r->x + (size_t)i * r->d, 1, to, 1);
	if (!r->shape.stride)
		return;
	nearest(r, r->score + (size_t)i * known, norm, references_before(r, r->at + i), near);
	for (uint32_t j = 0; j < r->shape.near; j++)
		cblas_daxpy((int)r->d, -1. / r->shape.near, refs + (size_t)near[j] * r->d, 1, to, 1);
}

void eng_residuals_begin(struct eng_residuals *r, uint32_t at, uint32_t rows)
{
	r->at = at;
	for (uint32_t i = 0; i < rows; i++)
		r->tokens += at + i >= r->shape.first && !is_reference(r, at + i);
}

void eng_residuals_add(struct eng_residuals *r, uint32_t layer, const float *k, const float *v, uint32_t rows)
{
	uint32_t d = r->d, known = references_before(r, r->at + rows), n = 0;
	size_t most = references_before(r, r->shape.max_tokens) + 1;
	double *refs = r->refs + layer * most * d, *norm = r->norm + layer * most, *sum = r->sum + (size_t)layer * d;

	take_rows(r, k, v, rows);
	take_references(r, refs, norm, rows);
	if (known)
		cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)known, (int)d, 1, r->x, (int)d,
		            refs, (int)d, 0, r->score, (int)known);
	for (uint32_t i = 0; i < rows; i++) {
		const double *x = r->x + (size_t)i * d;

		if (r->at + i < r->shape.first || is_reference(r, r->at + i))
			continue;
		leave(r, i, refs, norm, known, r->left + (size_t)n++ * d);
		cblas_daxpy((int)d, 1, x, 1, sum, 1);
		r->square[layer] += cblas_ddot((int)d, x, 1, x, 1);
	}
	if (n)
		cblas_dsyrk(CblasRowMajor, CblasLower, CblasTrans, (int)d, (int)n, 1, r->left, (int)d, 1,
		            r->moment + (size_t)layer * d * d, (int)d);
}

double eng_residuals_left(const struct eng_residuals *r, uint32_t layer)
{
	const double *moment = r->moment + (size_t)layer * r->d * r->d;
	double sum = 0;

	for (uint32_t i = 0; i < r->d; i++)
		sum += moment[(size_t)i * r->d + i];
	return sum;
}

double eng_residuals_spread(const struct eng_residuals *r, uint32_t layer)
{
	const double *sum = r->sum + (size_t)layer * r->d;

	return r->square[layer] - cblas_ddot((int)r->d, sum, 1, sum, 1) / (double)(r->tokens ? r->tokens : 1);
}
