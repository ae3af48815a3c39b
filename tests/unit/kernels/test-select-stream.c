/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/unit/kernels/test-select-stream.c - decoding with top-k attention of a layer that is its own source, and
 * attention scores, with many or long sequences, on every backend of this machine.
 *
 * A device's weights differ from the reference's in the third digit, and its selection treats weights that differ by
 * less as equal. So the choice between two tokens of nearly the same weight is not determined. The test checks that a
 * list has the expected length, that up to that digit no listed token weighs less than one that is not listed, and that
 * the output is that of attention to the list.
 */
#include "tests/support/kernel-case.h"
#include "tests/ref/attention.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TOLERANCE 2e-5
#define SEQS 5u
#define MANY 301u /* more sequences than a device has slots for, several to a block */

static const uint32_t ones[CASE_SEQS] = {1, 1, 1, 1, 1, 1, 1, 1};

/* A request, and its results. */
struct chosen {
	struct skv_scores ev;
	struct skv_select sel;
	struct skv_index_list list; /* in the backend's memory */
	uint32_t *ids, *count;
	float *out;
};

static size_t out_floats(const struct kernel_case *c)
{
	return (size_t)c->rows * c->sh.n_heads * c->sh.head_dim;
}

/* `batch` has the case's sequences, or copies of them. */
static void run(struct kernel_case *c, const struct skv_batch *batch, struct chosen *x, const void *q, void *out,
                int threads)
{
	const size_t lists = (size_t)batch->n * x->ev.rows;
	const uint32_t stride = skv_pages_of(c->max_len) * SKV_PAGE_TOKENS;
	struct skv_workspace w = case_work(c, threads);

	x->ev.token_stride = stride;
	x->ev.token = case_to(c, NULL, lists * stride * sizeof(float));
	x->list = (struct skv_index_list){.rows = x->ev.rows, .stride = stride};
	x->list.ids = case_to(c, NULL, lists * stride * sizeof(uint32_t));
	x->list.count = case_to(c, NULL, lists * sizeof(uint32_t));
	c->on->kern->decode_topk(&c->sh, batch, q, out, &x->ev, &x->sel, &x->list, &w);
	case_work_done(c, &w);
	x->ids = realloc(x->ids, lists * stride * sizeof(uint32_t));
	x->count = realloc(x->count, lists * sizeof(uint32_t));
	case_from(c, x->ids, x->list.ids, lists * stride * sizeof(uint32_t));
	case_from(c, x->count, x->list.count, lists * sizeof(uint32_t));
}

static void chosen_deinit(struct chosen *x)
{
	free(x->ids);
	free(x->count);
	free(x->out);
}

/* ---- the reference --------------------------------------------------------------------------- */

/* Weights of sequence i's tokens, reduced over the heads of a row; 0 for tokens that are not resident. */
static void weigh(const struct kernel_case *c, const float *q, const struct chosen *x, uint32_t i, uint32_t row,
                  double *token)
{
	const uint32_t dim = c->sh.head_dim, group = c->sh.n_heads / c->sh.n_kv_heads, len = c->seq[i].len;
	const uint32_t heads = c->sh.n_heads / x->ev.rows;
	double *weight = malloc(len * sizeof *weight), out[SKV_MAX_HEAD_DIM];
	bool *visible = malloc(len);

	for (uint32_t t = 0; t < len; t++) {
		visible[t] = case_resident(c, i, t);
		token[t] = 0;
	}
	for (uint32_t head = row * heads; head < (row + 1) * heads; head++) {
		size_t at = ((size_t)c->seq[i].row * c->sh.n_heads + head) * dim, kv = head / group * dim;
		ref_attention(q + at, c->k[i] + kv, c->v[i] + kv, len, c->sh.n_kv_heads * dim, dim,
		              case_softmax(c, head), visible, out, weight);
		for (uint32_t t = 0; t < len; t++)
			token[t] = x->ev.sum ? token[t] + weight[t] : fmax(token[t], weight[t]);
	}
	free(weight);
	free(visible);
}

