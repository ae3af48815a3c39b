/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/lessismore.c - lessismore: like TidalDecode, with one set for all heads: the first `sinks` tokens, the
 * last `recent` ones, and of those between as many as the budget leaves room for. Each q head ranks these by scores;
 * they are taken in the order of ranks (what any head ranks first, then what any ranks second), each once.
 */
#include "tests/oracle/oracle.h"

#include <stdlib.h>

/*
 * The first place of a token in that order: a head h that ranks it r puts it at place r * heads + h, and the first of
 * these places counts. No two tokens share a place.
 */
static void places(const struct oracle_step *s, uint32_t layer, const bool *candidate, struct oracle_score *place)
{
	uint32_t heads = s->model->n_heads, *sure = calloc(s->n, sizeof(*sure)), *may = calloc(s->n, sizeof(*may));
	struct oracle_score *score = calloc(s->n, sizeof(*score));

	for (uint32_t head = 0; head < heads; head++) {
		oracle_weights(s, layer, head, score);
		oracle_ranks(s, score, candidate, s->n, sure, may);
		for (uint32_t t = 0; t < s->n; t++) {
			/* the smallest place is the largest score */
			struct oracle_score x = {.lo = -(may[t] * (double)heads + head),
			                         .hi = -(sure[t] * (double)heads + head)};

			/* if rounding decides, two places must not count as equal */
			x.is = (x.lo + x.hi) / 2 + (sure[t] != may[t] ? (t + 1) * 1e-9 : 0);
			place[t] = head == 0 ? x : oracle_more(place[t], x);
		}
	}
	free(sure);
	free(may);
	free(score);
}

static void choose(const struct oracle_step *s, const char *spec, uint32_t layer, struct oracle_set *set)
{
	struct oracle_score *place = calloc(s->n, sizeof(*place));
	bool *candidate = calloc(s->n, sizeof(*candidate));
	uint32_t sinks = (uint32_t)oracle_number(spec, "sinks"), recent = (uint32_t)oracle_number(spec, "recent");
	uint32_t k = oracle_budget(spec, s->n, 128);

	if (recent == 0)
		recent = k / 8 > 1 ? k / 8 : 1;
	recent = recent < k ? recent : k;
	sinks = sinks < k - recent ? sinks : k - recent;
	oracle_set_new(s, set, ORACLE_TOKENS, 1);
	oracle_take(s, layer, set, 0, s->n - recent, s->n);
	oracle_take(s, layer, set, 0, 0, sinks);
	for (uint32_t t = 0; t < s->n; t++)
		candidate[t] = set->class[t] == ORACLE_OUT && oracle_there(s, layer, ORACLE_TOKENS, t);
	places(s, layer, candidate, place);
	oracle_best(s, layer, set, 0, 0, s->n, place, k - recent - sinks);
	free(place);
	free(candidate);
}

static void attend(const struct oracle_step *s, const char *spec, struct oracle_set *set)
{
	oracle_followers(s, spec, set, oracle_chooses_twice, choose);
}

const struct oracle_policy oracle_lessismore = {.name = "lessismore", .attend = attend};
