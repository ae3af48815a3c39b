/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/ref/compress.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tests/ref/attention.h"

#define BF16 2u /* SKV_BF16 */

uint32_t ref_dims(const struct ref_codec *c)
{
	return c->kv_heads * c->dim * 2;
}

/* ---- which and where ------------------------------------------------------------------------- */

bool ref_is_reference(const struct ref_codec *c, uint32_t token, uint32_t *ret_number)
{
	const uint32_t p = token - c->first;

	if (c->stride == 0) {
		*ret_number = p;
		return false;
	}
	if (token < c->first) {
		*ret_number = token;
		return true;
	}
	*ret_number = p % c->stride == 0 ? c->first + p / c->stride : p - p / c->stride - 1;
	return p % c->stride == 0;
}

uint32_t ref_usable(const struct ref_codec *c, uint32_t token)
{
	return c->stride ? c->first + (token - c->first) / c->stride + 1 : 0;
}

uint32_t ref_numbers_bytes(uint32_t n, uint32_t bits, uint32_t group, uint32_t each)
{
	return bits == 16 ? n * each : bits == 0 ? 0 : n / group * 4 + n / (8 / bits);
}

static uint32_t filled_up(uint32_t bytes)
{
	return bytes % 16 ? bytes + 16 - bytes % 16 : bytes;
}

uint32_t ref_code_record(const struct ref_codec *c)
{
	return filled_up(c->near * c->id_bytes + ref_numbers_bytes(c->width, c->bits, c->group, 2));
}

uint32_t ref_reference_record(const struct ref_codec *c)
{
	return filled_up(ref_numbers_bytes(ref_dims(c), c->ref_bits, 64, c->dtype == 0 ? 4 : 2));
}

/* ---- stored numbers -------------------------------------------------------------------------- */

void ref_shared(const uint8_t *at, uint32_t g, double *scale, double *least)
{
	*scale = ref_load(BF16, at + 4 * g);
	*least = ref_load(BF16, at + 4 * g + 2);
}

uint32_t ref_number(const uint8_t *at, uint32_t n, uint32_t bits, uint32_t group, uint32_t i)
{
	const uint8_t *q = at + n / group * 4;

	if (bits == 8)
		return q[i];
	return i % 2 ? q[i / 2] / 16 : q[i / 2] % 16;
}

void ref_numbers(const uint8_t *at, uint32_t n, uint32_t bits, uint32_t group, uint32_t dtype, double *x)
{
	for (uint32_t i = 0; i < n; i++) {
		double scale, least;

		if (bits == 16) {
			x[i] = ref_load(dtype, at + i * (dtype == 0 ? 4 : 2));
			continue;
		}
		ref_shared(at, i / group, &scale, &least);
		x[i] = least + ref_number(at, n, bits, group, i) * scale;
	}
}

uint32_t ref_id(const struct ref_codec *c, const uint8_t *record, uint32_t i)
{
	uint32_t id = 0;

	for (uint32_t b = 0; b < c->id_bytes; b++)
		id += (uint32_t)record[i * c->id_bytes + b] << (8 * b);
	return id;
}

/* ---- positions ------------------------------------------------------------------------------- */

void ref_turn(const struct ref_codec *c, uint32_t position, int sign, double *k)
{
	const double scale = sign > 0 ? c->rope_scale : 1 / c->rope_scale;

	for (uint32_t h = 0; h < c->kv_heads; h++)
		for (uint32_t i = 0; i < c->rope_dims / 2; i++) {
			double *x = k + h * c->dim + (c->interleaved ? 2 * i : i);
			double *y = c->interleaved ? x + 1 : x + c->rope_dims / 2;
			const double angle = sign * (double)position * c->turn[i], a = *x, b = *y;

			*x = scale * (a * cos(angle) - b * sin(angle));
			*y = scale * (a * sin(angle) + b * cos(angle));
		}
}

/* ---- E and Dec ------------------------------------------------------------------------------- */