/* Checks list r against the weights, as struct skv_select specifies. */
static void check_list(const struct kernel_case *c, const struct chosen *x, uint32_t r, const double *weight,
                       bool *visible)
{
	const struct skv_select *sel = &x->sel;
	const uint32_t n = c->seq[r / x->ev.rows].len, *ids = x->ids + (size_t)r * x->list.stride;
	const uint32_t k = skv_budget_of(sel->budget, n, sel->floor);
	uint32_t recent = sel->recent ? sel->recent : k / 8, want = 0, others = 0;
	double least = INFINITY, most = 0, slack = case_weight_slack(c, c->on) + 1e-4;

	recent = recent < sel->recent_floor ? sel->recent_floor : recent;
	recent = recent < k ? recent : k;
	memset(visible, 0, n);
	for (uint32_t j = 0; j < x->count[r]; j++) {
		ck_assert_msg(ids[j] < n && (j == 0 || ids[j] > ids[j - 1]), "%s: list %u: id %u", c->on->name, r,
		              ids[j]);
		visible[ids[j]] = true;
	}
	for (uint32_t t = 0; t < n; t++) {
		const bool there = case_resident(c, r / x->ev.rows, t), kept = t < sel->pin || t >= n - recent;
		ck_assert_msg(there || !visible[t], "%s: list %u: token %u is gone", c->on->name, r, t);
		ck_assert_msg(!there || !kept || visible[t], "%s: list %u lacks token %u", c->on->name, r, t);
		want += there && kept;
		others += there && !kept;
		if (there && !kept && visible[t])
			least = fmin(least, weight[t]);
		else if (there && !kept)
			most = fmax(most, weight[t]);
	}
	want += others < k - recent ? others : k - recent;
	ck_assert_msg(x->count[r] == want && want <= x->list.max_count, "%s: list %u has %u, should have %u (of %u)",
	              c->on->name, r, x->count[r], want, x->list.max_count);
	ck_assert_msg(most <= least * (1 + slack) + 1e-30, "%s: list %u: %g is left, %g taken", c->on->name, r,
	              most, least);
}

/* The output of attention to the lists, in double precision. */
static void reference(const struct kernel_case *c, const struct chosen *x, double *out)
{
	const uint32_t dim = c->sh.head_dim, group = c->sh.n_heads / c->sh.n_kv_heads;
	float *q = case_q(c, c->on);
	double *weight = malloc(c->max_len * sizeof *weight);
	bool *visible = malloc(c->max_len);

	for (uint32_t r = 0; r < c->n * x->ev.rows; r++) {
		const uint32_t i = r / x->ev.rows, row = r % x->ev.rows, heads = c->sh.n_heads / x->ev.rows;
		weigh(c, q, x, i, row, weight);
		check_list(c, x, r, weight, visible);
		for (uint32_t head = row * heads; head < (row + 1) * heads; head++) {
			const size_t at = ((size_t)c->seq[i].row * c->sh.n_heads + head) * dim, h = head / group * dim;
			ref_attention(q + at, c->k[i] + h, c->v[i] + h, c->seq[i].len, c->sh.n_kv_heads * dim, dim,
			              case_softmax(c, head), visible, out + at, NULL);
		}
	}
	free(q);
	free(weight);
	free(visible);
}

/* ---- the tests ------------------------------------------------------------------------------- */

/* A device keeps scores in 16 bits, up to about ten below the largest, and V hardly exceeds 4. */
static double tolerance(const struct kernel_case *c)
{
	return case_tolerance(c, c->on, TOLERANCE) + (c->on->device ? 4 * 10 * 0x1p-11 : 0);
}

/* The bits and lists are the same for any number of threads, in any batch, and with out = q. */
static void check_same(struct kernel_case *c, const struct chosen *first)
{
	const size_t floats = out_floats(c), bytes = floats * sizeof(float);
	const uint32_t rows = first->ev.rows;
	struct chosen x = {.ev = first->ev, .sel = first->sel};
	float *again = malloc(bytes);
	void *q = case_rows_to(c, c->q, floats), *mem = case_to(c, NULL, case_rows_bytes(c, floats));

	for (uint32_t i = 0; i < c->n; i++) {
		const struct skv_batch one = case_part(c, i, 1);
		run(c, &one, &x, q, mem, 1);
		for (uint32_t row = 0; row < rows; row++) {
			const uint32_t *ids = first->ids + (size_t)(i * rows + row) * first->list.stride;
			ck_assert_uint_eq(x.count[row], first->count[i * rows + row]);
			ck_assert_msg(!memcmp(x.ids + (size_t)row * x.list.stride, ids, x.count[row] * sizeof *ids),
			              "%s: another list for a sequence alone", c->on->name);
		}
	}
	case_rows_from(c, again, mem, floats);
	ck_assert_msg(!memcmp(again, first->out, bytes), "%s: other bits for a sequence alone", c->on->name);
	run(c, &c->batch, &x, q, q, 3);
	case_rows_from(c, again, q, floats);
	ck_assert_msg(!memcmp(again, first->out, bytes), "%s: other bits in the place of q", c->on->name);
	chosen_deinit(&x);
	free(again);
}

