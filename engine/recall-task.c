/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/recall-task.h"

#include <errno.h>
#include <stdlib.h>

/* Writes the numbers 0 … n - 1 in a fixed pseudo-random order. */
static void shuffle(uint32_t *order, uint32_t n)
{
	uint32_t x = 1;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t other;

		x = x * 1664525u + 1013904223u;
		other = (uint32_t)(((uint64_t)x * (i + 1)) >> 32);
		order[i] = order[other];
		order[other] = i;
	}
}

int eng_recall_task(int32_t *to, uint32_t n, const int32_t *text, uint32_t n_text, uint32_t piece)
{
	uint32_t n_pieces = n_text / piece, *order = calloc(n_pieces, sizeof(*order));

	if (!order)
		return -ENOMEM;
	shuffle(order, n_pieces);
	for (uint32_t i = 0; i < n; i++)
		to[i] = text[order[i / piece % n_pieces] * piece + i % piece];
	free(order);
	return 0;
}
