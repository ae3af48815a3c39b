/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/unit/kernels/test-decode-rows.c - several rows of each sequence decode at once, on every backend of this
 * machine: outputs, log-sum-exps and counters equal, bit for bit, those of the same rows one by one.
 */
#include <check.h>
#include <string.h>

#include "tests/support/kernel-case.h"
#include "tests/support/suite.h"

#define MOST_ROWS 16u

/*
 * Makes n sequences with equally many query rows, with lengths around the boundaries of pages, leaves of tiles and runs
 * of leaves.
 */
static bool rows_case(struct kernel_case *c, const struct test_backend *on, int loop, uint32_t *ret_rows)
{
	static const struct {
		uint32_t heads, kv_heads, dim;
	} shapes[] = {{8, 2, 128}, {4, 4, 64}, {7, 1, 96}, {32, 1, 128}, {24, 1, 64}, {6, 1, 256}, {16, 2, 128}};
	static const uint32_t dtypes[] = {SKV_BF16, SKV_FP8, SKV_F16, SKV_F32};
	uint32_t len[3], rows[3], n = 1 + rnd_below(3);

	*ret_rows = 1 + rnd_below(MOST_ROWS);
	for (uint32_t i = 0; i < n; i++) {
		rows[i] = *ret_rows;
		len[i] = *ret_rows + (i == 0 ? rnd_below(4000) : (rnd_below(8) * 64 + rnd_below(40)));
	}
	case_init(c, dtypes[loop < 7 ? loop % 3 : loop / 7 % 4], shapes[loop % 7].heads, shapes[loop % 7].kv_heads, shapes[loop % 7].dim, n, len, rows);
	if (rnd_below(2))
		case_punch(c, 6);
	return case_load(c, on);
}

/* The case's rows as [rows][n] sequences, some of which have a counter. */
static struct skv_batch each_row(struct kernel_case *c, uint32_t rows, uint64_t *attended)
{
	struct skv_kseq seq[CASE_SEQS], each[3 * MOST_ROWS];
	struct skv_batch b = c->batch;

	case_from(c, seq, c->batch.seq, c->n * sizeof(*seq));
	for (uint32_t at = 0; at < c->n * rows; at++) {
		const uint32_t i = at % c->n, row = at / c->n;

		each[at] = seq[i];
		each[at].row += row;
		each[at].len -= rows - 1 - row;
		each[at].n_q = 1;
		each[at].attended = i % 2 ? NULL : attended + i;
	}
	b.seq = case_to(c, each, c->n * rows * sizeof(*each));
	b.n = c->n * rows;
	b.max_q = 1;
	return b;
}

/* The results of a call, with all rows together or row by row. */
struct left {
	uint8_t *out;
	float *lse;
	uint64_t attended[3];
};

static struct left attend(struct kernel_case *c, const void *q, uint32_t rows, bool together)
{
	const size_t heads = (size_t)c->rows * c->sh.n_heads, bytes = case_rows_bytes(c, heads * c->sh.head_dim);
	const uint64_t none[3] = {0};
	uint64_t *attended = case_to(c, none, sizeof(none));
	void *out = case_to(c, NULL, bytes);
	float *lse = case_to(c, NULL, heads * sizeof(float));
	struct skv_batch b = each_row(c, rows, attended);
	struct skv_workspace w = case_work_of(c, c->on->kern->workspace_bytes(&c->sh, b.n, b.n, c->max_len, 2), 2);
	struct left x = {.out = malloc(bytes), .lse = malloc(heads * sizeof(float))};

	b.rows = together ? rows : 0;
	c->sh.lse = lse;
	c->on->kern->decode_dense(&c->sh, &b, q, out, NULL, &w);
	case_work_done(c, &w);
	case_from(c, x.out, out, bytes);
	case_from(c, x.lse, lse, heads * sizeof(float));
	case_from(c, x.attended, attended, sizeof(x.attended));
	return x;
}

START_TEST(as_one_by_one)
{
	for (const struct test_backend *on = case_backends(); on->kern; on++) {
		struct kernel_case c;
		struct left x, y;
		uint32_t rows;

		rnd_begin((uint64_t)_i);
		if (rows_case(&c, on, _i, &rows)) {
			const size_t heads = (size_t)c.rows * c.sh.n_heads;
			const void *q = case_rows_to(&c, c.q, heads * c.sh.head_dim);

			x = attend(&c, q, rows, true);
			y = attend(&c, q, rows, false);
			ck_assert_msg(!memcmp(x.out, y.out, case_rows_bytes(&c, heads * c.sh.head_dim)), "%s: outputs of %u rows differ", on->name, rows);
			ck_assert_msg(!memcmp(x.lse, y.lse, heads * sizeof(float)), "%s: log-sum-exps of %u rows differ", on->name, rows);
			ck_assert_msg(!memcmp(x.attended, y.attended, sizeof(x.attended)), "%s: counters of %u rows differ: %llu and %llu", on->name, rows,
			              (unsigned long long)x.attended[0], (unsigned long long)y.attended[0]);
			free(x.out);
			free(x.lse);
			free(y.out);
			free(y.lse);
			case_off(&c);
		}
		case_deinit(&c);
	}
}
END_TEST

int main(void)
{
	Suite *s = case_suite("test-decode-rows");
	TCase *t = add_case(s, "rows", 120, NULL, NULL, NULL);

	add_cases(t, as_one_by_one, rnd_hurried() ? 7 : 56);
	return run_suite(s);
}