/* Copies of the case's sequences, so many that they share slots, with q and memory for the output. */
struct many {
	struct skv_batch batch;
	void *q, *mem;
	uint32_t from[MANY]; /* row of the original */
	size_t row;          /* floats */
	float *out;
};

static void many_init(struct many *m, struct kernel_case *c)
{
	struct skv_kseq *seq = calloc(MANY, sizeof *seq), *all = calloc(c->n, sizeof *all);
	m->row = (size_t)c->sh.n_heads * c->sh.head_dim;
	float *q = malloc(MANY * m->row * sizeof *q);

	case_from(c, all, c->batch.seq, c->n * sizeof *all);
	for (uint32_t i = 0; i < MANY; i++) {
		seq[i] = all[i % c->n];
		seq[i].row = i;
		m->from[i] = all[i % c->n].row;
		memcpy(q + i * m->row, c->q + m->from[i] * m->row, m->row * sizeof *q);
	}
	m->batch = (struct skv_batch){.seq = case_to(c, seq, MANY * sizeof *seq), .n = MANY, .max_len = c->max_len,
	                              .max_q = 1};
	m->q = case_rows_to(c, q, MANY * m->row);
	m->mem = case_to(c, NULL, case_rows_bytes(c, MANY * m->row));
	m->out = malloc(MANY * m->row * sizeof *m->out);
	free(seq);
	free(all);
	free(q);
}

static void check_rows(const struct kernel_case *c, const struct many *m, const float *want)
{
	case_rows_from(c, m->out, m->mem, MANY * m->row);
	for (uint32_t i = 0; i < MANY; i++)
		ck_assert_msg(!memcmp(m->out + i * m->row, want + m->from[i] * m->row, m->row * sizeof *want),
		              "%s: other bits for sequence %u of many", c->on->name, i);
}

static void check_many(struct kernel_case *c, const struct chosen *first)
{
	struct chosen x = {.ev = first->ev, .sel = first->sel};
	const uint32_t n = c->n;
	struct many m;

	many_init(&m, c);
	c->n = MANY; /* for the size of the workspace */
	run(c, &m.batch, &x, m.q, m.mem, 2);
	c->n = n;
	check_rows(c, &m, first->out);
	for (uint32_t r = 0; r < MANY * x.ev.rows; r++)
		ck_assert_uint_eq(x.count[r], first->count[r % (n * x.ev.rows)]);
	chosen_deinit(&x);
	free(m.out);
}

/* Runs a dense pass, and copies its attention scores to the host. */
static void run_dense(struct kernel_case *c, const struct skv_batch *b, const void *q, void *out, uint32_t rows,
                      float *weights)
{
	const uint32_t pages = skv_pages_of(c->max_len), stride = pages * SKV_PAGE_TOKENS;
	const size_t units = (size_t)b->n * rows * stride;
	struct skv_scores ev = {.rows = rows, .token_stride = stride, .page_stride = (pages + 3) / 4 * 4};
	struct skv_workspace w = case_work(c, 2);

	memset(weights, 0, units * sizeof *weights);
	ev.token = case_to(c, weights, units * sizeof *weights);
	c->on->kern->decode_dense(&c->sh, b, q, out, &ev, &w);
	case_work_done(c, &w);
	case_from(c, weights, ev.token, units * sizeof *weights);
}

