/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/unit/kernels/test-decode-sketches.c - values of 2 bits, code by code, and attention to listed tokens by K and V
 * and to all others by sketches and these values, on every backend of this machine that has decode_sketches(). The
 * scores of sketches are those of score_sketches(), which test-sketch.c checks.
 */
#include <check.h>
#include <math.h>
#include <string.h>

#include "tests/ref/attention.h"
#include "tests/support/kernel-case.h"
#include "tests/support/suite.h"

#define SHAPES 7
#define LISTS 3
#define LONGEST 500u /* in longer sequences score_sketches() estimates denominators */

static const uint32_t ones[CASE_SEQS] = {1, 1, 1, 1, 1, 1, 1, 1};

static bool sketches_case(struct kernel_case *c, const struct test_backend *on, int loop, bool holes)
{
	static const struct {
		uint32_t heads, kv_heads, dim;
	} shapes[SHAPES] = {{8, 2, 128}, {1, 1, 32}, {6, 2, 64}, {7, 1, 96}, {10, 1, 256}, {3, 3, 64}, {8, 8, 160}};
	static const uint32_t some[] = {1, 15, 16, 17, 31, 256, 257};
	uint32_t len[CASE_SEQS];

	rnd_begin((uint64_t)loop);
	for (uint32_t i = 0; i < CASE_SEQS; i++)
		len[i] = i < 4 ? some[rnd_below(7)] : 1 + rnd_below(i < 7 ? 60 : LONGEST);
	case_init(c, (uint32_t)loop % 4, shapes[loop / LISTS].heads, shapes[loop / LISTS].kv_heads, shapes[loop / LISTS].dim, CASE_SEQS, len, ones);
	c->sh.sketch_bits = 1 + rnd_below(4);
	c->sh.value_bits = 2;
	if (holes)
		case_punch(c, 5);
	for (uint32_t i = 0; i < c->n; i++)
		for (uint32_t p = 0; p * skv_sketch_tokens(&c->sh) < len[i]; p++) {
			if (p >= skv_pages_of(skv_pages_of(len[i])))
				c->state[i][p] = skv_pte_make(SKV_PTE_PRIVATE, c->pool_pages++);
			if (holes && !rnd_below(6))
				c->state[i][p] = skv_pte_make(SKV_PTE_NONE, 0);
		}
	return on->kern->decode_sketches && case_load(c, on);
}

/* Has the token a sketch? */
static bool sketched(const struct kernel_case *c, uint32_t i, uint32_t t)
{
	return c->seq[i].len >= SKV_PAGE_TOKENS && case_resident(c, i, t) &&
	       skv_pte_resident(c->state[i][t / skv_sketch_tokens(&c->sh)]);
}

/* ---- values ---------------------------------------------------------------------------------- */

static const float *value_row(const struct kernel_case *c, uint32_t i, uint32_t h, uint32_t t)
{
	return c->v[i] + ((size_t)t * c->sh.n_kv_heads + h) * c->sh.head_dim;
}

/* Checks the least value and the step of a group of 32 elements. */
static void check_steps(const float *v, const double *least_step)
{
	float least = v[0], most = v[0];

	for (uint32_t d = 1; d < SKV_VALUE_GROUP; d++) {
		least = fminf(least, v[d]);
		most = fmaxf(most, v[d]);
	}
	ck_assert(least_step[0] == ref_round(SKV_BF16, least));
	ck_assert(least_step[1] == ref_round(SKV_BF16, (most - least) / 3));
}

/* Reads a token's value of 2 bits, and checks it against the value row. */
static void load_value(const struct kernel_case *c, uint32_t i, uint32_t h, uint32_t t, double *ret)
{
	const uint32_t dim = c->sh.head_dim, tokens = skv_sketch_tokens(&c->sh), stride = dim / 4, at = t % tokens;
	uint8_t *page = malloc(c->sh.page_bytes);
	const uint8_t *codes = page + h * skv_head_room(&c->sh) + (size_t)tokens * (skv_sketch_row(&c->sh) + 2) + at * stride;
	const uint8_t *steps = page + h * skv_head_room(&c->sh) + (size_t)tokens * (skv_sketch_row(&c->sh) + 2 + stride) + at * (dim / 8);
	const float *v = value_row(c, i, h, t);

	case_from(c, page, c->sh.pool + skv_pte_id(c->state[i][t / tokens]) * c->sh.page_bytes, c->sh.page_bytes);
	for (uint32_t d = 0; d < dim; d++) {
		const uint8_t *of_group = steps + d / SKV_VALUE_GROUP * 4;
		const double of[2] = {ref_load(SKV_BF16, of_group), ref_load(SKV_BF16, of_group + 2)};
		const uint32_t code = codes[d % stride] >> d / stride * 2 & 3;

		if (d % SKV_VALUE_GROUP == 0)
			check_steps(v + d, of);
		ret[d] = of[0] + code * of[1];
		/* the nearest, or one that is as near; the rounding of the steps may leave the largest element beyond them */
		ck_assert_msg(fabs(v[d] - ret[d]) <= of[1] * (0.5 + 1e-3) || (code == 3 && v[d] > ret[d]) || (code == 0 && v[d] < ret[d]),
		              "sequence %u, token %u, head %u, element %u: %g, expected %g", i, t, h, d, ret[d], v[d]);
	}
	free(page);
}