/* Row `row` of a matrix with `n` columns times x; terms as in ref_encode(). */
static double row_times(const float *matrix, uint32_t row, uint32_t n, const double *x, const double *x_terms,
                        double *terms)
{
	double sum = 0;

	*terms = 0;
	for (uint32_t i = 0; i < n; i++) {
		sum += matrix[(size_t)row * n + i] * x[i];
		*terms += fabs(matrix[(size_t)row * n + i]) * x_terms[i];
	}
	return sum;
}

/* y[rows] = matrix x[n]; with spans each part of y comes from its part of x. */
static void times(const struct ref_codec *c, const float *matrix, uint32_t rows, uint32_t n, const double *x,
                  const double *x_terms, double *y, double *terms)
{
	const uint32_t parts = c->spans ? 2 * c->spans : 1, cols = n / parts;

	for (uint32_t r = 0; r < rows; r++) {
		const uint32_t from = r / (rows / parts) * cols;

		y[r] = row_times(matrix, r, cols, x + from, x_terms + from, &terms[r]);
	}
}

static double silu(double x)
{
	return x / (1 + exp(-x));
}

void ref_encode(const struct ref_codec *c, const double *x, double *z, double *terms)
{
	const uint32_t d = ref_dims(c), n = c->gate ? c->hidden : d;
	double *h = malloc(n * sizeof *h), *h_terms = malloc(n * sizeof *h_terms);
	double *sizes = malloc(d * sizeof *sizes), *own = malloc(c->width * sizeof *own);

	for (uint32_t i = 0; i < d; i++)
		sizes[i] = fabs(x[i]);
	for (uint32_t i = 0; i < n; i++) {
		double g_terms, u_terms;

		if (!c->gate) {
			h[i] = x[i];
			h_terms[i] = sizes[i];
			continue;
		}
		h[i] = silu(row_times(c->gate, i, d, x, sizes, &g_terms));
		h[i] *= row_times(c->up, i, d, x, sizes, &u_terms);
		h_terms[i] = 2 * g_terms * u_terms; /* silu is nowhere steeper than 1.1 */
	}
	times(c, c->down, c->width, n, h, h_terms, z, terms ? terms : own);
	free(h);
	free(h_terms);
	free(sizes);
	free(own);
}

static void norm_heads(const struct ref_codec *c, double *x, double *terms)
{
	for (uint32_t h = 0; h < c->kv_heads; h++) {
		double *k = x + h * c->dim, *t = terms + h * c->dim, square = 0, off = 0;

		for (uint32_t i = 0; i < c->dim; i++) {
			square += k[i] / c->k_norm[i] * (k[i] / c->k_norm[i]);
			off = fmax(off, t[i] / fabs(c->k_norm[i]));
		}
		const double rms = sqrt(square / c->dim);
		for (uint32_t i = 0; i < c->dim; i++) {
			k[i] = c->k_norm[i] * (k[i] / c->k_norm[i]) / rms;
			t[i] = t[i] / rms + fabs(k[i]) * off / rms;
		}
	}
}

void ref_decode(const struct ref_codec *c, const double *z, const double *b, const double *b_terms, double *x,
                double *terms)
{
	const uint32_t d = ref_dims(c), n = c->open ? c->wide : c->width;
	double *h = malloc((n + 1) * sizeof *h), *sizes = malloc((n + c->width + 1) * sizeof *sizes);

	for (uint32_t i = 0; i < c->width; i++)
		sizes[n + i] = fabs(z[i]);
	for (uint32_t i = 0; i < n; i++) {
		h[i] = c->open ? silu(row_times(c->open, i, c->width, z, sizes + n, &sizes[i])) : z[i];
		sizes[i] = c->open ? 2 * sizes[i] : fabs(z[i]);
	}
	if (c->bits) {
		times(c, c->out, d, n, h, sizes, x, terms);
	} else {
		memset(x, 0, d * sizeof *x);
		memset(terms, 0, d * sizeof *terms);
	}
	for (uint32_t i = 0; i < d; i++) {
		x[i] += b[i];
		terms[i] += b_terms[i];
	}
	if (c->k_norm)
		norm_heads(c, x, terms);
	free(h);
	free(sizes);
}
