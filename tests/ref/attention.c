/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/ref/attention.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sparsekv/types.h>

float ref_round(uint32_t dtype, float x)
{
	if (dtype == SKV_F32 || x == 0 || !isfinite(x))
		return x;
	/* x = m 2^e, 1/2 <= |m| < 1; the format keeps `digits` bits of m, fewer below its smallest normal. */
	int e, digits = dtype == SKV_F16 ? 11 : 8, lowest = dtype == SKV_F16 ? -24 : -133;
	double largest = dtype == SKV_F16 ? 65504.0 : ldexp(255, 120);
	frexp(x, &e);
	int unit = e - digits > lowest ? e - digits : lowest;
	double r = ldexp(nearbyint(ldexp(x, -unit)), unit);
	return fabs(r) > largest ? copysignf(INFINITY, x) : (float)r;
}

float ref_unit(uint8_t scale)
{
	return scale == 255 ? NAN : ldexpf(1, scale - 127);
}

uint8_t ref_round_row(uint32_t dtype, float *row, uint32_t n)
{
	double most = 0, unit;
	bool finite = true;
	int scale = 1;

	for (uint32_t d = 0; d < n; d++) {
		finite &= isfinite(row[d]) && fabs((double)row[d]) < 0x1p120;
		most = fmax(most, fabs((double)row[d]));
	}
	while (finite && most > 448 * ldexp(1, scale - 127))
		scale++;
	unit = ldexp(1, scale - 127);
	for (uint32_t d = 0; d < n; d++) {
		int e = 0;

		if (dtype != SKV_FP8) {
			row[d] = ref_round(dtype, row[d]);
			continue;
		}
		/*
		 * x 2^e with 1/2 <= x < 1: four significant digits from 2^-6 on, below it nine digits after the binary
		 * point
		 */
		frexp(row[d] / unit, &e);
		e = e > -5 ? e - 4 : -9;
		row[d] = finite ? (float)(ldexp(nearbyint(ldexp(row[d] / unit, -e)), e) * unit) : NAN;
	}
	return finite ? (uint8_t)scale : 255;
}

float ref_unit_in_page(uint32_t dtype, const uint8_t *page, uint32_t kv_heads, uint32_t dim, uint32_t row)
{
	return dtype == SKV_FP8 ? ref_unit(page[(size_t)32 * kv_heads * dim + row]) : 1;
}

static float load_e4m3(uint8_t x)
{
	int e = x >> 3 & 15, m = x & 7;
	float size = e == 15 && m == 7 ? NAN : e ? ldexpf((float)(8 + m), e - 10) : ldexpf((float)m, -9);

	return x >> 7 ? -size : size;
}

float ref_load(uint32_t dtype, const void *p)
{
	float x = 0;
	if (dtype == SKV_FP8)
		return load_e4m3(*(const uint8_t *)p);
	if (dtype == SKV_F32) {
		memcpy(&x, p, 4);
	} else if (dtype == SKV_BF16) {
		memcpy((uint8_t *)&x + 2, p, 2); /* the upper half */
	} else {
		uint16_t f;
		memcpy(&f, p, 2);
		int e = f >> 10 & 31, m = f & 1023;
		x = e == 31 ? (m ? NAN : INFINITY)
		    : e     ? ldexpf((float)(1024 + m), e - 25)
		            : ldexpf((float)m, -24);
		x = f >> 15 ? -x : x;
	}
	return x;
}

void ref_store(uint32_t dtype, void *p, float x)
{
	if (dtype == SKV_FP8) {
		uint8_t *to = p;
		for (*to = signbit(x) ? 0x80 : 0; load_e4m3(*to) != x; ++*to)
			;
		return;
	}
	x = ref_round(dtype, x);
	if (dtype == SKV_F32) {
		memcpy(p, &x, 4);
	} else if (dtype == SKV_BF16) {
		memcpy(p, (uint8_t *)&x + 2, 2);
	} else {
		int e = 0;
		double size = fabs((double)x);
		uint16_t f = signbit(x) ? 0x8000 : 0;
		frexp(size, &e); /* size = 1.m 2^(e - 1) */
		if (isnan(x))
			f |= 0x7e00;
		else if (isinf(x))
			f |= 0x7c00;
		else if (size < 0x1p-14)
			f |= (uint16_t)ldexp(size, 24);
		else
			f |= (uint16_t)((e + 14) << 10 | ((int)ldexp(size, 11 - e) & 1023));
		memcpy(p, &f, 2);
	}
}

double ref_score(struct ref_softmax by, double dot)
{
	return by.softcap != 0 ? by.softcap * tanh(by.scale * dot / by.softcap) : by.scale * dot;
}

double ref_sink(struct ref_softmax by, double max)
{
	return by.sink ? exp((double)*by.sink - max) : 0;
}

double ref_attention(const float *q, const float *k, const float *v, uint32_t n, uint32_t stride,
                     uint32_t dim, struct ref_softmax by, const bool *visible, double *out, double *weight)
{
	double *score = calloc(n ? n : 1, sizeof *score), max = -INFINITY, sum = 0, all;

	for (uint32_t t = 0; t < n; t++) {
		score[t] = -INFINITY;
		if (!visible[t])
			continue;
		double dot = 0;
		for (uint32_t d = 0; d < dim; d++)
			dot += (double)q[d] * k[(size_t)t * stride + d];
		score[t] = ref_score(by, dot);
		max = fmax(max, score[t]);
	}
	for (uint32_t d = 0; d < dim; d++)
		out[d] = 0;
	for (uint32_t t = 0; t < n; t++) {
		double w = visible[t] && score[t] != -INFINITY ? exp(score[t] - max) : 0;
		score[t] = w;
		sum += w;
		for (uint32_t d = 0; visible[t] && d < dim; d++)
			out[d] += w * v[(size_t)t * stride + d];
	}
	all = sum == 0 ? 0 : sum + ref_sink(by, max);
	for (uint32_t d = 0; d < dim; d++)
		out[d] = sum == 0 ? 0 : out[d] / all;
	for (uint32_t t = 0; weight && t < n; t++)
		weight[t] = sum == 0 ? 0 : score[t] / all;
	free(score);
	return sum == 0 ? -INFINITY : max + log(sum);
}

uint32_t ref_topk(const float *score, uint32_t n, uint32_t k, uint32_t *ret_ids)
{
	bool *taken = calloc(n ? n : 1, sizeof *taken);
	uint32_t m = 0;
	for (uint32_t i = 0; i < k; i++) {
		int64_t best = -1;
		for (uint32_t j = 0; j < n; j++)
			if (!taken[j] && score[j] > -INFINITY && (best < 0 || score[j] > score[best]))
				best = j;
		if (best >= 0)
			taken[best] = true;
	}
	for (uint32_t j = 0; j < n; j++)
		if (taken[j])
			ret_ids[m++] = j;
	free(taken);
	return m;
}

double ref_bound(const float *q, const float *k, uint32_t n, uint32_t stride, uint32_t dim)
{
	double sum = 0;
	for (uint32_t d = 0; d < dim; d++) {
		double low = k[d], high = k[d];
		for (uint32_t t = 1; t < n; t++) {
			low = fmin(low, k[(size_t)t * stride + d]);
			high = fmax(high, k[(size_t)t * stride + d]);
		}
		sum += fmax(q[d] * low, q[d] * high);
	}
	return sum;
}