/* Values are the same, byte for byte, however tokens are split into calls. */
START_TEST(cuts_do_not_matter)
{
	struct kernel_case c;

	for (const struct test_backend *on = case_backends(); on->kern; on++) {
		if (sketches_case(&c, on, _i, false)) {
			const size_t bytes = c.pool_pages * c.sh.page_bytes;
			uint8_t *once = malloc(bytes), *cut = malloc(bytes);

			case_from(&c, once, c.sh.pool, bytes);
			case_append(&c, 1 + rnd_below(40), 2);
			case_from(&c, cut, c.sh.pool, bytes);
			ck_assert_int_eq(memcmp(once, cut, bytes), 0);
			free(once);
			free(cut);
			case_off(&c);
		}
		case_deinit(&c);
	}
}
END_TEST

/* ---- attention ------------------------------------------------------------------------------- */

/* What the kernels are given and return, in host memory. */
struct sketched {
	struct kernel_case *c;
	void *q;
	uint32_t stride, rows;
	uint32_t *ids, *count; /* [seq][rows][stride], [seq][rows] */
	float *weight;         /* [seq][q head][stride]: softmax weights by sketches of all tokens that have one */
	float *out, *lse;      /* [row][q head][head_dim], [row][q head] */
};

static bool listed(const struct sketched *x, uint32_t i, uint32_t h, uint32_t t)
{
	const size_t row = (size_t)i * x->rows + (x->rows > 1 ? h : 0);

	for (uint32_t j = 0; j < x->count[row]; j++)
		if (x->ids[row * x->stride + j] == t)
			return true;
	return false;
}

/* Lists each resident token with a probability of percent / 100. */
static void make_lists(struct sketched *x, uint32_t percent)
{
	for (uint32_t row = 0; row < x->c->n * x->rows; row++) {
		const uint32_t i = row / x->rows;

		x->count[row] = 0;
		for (uint32_t t = 0; t < x->c->seq[i].len; t++)
			if (case_resident(x->c, i, t) && rnd_below(100) < percent)
				x->ids[(size_t)row * x->stride + x->count[row]++] = t;
	}
}

static void run(struct sketched *x)
{
	struct kernel_case *c = x->c;
	const size_t rows = (size_t)c->rows * c->sh.n_heads, n = (size_t)c->n * x->rows;
	void *out = case_to(c, NULL, case_rows_bytes(c, rows * c->sh.head_dim));
	const struct skv_index_list list = {
	        .rows = x->rows,
	        .stride = x->stride,
	        .ids = case_to(c, x->ids, n * x->stride * sizeof(uint32_t)),
	        .count = case_to(c, x->count, n * sizeof(uint32_t)),
	        .max_count = c->max_len,
	};
	struct skv_workspace w = case_work(c, 2);

	c->sh.lse = case_to(c, NULL, rows * sizeof(float));
	c->on->kern->decode_sketches(&c->sh, &c->batch, x->q, out, &list, &w);
	case_work_done(c, &w);
	case_rows_from(c, x->out, out, rows * c->sh.head_dim);
	case_from(c, x->lse, c->sh.lse, rows * sizeof(float));
}

static void weigh(struct sketched *x)
{
	struct kernel_case *c = x->c;
	const size_t n = (size_t)c->n * c->sh.n_heads * x->stride;
	const struct skv_scores s = {.rows = c->sh.n_heads, .token_stride = x->stride, .token = case_to(c, NULL, n * sizeof(float))};
	struct skv_workspace w = case_work(c, 2);

	c->on->kern->score_sketches(&c->sh, &c->batch, x->q, &s, &w);
	case_work_done(c, &w);
	case_from(c, x->weight, s.token, n * sizeof(float));
}

static double score_of(const struct kernel_case *c, uint32_t i, uint32_t head, uint32_t t)
{
	const uint32_t dim = c->sh.head_dim, h = head / (c->sh.n_heads / c->sh.n_kv_heads);
	const float *q = c->q + ((size_t)c->seq[i].row * c->sh.n_heads + head) * dim;
	double dot = 0;

	for (uint32_t d = 0; d < dim; d++)
		dot += (double)q[d] * c->k[i][((size_t)t * c->sh.n_kv_heads + h) * dim + d];
	return ref_score(case_softmax(c, head), dot);
}

