/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/h2o.c - h2o: each kv head accumulates the weights that its tokens get from all queries, averaged over
 * its group. Half of the budget is for the latest tokens, half for those with the largest sums; the budget limits what
 * a step attends to.
 */
#include "tests/oracle/oracle.h"

#include <stdlib.h>

static void add_votes(const struct oracle_step *s, uint32_t layer, uint32_t kv, uint32_t at)
{
	struct oracle_score *score = calloc(s->n, sizeof(*score));
	struct oracle_head *h = oracle_head(s, layer, kv);

	oracle_attn_scores(s, layer, kv, at, score);
	for (uint32_t t = 0; t <= at; t++)
		if (h->lives[t] == ORACLE_IN)
			h->value[t] = oracle_sum(h->value[t], score[t]);
	free(score);
}

static void prompt(const struct oracle_step *s, const char *spec, uint32_t rows)
{
	for (uint32_t layer = (uint32_t)oracle_number(spec, "dense"); layer < s->model->n_layers; layer++)
		for (uint32_t kv = 0; kv < s->model->n_kv_heads; kv++)
			for (uint32_t at = s->n - rows; at < s->n; at++)
				add_votes(s, layer, kv, at);
}

static void evict(const struct oracle_step *s, const char *spec)
{
	uint32_t most = oracle_budget(spec, s->n + 1, 128);
	struct oracle_stay stay = {.keep = most - 1, .recent = (most + 1) / 2 - 1, .ties_hold = s->ties_hold};

	for (uint32_t layer = (uint32_t)oracle_number(spec, "dense"); layer < s->model->n_layers; layer++)
		for (uint32_t kv = 0; kv < s->model->n_kv_heads; kv++) {
			struct oracle_head *h = oracle_head(s, layer, kv);

			add_votes(s, layer, kv, s->n - 1);
			oracle_stay(h, s->n, h->value, &stay);
		}
}

const struct oracle_policy oracle_h2o = {
        .name = "h2o", .attend = oracle_kept_tokens, .evict = evict, .granularity = 1, .prompt = prompt};
