/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops.h"

#include <math.h>
#include <stdlib.h>
#include <sparsekv/client.h>

float *eng_rope_table(const struct skv_rope *rope, uint32_t head_dim, uint32_t positions)
{
	const double scale = skv_rope_scale(rope);
	uint32_t half = head_dim / 2;
	float *table = calloc(positions, (size_t)head_dim * sizeof(*table));
	float *frequency = malloc(half * sizeof(*frequency));

	if (!table || !frequency) {
		free(frequency);
		free(table);
		return NULL;
	}
	for (uint32_t i = 0; i < half; i++)
		frequency[i] = (float)skv_rope_frequency(rope, head_dim, i);
#pragma omp parallel for schedule(static) if (positions > 256)
	for (uint32_t p = 0; p < positions; p++)
		for (uint32_t i = 0; i < half; i++) {
			/* The angle is rounded to fp32, as in the training of models. */
			float angle = (float)p * frequency[i];

			table[(size_t)p * head_dim + i] = (float)(cos((double)angle) * scale);
			table[(size_t)p * head_dim + half + i] = (float)(sin((double)angle) * scale);
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
