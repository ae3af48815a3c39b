/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/recall-task.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* Numbers 0 … n - 1 in an order that looks random and is always the same. */
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

static int make(struct eng_case *c, const int32_t *stretch, const struct eng_recall_task *e, const uint32_t *order,
                uint32_t n_pieces, uint32_t index, const struct eng_tokens *tokens)
{
	uint32_t begin = (uint32_t)tokens->begin.n;

	*c = (struct eng_case){.task = "echo", .size = e->prompt, .n_prompt = begin + e->prompt, .n_answer = e->answer + 1};
	c->prompt = calloc(c->n_prompt, sizeof(*c->prompt));
	c->answer = calloc(c->n_answer, sizeof(*c->answer));
	if (!c->prompt || !c->answer || asprintf(&c->id, "echo-%u", index) < 0) {
		c->id = NULL;
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < c->n_prompt; i++)
		c->prompt[i] = i < begin ? tokens->begin.id[i] : stretch[i - begin];
	for (uint32_t i = 0; i < e->answer; i++) {
		uint32_t piece = order[i / ENG_RECALL_TASK_PIECE % n_pieces];

		c->answer[i] = stretch[piece * ENG_RECALL_TASK_PIECE + i % ENG_RECALL_TASK_PIECE];
	}
	c->answer[e->answer] = tokens->eos;
	return 0;
}

int eng_recall_task_cases(struct eng_cases *ret, const int32_t *ids, size_t n, const struct eng_recall_task *e,
                          const struct eng_tokens *tokens, struct eng_error *err)
{
	struct eng_cases cases = {.list = calloc(e->n, sizeof(*cases.list))};
	uint32_t n_pieces = e->prompt / ENG_RECALL_TASK_PIECE, *order = calloc(n_pieces, sizeof(*order));
	int r = cases.list && order ? 0 : -ENOMEM;

	if (!r)
		shuffle(order, n_pieces);
	while (!r && cases.n < e->n) {
		size_t at = e->n > 1 ? cases.n * (n - e->prompt) / (e->n - 1) : 0;
		uint32_t i = (uint32_t)cases.n++;

		r = make(&cases.list[i], ids + at, e, order, n_pieces, i, tokens);
	}
	free(order);
	if (r) {
		eng_cases_deinit(&cases);
		return eng_fail(err, r, "no memory for %u texts", e->n);
	}
	*ret = cases;
	return 0;
}