/*
 * A q head's output over all tokens. sketch_lse: log-sum-exp of the scores of all tokens with a sketch, from a call that
 * listed none. Returns the log-sum-exp.
 */
static double expected_head(const struct sketched *x, uint32_t i, uint32_t head, double sketch_lse, double *ret)
{
	const struct kernel_case *c = x->c;
	const uint32_t dim = c->sh.head_dim, h = head / (c->sh.n_heads / c->sh.n_kv_heads);
	const double all = log(exp(sketch_lse) + ref_sink(case_softmax(c, head), 0));
	double max = -INFINITY, sum = 0, value[SKV_MAX_HEAD_DIM], *score = calloc(c->seq[i].len, sizeof *score);

	for (uint32_t t = 0; t < c->seq[i].len; t++) {
		const float w = x->weight[((size_t)i * c->sh.n_heads + head) * x->stride + t];

		score[t] = listed(x, i, h, t) ? score_of(c, i, head, t) : sketched(c, i, t) && w > 0 ? log(w) + all : -INFINITY;
		max = fmax(max, score[t]);
	}
	memset(ret, 0, dim * sizeof *ret);
	for (uint32_t t = 0; t < c->seq[i].len; t++) {
		if (score[t] == -INFINITY)
			continue;
		if (!listed(x, i, h, t))
			load_value(c, i, h, t, value);
		for (uint32_t d = 0; d < dim; d++)
			ret[d] += exp(score[t] - max) * (listed(x, i, h, t) ? value_row(c, i, h, t)[d] : value[d]);
		sum += exp(score[t] - max);
	}
	for (uint32_t d = 0; d < dim && sum > 0; d++)
		ret[d] /= sum + ref_sink(case_softmax(c, head), max);
	free(score);
	return sum > 0 ? max + log(sum) : -INFINITY;
}

static void check_outputs(const struct sketched *x, const float *sketch_lse)
{
	const struct kernel_case *c = x->c;
	double expected[SKV_MAX_HEAD_DIM], lse;

	for (uint32_t i = 0; i < c->n; i++)
		for (uint32_t head = 0; head < c->sh.n_heads; head++) {
			const size_t at = (size_t)c->seq[i].row * c->sh.n_heads + head;

			lse = expected_head(x, i, head, sketch_lse[at], expected);
			case_compare("outputs", x->out + at * c->sh.head_dim, expected, c->sh.head_dim, 1e-4, 1e-3);
			case_compare("log-sum-exp", &x->lse[at], &lse, 1, 1e-3, 1e-4);
		}
}

START_TEST(as_reference)
{
	static const uint32_t percents[LISTS] = {100, 30, 3};
	struct kernel_case c;

	for (const struct test_backend *on = case_backends(); on->kern; on++) {
		if (!sketches_case(&c, on, _i, _i % 2)) {
			case_deinit(&c);
			continue;
		}
		const uint32_t stride = (skv_pages_of(c.max_len) + 1) * SKV_PAGE_TOKENS, rows = _i % 5 ? c.sh.n_kv_heads : 1;
		const size_t heads = (size_t)c.rows * c.sh.n_heads;
		struct sketched x = {
		        .c = &c,
		        .q = case_rows_to(&c, c.q, heads * c.sh.head_dim),
		        .stride = stride,
		        .rows = rows,
		        .ids = calloc((size_t)c.n * rows * stride, sizeof *x.ids),
		        .count = calloc((size_t)c.n * rows, sizeof *x.count),
		        .weight = calloc((size_t)c.n * c.sh.n_heads * stride, sizeof *x.weight),
		        .out = calloc(heads * c.sh.head_dim, sizeof *x.out),
		        .lse = calloc(heads, sizeof *x.lse),
		};
		float *sketch_lse = calloc(heads, sizeof *sketch_lse);

		weigh(&x);
		run(&x);
		memcpy(sketch_lse, x.lse, heads * sizeof *sketch_lse);
		check_outputs(&x, sketch_lse);
		make_lists(&x, percents[_i % LISTS]);
		run(&x);
		check_outputs(&x, sketch_lse);
		free(x.ids);
		free(x.count);
		free(x.weight);
		free(x.out);
		free(x.lse);
		free(sketch_lse);
		case_off(&c);
		case_deinit(&c);
	}
}
END_TEST

int main(void)
{
	Suite *s = case_suite("test-decode-sketches");
	TCase *t = add_case(s, "decode", 120, NULL, NULL, NULL);

	add_cases(t, as_reference, SHAPES * LISTS);
	add_cases(t, cuts_do_not_matter, SHAPES * LISTS);
	return run_suite(s);
}
