/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Fewer floats than this are done before another thread has woken up. */
#define PARALLEL_FLOATS 32768u

/* Up to here a matrix-vector product a row beats sgemm, which packs the whole matrix first. */
#define MATVEC_ROWS 3u

void eng_matmul(float *y, const float *x, const float *w, uint32_t rows, uint32_t n_in, uint32_t n_out)
{
	if (rows > MATVEC_ROWS) {
		cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)n_out, (int)n_in, 1, x,
		            (int)n_in, w, (int)n_in, 0, y, (int)n_out);
		return;
	}
	for (uint32_t r = 0; r < rows; r++)
		cblas_sgemv(CblasRowMajor, CblasNoTrans, (int)n_out, (int)n_in, 1, w, (int)n_in,
		            x + (size_t)r * n_in, 1, 0, y + (size_t)r * n_out, 1);
}

void eng_rmsnorm(float *y, const float *x, const float *w, float eps, uint32_t rows, uint32_t n)
{
#pragma omp parallel for schedule(static) if ((uint64_t)rows * n > PARALLEL_FLOATS)
	for (uint32_t r = 0; r < rows; r++) {
		const float *from = x + (size_t)r * n;
		float *to = y + (size_t)r * n;
		float sum = 0, scale;

#pragma omp simd reduction(+ : sum)
		for (uint32_t i = 0; i < n; i++)
			sum += from[i] * from[i];
		scale = 1 / sqrtf(sum / (float)n + eps);
#pragma omp simd
		for (uint32_t i = 0; i < n; i++)
			to[i] = from[i] * scale * w[i];
	}
}

void eng_add(float *x, const float *y, uint64_t n)
{
#pragma omp parallel for simd schedule(static) if (n > PARALLEL_FLOATS)
	for (uint64_t i = 0; i < n; i++)
		x[i] += y[i];
}

/*
 * e^x for x in [-87, 0], within 2 units in the last place, without a branch or a call, so that loops over it
 * vectorise: e^x = 2^n · e^r, n = round(x / ln 2), |r| <= ln 2 / 2, and a polynomial for e^r.
 */
static inline float exp_nonpositive(float x)
{
	const float round = 0x1.8p23f; /* adding it leaves the nearest whole number in the low bits */
	float shifted = x * 0x1.715476p0f + round, n = shifted - round;
	float r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
	float p = 1.38888889e-3f;
	union {
		float f;
		uint32_t u;
	} two_n = {.f = shifted};

	p = p * r + 8.33333333e-3f;
	p = p * r + 4.16666667e-2f;
	p = p * r + 1.66666667e-1f;
	p = p * r + 0.5f;
	p = p * r * r + r + 1;
	two_n.u = (two_n.u + 127u) << 23;
	return p * two_n.f;
}

void eng_swiglu(float *y, const float *gate_up, uint32_t rows, uint32_t n)
{
#pragma omp parallel for schedule(static) if ((uint64_t)rows * n > PARALLEL_FLOATS / 4)
	for (uint32_t r = 0; r < rows; r++) {
		const float *gate = gate_up + (size_t)r * 2 * n, *up = gate + n;
		float *to = y + (size_t)r * n;

#pragma omp simd
		for (uint32_t i = 0; i < n; i++) {
			/*
			 * sigmoid(g) = 1/(1+e^-|g|), or e^-|g| over the same for negative g: never an
			 * overflow. Below -87, where e^g leaves fp32, silu is as good as zero.
			 */
			float g = gate[i] < -87 ? -87 : gate[i], a = fabsf(g);
			float e = exp_nonpositive(-(a < 87 ? a : 87));

			to[i] = g * ((g < 0 ? e : 1) / (1 + e)) * up[i];
		}
	}
}

/* One head, turned: (a, b) of each pair becomes (a cos − b sin, b cos + a sin). */
static void turn(float *to, const float *from, const float *angles, uint32_t half)
{
#pragma omp simd
	for (uint32_t i = 0; i < half; i++) {
		float a = from[i], b = from[half + i], c = angles[i], s = angles[half + i];

		to[i] = a * c - b * s;
		to[half + i] = b * c + a * s;
	}
}

void eng_rope_split(float *q, float *k, float *v, const float *qkv, const struct eng_heads *heads,
                    const float *table, const uint32_t *position, uint32_t rows)
{
	uint32_t d = heads->head_dim, nq = heads->n_heads * d, nkv = heads->n_kv_heads * d;

#pragma omp parallel for schedule(static) if ((uint64_t)rows * nq > PARALLEL_FLOATS)
	for (uint32_t r = 0; r < rows; r++) {
		const float *from = qkv + (size_t)r * (nq + 2 * nkv);
		const float *angles = table + (size_t)position[r] * d;

		for (uint32_t at = 0; at < nq; at += d)
			turn(q + (size_t)r * nq + at, from + at, angles, d / 2);
		for (uint32_t at = 0; at < nkv; at += d)
			turn(k + (size_t)r * nkv + at, from + nq + at, angles, d / 2);
		memcpy(v + (size_t)r * nkv, from + nq + nkv, nkv * sizeof(*v));
	}
}

float *eng_rope_table(const struct eng_rope *rope, uint32_t head_dim, uint32_t positions)
{
	uint32_t half = head_dim / 2;
	float *table = calloc(positions, (size_t)head_dim * sizeof(*table));
	float *frequency = malloc(half * sizeof(*frequency));

	if (!table || !frequency) {
		free(frequency);
		free(table);
		return NULL;
	}
	for (uint32_t i = 0; i < half; i++)
		frequency[i] = (float)eng_rope_frequency(rope, head_dim, i);
#pragma omp parallel for schedule(static) if (positions > 256)
	for (uint32_t p = 0; p < positions; p++)
		for (uint32_t i = 0; i < half; i++) {
			/* The angle is rounded to fp32, as it was in training: the weights know it so. */
			float angle = (float)p * frequency[i];

			table[(size_t)p * head_dim + i] = (float)cos((double)angle);
			table[(size_t)p * head_dim + half + i] = (float)sin((double)angle);
		}
	free(frequency);
	return table;
}

uint32_t eng_argmax(const float *x, uint32_t n)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < n; i++)
		if (x[i] > x[best])
			best = i;
	return best;
}

double eng_nll(const float *x, uint32_t n, uint32_t i)
{
	double top = x[eng_argmax(x, n)], sum = 0;

	for (uint32_t j = 0; j < n; j++)
		sum += exp(x[j] - top);
	return log(sum) + top - x[i];
}
