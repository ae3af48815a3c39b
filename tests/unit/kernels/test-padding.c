/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/unit/kernels/test-padding.c - batches that are padded with empty sequences, on every backend of this machine:
 * appending, scoring, selecting and attending give the same bits as each sequence alone, and no other row is written.
 */
#include <check.h>
#include <string.h>

#include "tests/support/kernel-case.h"
#include "tests/support/suite.h"

#define SEQS 6u

enum way { DENSE, WINDOW, WEIGHED, TOPK, UNION, QUEST, SKETCHES, WAYS };
static const char *const names[WAYS] = {"dense", "window", "by weights", "topk", "union", "by bounds", "by sketches"};

/* Makes two sequences among padding. With sketches, adds the state pages that these need. */
static bool padded_case(struct kernel_case *c, const struct test_backend *on, int loop, uint32_t bits)
{
	static const struct {
		uint32_t heads, kv_heads, dim;
	} shapes[] = {{8, 2, 128}, {6, 2, 64}, {7, 1, 96}, {10, 1, 256}, {32, 8, 128}};
	uint32_t len[SEQS] = {0}, rows[SEQS] = {0};

	rnd_begin((uint64_t)loop);
	len[1 + rnd_below(2)] = 1 + rnd_below(3000);
	len[3 + rnd_below(2)] = 1 + rnd_below(60);
	for (uint32_t i = 0; i < SEQS; i++)
		rows[i] = len[i] > 0;
	case_init(c, (uint32_t)loop % 3, shapes[loop % 5].heads, shapes[loop % 5].kv_heads, shapes[loop % 5].dim, SEQS, len, rows);
	c->sh.sketch_bits = bits;
	for (uint32_t i = 0; i < SEQS; i++) {
		c->seq[i].row = len[i] ? c->seq[i].row : 0;
		c->seq[i].n_state = len[i];
		for (uint32_t p = 0; bits && p * skv_sketch_tokens(&c->sh) < len[i]; p++)
			if (p >= skv_pages_of(skv_pages_of(len[i])))
				c->state[i][p] = skv_pte_make(SKV_PTE_PRIVATE, c->pool_pages++);
	}
	return case_load(c, on);
}

static void attend(struct kernel_case *c, const struct skv_batch *b, enum way way, const void *q, void *out)
{
	const struct skv_kernels *k = c->on->kern;
	const uint32_t rows = way == UNION ? c->sh.n_heads : c->sh.n_kv_heads, tokens = (c->max_len + 255) / 256 * 256;
	const size_t all = (size_t)b->n * rows * tokens;
	const struct skv_window window = {.sinks = 4, .budget.count = 100};
	const struct skv_select select = {.budget.share = 0.2f, .floor = 4, .pin = 1, .recent_floor = 1};
	const struct skv_scores scores = {.rows = rows, .sum = true, .token_stride = tokens, .page_stride = tokens / SKV_PAGE_TOKENS,
	                                  .token = case_to(c, NULL, all * sizeof(float)),
	                                  .page = case_to(c, NULL, all / SKV_PAGE_TOKENS * sizeof(float))};
	struct skv_index_list list = {.rows = way == UNION ? 1 : rows, .stride = tokens, .ids = case_to(c, NULL, all * sizeof(uint32_t)),
	                              .count = case_to(c, NULL, (size_t)b->n * rows * sizeof(uint32_t))};
	struct skv_workspace w = case_work(c, 2);

	if (way == DENSE)
		k->decode_dense(&c->sh, b, q, out, NULL, &w);
	else if (way == WINDOW)
		k->decode_window(&c->sh, b, q, out, &window, &w);
	else if (way == TOPK)
		k->decode_topk(&c->sh, b, q, out, &scores, &select, &list, &w);
	else if (way == QUEST)
		k->score_pages(&c->sh, b, q, SKV_REDUCE_MAX, &scores, &w);
	else if (way == SKETCHES && k->select_sketches)
		k->select_sketches(&c->sh, b, q, true, &select, &list, &w);
	else if (way == SKETCHES)
		k->score_sketches(&c->sh, b, q, &scores, &w);
	else
		k->decode_dense(&c->sh, b, q, NULL, &scores, &w);
	if (way == UNION)
		k->select_union(&c->sh, b, &scores, &select, &list, &w);
	else if (way == WEIGHED || way == QUEST || (way == SKETCHES && !k->select_sketches))
		k->select(&c->sh, b, &scores, way != QUEST, &select, &list, &w);
	if (way == QUEST)
		k->decode_pages(&c->sh, b, q, out, &list, &w);
	else if (way == WEIGHED || way == UNION || way == SKETCHES)
		k->decode_tokens(&c->sh, b, q, out, &list, &w);
	case_work_done(c, &w);
}

/* Runs all sequences at once and each one alone, into rows of NaNs, and compares. */
static void check_way(struct kernel_case *c, enum way way)
{
	const size_t n = (size_t)(c->rows + 1) * c->sh.n_heads * c->sh.head_dim, heads = (size_t)(c->rows + 1) * c->sh.n_heads;
	const void *q = case_rows_to(c, c->q, (size_t)c->rows * c->sh.n_heads * c->sh.head_dim);
	void *out[2] = {case_to(c, NULL, case_rows_bytes(c, n)), case_to(c, NULL, case_rows_bytes(c, n))};
	float *lse[2] = {case_to(c, NULL, heads * sizeof(float)), case_to(c, NULL, heads * sizeof(float))};
	uint8_t *x = malloc(2 * case_rows_bytes(c, n)), *y = x + case_rows_bytes(c, n);

	c->sh.lse = lse[0];
	attend(c, &c->batch, way, q, out[0]);
	c->sh.lse = lse[1];
	for (uint32_t i = 0; i < SEQS; i++)
		if (c->seq[i].n_q) {
			const struct skv_batch one = case_part(c, i, 1);

			attend(c, &one, way, q, out[1]);
		}
	case_from(c, x, out[0], case_rows_bytes(c, n));
	case_from(c, y, out[1], case_rows_bytes(c, n));
	ck_assert_msg(!memcmp(x, y, case_rows_bytes(c, n)), "%s, %s: outputs differ", c->on->name, names[way]);
	case_from(c, x, lse[0], heads * sizeof(float));
	case_from(c, y, lse[1], heads * sizeof(float));
	ck_assert_msg(!memcmp(x, y, heads * sizeof(float)), "%s, %s: log-sum-exps differ", c->on->name, names[way]);
	free(x);
}

START_TEST(padding)
{
	for (const struct test_backend *on = case_backends(); on->kern; on++)
		for (uint32_t bits = 0; bits <= 2; bits += 2) {
			struct kernel_case c;

			if (padded_case(&c, on, _i, bits)) {
				struct skv_workspace w = case_work(&c, 2);
				struct skv_batch all = c.batch;

				all.max_state = c.max_len;
				if (bits)
					on->kern->update_sketches(&c.sh, &all, &w);
				else
					on->kern->update_bounds(&c.sh, &all, NULL, &w);
				case_work_done(&c, &w);
				for (enum way way = bits ? SKETCHES : DENSE; way < (bits ? WAYS : SKETCHES); way++)
					check_way(&c, way);
				case_off(&c);
			}
			case_deinit(&c);
		}
}
END_TEST

int main(void)
{
	Suite *s = case_suite("test-padding");
	TCase *t = add_case(s, "padding", 120, NULL, NULL, NULL);

	add_cases(t, padding, rnd_hurried() ? 5 : 15);
	return run_suite(s);
}
