/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/choose-layers.h"

#include <math.h>
#include <string.h>
#include <sparsekv/types.h>

void eng_choose_by_shift(const struct eng_choice *c, const double *shift, uint32_t *ret_layers)
{
	uint32_t from = c->first + 1, rest = c->n_layers - from;

	ret_layers[0] = c->first;
	for (uint32_t part = 0; part + 1 < c->n; part++) {
		uint32_t parts_left = c->n - 1 - part, to = from + (rest + parts_left - 1) / parts_left;
		uint32_t best = from;

		for (uint32_t l = from; l < to; l++)
			if (shift[l] > shift[best])
				best = l;
		ret_layers[part + 1] = best;
		rest -= to - from;
		from = to;
	}
}

/*
 * After round m, best[j] is the largest sum over the layers before j if m layers are chosen and j is the next chosen
 * layer. last[m][j] is the m-th layer of that choice. The paper calls these dp[m + 1][j] and path.
 */
double eng_choose_anchors(const struct eng_choice *c, const double *worth, uint32_t *ret_layers)
{
	double best[SKV_MAX_LAYERS + 1], before[SKV_MAX_LAYERS + 1];
	uint8_t last[SKV_MAX_LAYERS + 1][SKV_MAX_LAYERS + 1];
	uint32_t end = c->n_layers;

	for (uint32_t j = 0; j <= end; j++)
		best[j] = j == c->first ? 0 : -INFINITY;
	for (uint32_t m = 1; m <= c->n; m++) {
		memcpy(before, best, sizeof(before));
		for (uint32_t j = 0; j <= end; j++)
			best[j] = -INFINITY;
		for (uint32_t i = c->first; i < end; i++) {
			double sum = before[i];

			for (uint32_t j = i + 1; j <= end; j++) {
				sum += worth[i * c->n_layers + j - 1];
				if (sum > best[j]) {
					best[j] = sum;
					last[m][j] = (uint8_t)i;
				}
			}
		}
	}
	for (uint32_t m = c->n, j = end; m > 0; m--)
		ret_layers[m - 1] = j = last[m][j];
	return best[end];
}

uint32_t eng_choose_source(const struct eng_choice *c, const uint32_t *layers, uint32_t layer)
{
	uint32_t source = layers[0];

	for (uint32_t i = 1; i < c->n && layers[i] <= layer; i++)
		source = layers[i];
	return source;
}

void eng_choose_heads(const double *similarity, uint32_t n_heads, uint32_t n_ranks, uint8_t *ret_map)
{
	const uint32_t each = n_heads / n_ranks;

	for (uint32_t h = 0; h < n_heads; h++) {
		const double *row = similarity + (size_t)h * n_heads;
		const uint32_t first = h / each * each;
		uint32_t best = first;

		for (uint32_t other = first + 1; other < first + each; other++)
			if (row[other] > row[best])
				best = other;
		ret_map[h] = (uint8_t)best;
	}
}
