/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/streaming.c - streaming: attention sinks and a recent window, together `budget` tokens. Tokens in
 * between are evicted, by whole pages.
 */
#include "tests/oracle/oracle.h"

/* Where the recent window of a sequence of n tokens begins. */
static uint32_t recent_from(const char *spec, uint32_t n)
{
	uint32_t sinks = (uint32_t)oracle_number(spec, "sinks"), window = oracle_budget(spec, n, 128);
	uint32_t recent = window > sinks ? window - sinks : 1; /* the token being decoded */

	return recent < n ? n - recent : 0;
}

static void attend(const struct oracle_step *s, const char *spec, struct oracle_set *set)
{
	for (uint32_t layer = 0; layer < s->model->n_layers; layer++) {
		if (layer < oracle_number(spec, "dense")) {
			oracle_dense(s, layer, &set[layer]);
			continue;
		}
		oracle_set_new(s, &set[layer], ORACLE_WINDOW, 1);
		oracle_take(s, layer, &set[layer], 0, 0, (uint32_t)oracle_number(spec, "sinks"));
		oracle_take(s, layer, &set[layer], 0, recent_from(spec, s->n), s->n);
	}
}

/* Evicts pages of which the next step attends to no token. */
static void evict(const struct oracle_step *s, const char *spec)
{
	uint32_t from = recent_from(spec, s->n + 1);

	for (uint32_t layer = (uint32_t)oracle_number(spec, "dense"); layer < s->model->n_layers; layer++)
		for (uint32_t page = 0; (page + 1) * ORACLE_PAGE <= from; page++)
			if (page * ORACLE_PAGE >= oracle_number(spec, "sinks"))
				s->hole[layer][page] = true;
}

const struct oracle_policy oracle_streaming = {.name = "streaming", .attend = attend, .evict = evict};