static void check_many_dense(struct kernel_case *c, uint32_t rows)
{
	const size_t each = (size_t)rows * skv_pages_of(c->max_len) * SKV_PAGE_TOKENS, floats = out_floats(c);
	const uint32_t n = c->n;
	float *few = malloc(n * each * sizeof *few), *lots = malloc(MANY * each * sizeof *lots);
	float *out = malloc(floats * sizeof *out);
	void *q = case_rows_to(c, c->q, floats), *mem = case_to(c, NULL, case_rows_bytes(c, floats));
	struct many m;

	many_init(&m, c);
	run_dense(c, &c->batch, q, mem, rows, few);
	case_rows_from(c, out, mem, floats);
	c->n = MANY;
	run_dense(c, &m.batch, m.q, m.mem, rows, lots);
	c->n = n;
	check_rows(c, &m, out);
	for (uint32_t i = 0; i < MANY; i++)
		ck_assert_msg(!memcmp(lots + i * each, few + i % n * each, each * sizeof *few),
		              "%s: other weights for sequence %u of many", c->on->name, i);
	free(few);
	free(lots);
	free(out);
	free(m.out);
}

static void check(struct kernel_case *c, struct chosen *x, bool many)
{
	const size_t floats = out_floats(c);
	double *ref = malloc(floats * sizeof *ref);

	x->out = malloc(floats * sizeof *x->out);
	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		if (!case_load(c, b))
			continue;
		void *q = case_rows_to(c, c->q, floats), *mem = case_to(c, NULL, case_rows_bytes(c, floats));
		run(c, &c->batch, x, q, mem, 1);
		case_rows_from(c, x->out, mem, floats);
		reference(c, x, ref);
		case_compare(b->name, x->out, ref, floats, tolerance(c), 0);
		check_same(c, x);
		if (many || (b->device && c->max_len < 2000)) {
			check_many(c, x);
			check_many_dense(c, x->ev.rows);
		}
		case_off(c);
	}
	free(ref);
	chosen_deinit(x);
}

static struct skv_select random_select(uint32_t longest)
{
	struct skv_select sel = {.pin = rnd_below(3) ? 0 : rnd_below(20), .recent_floor = rnd_below(3)};
	if (rnd_below(2))
		sel.budget.share = (float)(0.02 + 0.5 * rnd_unit());
	else
		sel.budget.count = 1 + rnd_below(longest);
	return sel;
}

START_TEST(of_all_shapes)
{
	const uint32_t len[SEQS] = {1, 17, 48, 300 + rnd_below(400), 2 + rnd_below(200)};
	struct kernel_case c;

	rnd_begin((uint64_t)_i);
	case_of_shape(&c, _i, SEQS, len, ones);
	if (_i % 2)
		case_punch(&c, 5);
	for (uint32_t rows = 0; rows < 2; rows++) {
		struct chosen x = {.ev = {.rows = rows ? c.sh.n_kv_heads : 1, .sum = (_i + rows) & 2},
		                   .sel = random_select(700)};
		check(&c, &x, _i % 8 == 0); /* only devices have slots */
	}
	case_deinit(&c);
}
END_TEST

/* Several chunks of a device, some of them empty. */
START_TEST(of_long_sequences)
{
	const uint32_t len[] = {9000 + rnd_below(100), 4096, 5000};
	struct kernel_case c;

	rnd_begin((uint64_t)_i);
	case_init(&c, _i % 2 ? SKV_F16 : SKV_BF16, 6, 2, 64, 3, len, ones);
	for (uint32_t p = 0; p < 256 && _i > 1; p++)
		c.table[2][p] = skv_pte_make(SKV_PTE_HOLE, p);
	for (uint32_t way = 0; way < 2; way++) {
		struct chosen x = {.ev = {.rows = way ? 2 : 1, .sum = _i % 2}, .sel = random_select(5000)};
		check(&c, &x, false);
	}
	case_deinit(&c);
}
END_TEST

/* So long that a device without thread block clusters has room for a list's keys only in the buffer of scores. */
START_TEST(of_very_long_ones)
{
	const uint32_t len[] = {37000 + rnd_below(1000), 36864, 100};
	struct kernel_case c;

	case_init(&c, SKV_BF16, 2, 1, 64, 3, len, ones);
	check(&c, &(struct chosen){.ev.rows = 1, .sel = random_select(20000)}, false);
	case_deinit(&c);
}
END_TEST

int main(void)
{
	Suite *s = case_suite("test-select-stream");
	TCase *t = add_case(s, "all", 60, NULL, NULL, of_very_long_ones, NULL);

	add_cases(t, of_all_shapes, rnd_hurried() ? 3 : CASE_SHAPES);
	add_cases(t, of_long_sequences, rnd_hurried() ? 1 : 4);
	return run_suite(s);
}
