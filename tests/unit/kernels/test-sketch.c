/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/unit/kernels/test-sketch.c - sketches of keys, code by code, and scores by them, on every backend of this
 * machine. Sketches are made in various calls, with holes and with missing state pages.
 */
#include <check.h>
#include <math.h>
#include <string.h>

#include "tests/ref/attention.h"
#include "tests/support/kernel-case.h"
#include "tests/support/suite.h"

#define SHAPES 9
#define BITS 4

static const uint32_t ones[CASE_SEQS] = {1, 1, 1, 1, 1, 1, 1, 1};

/* Copies the key of token `from` to token `to`. */
static void repeat_key(struct kernel_case *c, uint32_t i, uint32_t from, uint32_t to)
{
	const uint32_t row = c->sh.n_kv_heads * c->sh.head_dim;

	memcpy(c->k[i] + (size_t)to * row, c->k[i] + (size_t)from * row, row * sizeof(float));
	memcpy(c->k_in[i] + (size_t)to * row, c->k_in[i] + (size_t)from * row, row * sizeof(float));
}

/*
 * Lengths before and after the first page is full, around a state page, and a longer sequence. Some keys are equal.
 * There are as many state pages as the bits require.
 */
static bool sketch_case(struct kernel_case *c, const struct test_backend *on, int loop, bool holes, uint32_t longest)
{
	static const struct {
		uint32_t heads, kv_heads, dim;
	} shapes[SHAPES] = {{8, 2, 128}, {1, 1, 32}, {6, 2, 64}, {7, 1, 96}, {12, 2, 128}, {10, 1, 256}, {3, 3, 64}, {8, 8, 160}, {64, 1, 32}};
	static const uint32_t some[] = {1, 15, 16, 17, 31, 256, 257};
	uint32_t len[CASE_SEQS], tokens;

	rnd_begin((uint64_t)loop);
	for (uint32_t i = 0; i < CASE_SEQS; i++)
		len[i] = i < 4 ? some[rnd_below(7)] : 1 + rnd_below(i < 7 ? 60 : longest);
	case_init(c, (uint32_t)loop % 3, shapes[loop / BITS].heads, shapes[loop / BITS].kv_heads, shapes[loop / BITS].dim, CASE_SEQS, len, ones);
	for (uint32_t n = longest > 900 ? len[7] / 8 : 0; n > 0; n--) /* a sequence with equal keys */
		repeat_key(c, 7, rnd_below(len[7]), rnd_below(len[7]));
	c->sh.sketch_bits = 1 + (uint32_t)loop % BITS;
	tokens = skv_sketch_tokens(&c->sh);
	if (holes)
		case_punch(c, 5);
	for (uint32_t i = 0; i < c->n; i++)
		for (uint32_t p = 0; p * tokens < len[i]; p++) {
			if (p >= skv_pages_of(skv_pages_of(len[i])))
				c->state[i][p] = skv_pte_make(SKV_PTE_PRIVATE, c->pool_pages++);
			if (holes && !rnd_below(6))
				c->state[i][p] = skv_pte_make(SKV_PTE_NONE, 0);
		}
	return case_load(c, on);
}

/* Makes the sketches of the last n[i] tokens up to len[i], whose rows are in their pages. */
static void update(struct kernel_case *c, const uint32_t *len, const uint32_t *n)
{
	struct skv_kseq seq[CASE_SEQS];
	struct skv_batch b = c->batch;
	struct skv_workspace w = case_work(c, 2);

	case_from(c, seq, c->batch.seq, c->n * sizeof *seq);
	for (uint32_t i = 0; i < c->n; i++) {
		seq[i].len = len[i];
		seq[i].n_state = n[i];
		b.max_state = n[i] > b.max_state ? n[i] : b.max_state;
	}
	b.seq = case_to(c, seq, c->n * sizeof *seq);
	c->on->kern->update_sketches(&c->sh, &b, &w);
	case_work_done(c, &w);
}

/* Makes all sketches, in calls of up to `most` tokens. */
static void update_all(struct kernel_case *c, uint32_t most)
{
	uint32_t len[CASE_SEQS] = {0}, n[CASE_SEQS];

	for (bool more = true; more;) {
		more = false;
		for (uint32_t i = 0; i < c->n; i++) {
			const uint32_t left = c->seq[i].len - len[i];
			n[i] = most < left ? 1 + rnd_below(most) : left;
			len[i] += n[i];
			more |= len[i] < c->seq[i].len;
		}
		update(c, len, n);
	}
}

/* ---- the reference --------------------------------------------------------------------------- */

/* Rotates row by row: elements of the Hadamard matrix have the sign of the parity of i & j. */
static void turn(uint32_t dim, const double *x, double *ret)
{
	const uint32_t block = dim & -dim;

	for (uint32_t i = 0; i < dim; i++) {
		ret[i] = 0;
		for (uint32_t j = i / block * block; j < (i / block + 1) * block; j++) {
			const bool minus = __builtin_parity(i % block & j % block) ^ skv_sketch_flips(j);
			ret[i] += (minus ? -x[j] : x[j]) / sqrt(block);
		}
	}
}

static void key_of(const struct kernel_case *c, uint32_t i, uint32_t h, uint32_t t, double *ret)
{
	const uint32_t dim = c->sh.head_dim, stride = c->sh.n_kv_heads * dim;
	double x[SKV_MAX_HEAD_DIM];

	for (uint32_t d = 0; d < dim; d++) {
		x[d] = c->k[i][(size_t)t * stride + h * dim + d];
		for (uint32_t j = 0; j < SKV_PAGE_TOKENS && case_resident(c, i, 0); j++)
			x[d] -= c->k[i][(size_t)j * stride + h * dim + d] / SKV_PAGE_TOKENS;
	}
	turn(dim, x, ret);
}

/* Reads a code from its row. */
static uint32_t code_at(const uint8_t *row, uint32_t dim, uint32_t bits, uint32_t d)
{
	const uint32_t width = bits == 3 ? 2 : bits, stride = dim * width / 8;
	const uint32_t low = row[d % stride] >> d / stride * width & ((1u << width) - 1);

	return bits == 3 ? low | (row[dim / 4 + d % (dim / 8)] >> d / (dim / 8) & 1u) << 2 : low;
}

static bool sketched(const struct kernel_case *c, uint32_t i, uint32_t t)
{
	return case_resident(c, i, t) && skv_pte_resident(c->state[i][t / skv_sketch_tokens(&c->sh)]);
}

/* Checks a token's codes and scale for a head, and returns the values that they give. */
static void check_token(const struct kernel_case *c, const uint8_t *page, uint32_t i, uint32_t h, uint32_t t, double *ret)
{
	static const double steps[] = {0, 0, 1, 0.586, 0.335};
	const uint32_t dim = c->sh.head_dim, bits = c->sh.sketch_bits, tokens = skv_sketch_tokens(&c->sh);
	const uint8_t *of_head = page + h * skv_head_room(&c->sh), *row = of_head + t % tokens * skv_sketch_row(&c->sh);
	double k[SKV_MAX_HEAD_DIM], squares = 0, dot = 0, norm = 0, scale, half = 1 << (bits - 1);

	key_of(c, i, h, t, k);
	for (uint32_t d = 0; d < dim; d++)
		squares += k[d] * k[d];
	for (uint32_t d = 0; d < dim; d++) {
		const double step = steps[bits] * sqrt(squares / dim), v = code_at(row, dim, bits, d) + 0.5 - half;
		/* the nearest value, or one that is as near */
		const double off = bits == 1 ? (k[d] > 1e-5) - (v > 0) : fmin(fmax(k[d] / step, 0.5 - half), half - 0.5) - v;

		if (fabs(k[d]) > 1e-5 && !(fabs(off) < 0.5 + 1e-3))
			ck_abort_msg("sequence %u, token %u, head %u, element %u: %g is %g of steps of %g", i, t, h, d, v, k[d] / step, step);
		dot += k[d] * v;
		norm += v * v;
		ret[d] = v;
	}
	scale = ref_load(SKV_BF16, of_head + (size_t)tokens * skv_sketch_row(&c->sh) + t % tokens * 2);
	ck_assert_msg(fabs(scale - dot / norm) <= 0x1p-8 * fabs(scale) + 1e-6, "scale %g, expected %g", scale, dot / norm);
	for (uint32_t d = 0; d < dim; d++)
		ret[d] *= scale;
}

/*
 * Natural logarithm of a head's denominator, from the scores of a sample of 256 evenly spaced pairs of tokens; 0 if
 * none of them has a score.
 */
static double denominator_of(const struct kernel_case *c, uint32_t head, uint32_t len, const double *score, double max)
{
	const uint32_t all = (len + 1) / 2, pairs = all < 256 ? all : 256;
	double sum = 0;

	for (uint32_t p = 0; p < pairs; p++)
		for (uint32_t t = 0; t < 2; t++) {
			const uint32_t token = 2 * (uint32_t)((uint64_t)p * all / pairs) + t;
			sum += token < len && score[token] > -INFINITY ? exp(score[token] - max) : 0;
		}
	if (sum == 0)
		return 0;
	return max + log(sum * (len <= 512 ? 1 : len / 512.0) + ref_sink(case_softmax(c, head), max));
}

/* Is x halfway between two integers? */
static bool halfway(double x)
{
	return fabs(fabs(x - rint(x)) - 0.5) < 1e-4;
}

/*
 * Softmax weights of all tokens for a q head, from the values of their sketches. Returns the tolerance of a weight's
 * logarithm, because an element of the query may be rounded either way.
 */
static double weights_of(const struct kernel_case *c, uint32_t i, uint32_t head, const double *values, double *ret)
{
	const uint32_t dim = c->sh.head_dim, stride = c->sh.n_kv_heads * dim, h = head / (c->sh.n_heads / c->sh.n_kv_heads), len = c->seq[i].len;
	const float *q = c->q + ((size_t)c->seq[i].row * c->sh.n_heads + head) * dim;
	double x[SKV_MAX_HEAD_DIM], r[SKV_MAX_HEAD_DIM], most = 0, base = 0, max = -INFINITY, doubt = 0;

	for (uint32_t d = 0; d < dim; d++) {
		x[d] = ref_round(c->sh.io_dtype, q[d]);
		for (uint32_t j = 0; j < SKV_PAGE_TOKENS && len >= SKV_PAGE_TOKENS && case_resident(c, i, 0); j++)
			base += x[d] * c->k[i][(size_t)j * stride + h * dim + d] / SKV_PAGE_TOKENS;
	}
	turn(dim, x, r);
	for (uint32_t d = 0; d < dim; d++)
		most = fmax(most, fabs(r[d]));
	for (uint32_t t = 0; t < len; t++) {
		double dot = base, either = 0;
		for (uint32_t d = 0; d < dim; d++) {
			const double value = values[(size_t)t * dim + d] * most / 127;
			dot += rint(r[d] * 127 / most) * value;
			either += halfway(r[d] * 127 / most) ? fabs(value) : 0;
		}
		doubt = fmax(doubt, sketched(c, i, t) ? either * case_softmax(c, head).scale : 0);
		ret[t] = sketched(c, i, t) ? ref_score(case_softmax(c, head), dot) : -INFINITY;
		max = fmax(max, ret[t]);
	}
	const double lse = denominator_of(c, head, len, ret, max);
	for (uint32_t t = 0; t < len; t++)
		ret[t] = ret[t] > -INFINITY ? exp(ret[t] - lse) : 0;
	return 2 * doubt; /* of the score, and of the denominator */
}

/* Weights of tokens, and their sums over pages; either may be NULL. */
struct got {
	uint32_t rows, stride; /* of tokens; that of pages is a sixteenth */
	bool sum;
	const float *token, *page;
};

static void check_sequence(const struct kernel_case *c, uint32_t i, const struct got *got)
{
	const uint32_t rows = got->rows, stride = got->stride;
	const uint32_t len = c->seq[i].len, dim = c->sh.head_dim, heads = c->sh.n_heads, group = heads / c->sh.n_kv_heads;
	double *values = calloc((size_t)len * dim, sizeof *values), *weight = calloc(len, sizeof *weight);
	double *want = calloc((size_t)rows * stride, sizeof *want), page_sum[4096], slack = 1e-3;
	uint8_t *page = malloc(c->sh.page_bytes);

	for (uint32_t head = 0; head < heads; head++) {
		for (uint32_t t = 0; t < len && head % group == 0 && len >= SKV_PAGE_TOKENS; t++) {
			const skv_pte e = c->state[i][t / skv_sketch_tokens(&c->sh)];
			if (!sketched(c, i, t))
				continue;
			case_from(c, page, c->sh.pool + skv_pte_id(e) * c->sh.page_bytes, c->sh.page_bytes);
			check_token(c, page, i, head / group, t, values + (size_t)t * dim);
		}
		slack = fmax(slack, 1e-3 + expm1(weights_of(c, i, head, values, weight)));
		for (uint32_t t = 0; t < len; t++) {
			double *to = &want[(size_t)(head / (heads / rows)) * stride + t];
			*to = len < SKV_PAGE_TOKENS ? 1 : got->sum ? *to + weight[t] : fmax(*to, weight[t]);
		}
	}
	for (size_t r = 0; r < (size_t)rows; r++) {
		const double *of_row = want + r * stride;
		if (got->token)
			case_compare("weights", got->token + ((size_t)i * rows + r) * stride, of_row, skv_pages_of(len) * SKV_PAGE_TOKENS, 1e-4 * heads, slack);
		for (uint32_t p = 0; p < skv_pages_of(len); p++) {
			page_sum[p] = 0;
			for (uint32_t t = 0; t < SKV_PAGE_TOKENS; t++)
				page_sum[p] += of_row[p * SKV_PAGE_TOKENS + t];
		}
		if (got->page)
			case_compare("pages", got->page + ((size_t)i * rows + r) * (stride / SKV_PAGE_TOKENS), page_sum, skv_pages_of(len), 1e-4 * heads, slack);
	}
	free(values);
	free(weight);
	free(want);
	free(page);
}

/* ---- tests ----------------------------------------------------------------------------------- */

START_TEST(as_reference)
{
	struct kernel_case c;

	for (const struct test_backend *on = case_backends(); on->kern; on++) {
		if (!sketch_case(&c, on, _i, _i % 2, 900)) {
			case_deinit(&c);
			continue;
		}
		const uint32_t rows = _i % 3 == 0 ? 1 : _i % 3 == 1 ? c.sh.n_kv_heads : c.sh.n_heads, stride = (skv_pages_of(c.max_len) + 4) / 4 * 4 * SKV_PAGE_TOKENS;
		const size_t n = (size_t)c.n * rows * stride, pages = n / SKV_PAGE_TOKENS;
		struct skv_scores s = {.rows = rows, .sum = _i % 5 == 0, .token_stride = stride, .page_stride = stride / SKV_PAGE_TOKENS};
		float *token = _i % 4 < 3 ? malloc(n * sizeof *token) : NULL, *page = _i % 4 ? malloc(pages * sizeof *page) : NULL;
		struct skv_workspace w;

		update_all(&c, 1 + rnd_below(300));
		s.token = token ? case_to(&c, NULL, n * sizeof *token) : NULL;
		s.page = page ? case_to(&c, NULL, pages * sizeof *page) : NULL;
		w = case_work(&c, 2);
		on->kern->score_sketches(&c.sh, &c.batch, case_rows_to(&c, c.q, (size_t)c.rows * c.sh.n_heads * c.sh.head_dim), &s, &w);
		case_work_done(&c, &w);
		if (token)
			case_from(&c, token, s.token, n * sizeof *token);
		if (page)
			case_from(&c, page, s.page, pages * sizeof *page);
		for (uint32_t i = 0; i < c.n; i++)
			check_sequence(&c, i, &(struct got){rows, stride, s.sum, token, page});
		free(token);
		free(page);
		case_off(&c);
		case_deinit(&c);
	}
}
END_TEST

/*
 * Tokens with equal keys have equal weights, and equal pages have equal sums, wherever they are: selections depend on
 * that.
 */
START_TEST(equal_keys)
{
	struct kernel_case c;

	for (const struct test_backend *on = case_backends(); on->kern; on++) {
		if (!sketch_case(&c, on, _i, false, 900)) {
			case_deinit(&c);
			continue;
		}
		const uint32_t rows = c.sh.n_heads, row = c.sh.n_kv_heads * c.sh.head_dim, pages = skv_pages_of(c.max_len), stride = pages * SKV_PAGE_TOKENS;
		const size_t n = (size_t)c.n * rows * stride;
		struct skv_scores s = {.rows = rows, .token_stride = stride, .token = case_to(&c, NULL, n * sizeof(float)),
		                       .page_stride = pages, .page = case_to(&c, NULL, n / SKV_PAGE_TOKENS * sizeof(float))};
		float *got = malloc(n * sizeof *got), *sum = malloc(n / SKV_PAGE_TOKENS * sizeof *sum);
		struct skv_workspace w;

		for (uint32_t i = 0; i < c.n; i++) /* all pages equal the first one */
			for (uint32_t t = SKV_PAGE_TOKENS; t < c.seq[i].len; t++)
				memcpy(c.k_in[i] + (size_t)t * row, c.k_in[i] + (size_t)(t % SKV_PAGE_TOKENS) * row, row * sizeof(float));
		case_append(&c, 400, 1);
		update_all(&c, UINT32_MAX);
		w = case_work(&c, 2);
		on->kern->score_sketches(&c.sh, &c.batch, case_rows_to(&c, c.q, (size_t)c.rows * rows * c.sh.head_dim), &s, &w);
		case_work_done(&c, &w);
		case_from(&c, got, s.token, n * sizeof *got);
		case_from(&c, sum, s.page, n / SKV_PAGE_TOKENS * sizeof *sum);
		for (uint32_t list = 0; list < c.n * rows; list++) {
			const uint32_t len = c.seq[list / rows].len;
			for (uint32_t t = SKV_PAGE_TOKENS; t < len; t++)
				ck_assert(got[(size_t)list * stride + t] == got[(size_t)list * stride + t % SKV_PAGE_TOKENS]);
			for (uint32_t p = 1; p < len / SKV_PAGE_TOKENS; p++)
				ck_assert(sum[(size_t)list * pages + p] == sum[(size_t)list * pages]);
		}
		free(got);
		free(sum);
		case_off(&c);
		case_deinit(&c);
	}
}
END_TEST

/* Sketches are the same, byte for byte, however tokens are split into calls. */
START_TEST(cuts_do_not_matter)
{
	struct kernel_case c;

	for (const struct test_backend *on = case_backends(); on->kern; on++) {
		if (!sketch_case(&c, on, _i, false, 900)) {
			case_deinit(&c);
			continue;
		}
		const size_t bytes = c.pool_pages * c.sh.page_bytes;
		uint8_t *once = malloc(bytes), *cut = malloc(bytes);

		update_all(&c, UINT32_MAX);
		case_from(&c, once, c.sh.pool, bytes);
		update_all(&c, 1 + rnd_below(40));
		case_from(&c, cut, c.sh.pool, bytes);
		ck_assert_int_eq(memcmp(once, cut, bytes), 0);
		case_append(&c, 1 + rnd_below(70), 2);
		case_from(&c, cut, c.sh.pool, bytes);
		ck_assert_int_eq(memcmp(once, cut, bytes), 0);
		free(once);
		free(cut);
		case_off(&c);
		case_deinit(&c);
	}
}
END_TEST

/* ---- scores and selection at once ------------------------------------------------------------------ */

static struct skv_select any_select(uint32_t len)
{
	struct skv_select s = {.floor = 16, .recent = 1 + rnd_below(40), .pin = rnd_below(3) ? 0 : rnd_below(70)};

	if (rnd_below(3))
		s.budget.share = (float)(1 + rnd_below(600)) / 1000;
	else
		s.budget.count = 16 + rnd_below(len + 40);
	return s;
}

/*
 * A list has the tokens that are selected in any case, and as many of the rest as are wanted. None of these weighs less
 * than an unselected one by more than 2^-9, which allows for the resolution of keys. Of equal weights, the first are
 * listed.
 */
static void check_list(const struct kernel_case *c, const struct skv_select *s, uint32_t i, const float *weight,
                       const uint32_t *ids, uint32_t n)
{
	const struct skv_topk_counts x = skv_topk_counts_of(s, c->seq[i].len);
	uint32_t least_at = 0, most_at = 0, others = 0, rest = 0;
	float least = INFINITY, most = -INFINITY;

	for (uint32_t t = 0, at = 0; t < x.n; t++) {
		const bool taken = at < n && ids[at] == t, anyway = t < x.pin || t >= x.n - x.recent;

		at += taken;
		ck_assert_msg(!taken || case_resident(c, i, t), "token %u is evicted", t);
		if (anyway || !case_resident(c, i, t)) {
			ck_assert_msg(taken == case_resident(c, i, t), "token %u of %u is to be selected", t, x.n);
			continue;
		}
		others += taken;
		rest += !taken;
		if (taken && weight[t] <= least) {
			least = weight[t];
			least_at = t; /* the last one of equals */
		}
		if (!taken && weight[t] > most) {
			most = weight[t];
			most_at = t; /* the first one */
		}
		ck_assert_msg(t + 1 < x.n || at == n, "%u of %u ids are ascending tokens", at, n);
	}
	ck_assert_msg(rest == 0 ? others <= x.want : others == x.want, "%u are selected, %u left, expected %u", others, rest, x.want);
	if (others == 0 || rest == 0)
		return;
	ck_assert_msg(least >= most * (1 - 0x1p-9f) || most * (float)x.n < 0x1p-30f, "token %u of %g is selected, %u of %g is not", least_at, least, most_at, most);
	ck_assert_msg(least != most || least_at < most_at, "of equals, token %u is selected, %u is not", least_at, most_at);
}

START_TEST(selected_at_once)
{
	struct kernel_case c;

	for (const struct test_backend *on = case_backends(); on->kern; on++) {
		if (!on->kern->select_sketches || !sketch_case(&c, on, _i, _i % 2, _i % 4 ? 9000 : 40000)) {
			if (on->kern->select_sketches)
				case_deinit(&c);
			continue;
		}
		const uint32_t rows = c.sh.n_kv_heads, stride = (skv_pages_of(c.max_len) + 1) * SKV_PAGE_TOKENS;
		const size_t n = (size_t)c.n * rows * stride;
		const struct skv_select sel = any_select(c.seq[7].len);
		struct skv_scores s = {.rows = rows, .sum = _i % 3 == 0, .token_stride = stride, .token = case_to(&c, NULL, n * sizeof(float))};
		struct skv_index_list list = {.rows = rows, .stride = stride, .ids = case_to(&c, NULL, n * sizeof(uint32_t)),
		                              .count = case_to(&c, NULL, (size_t)c.n * rows * sizeof(uint32_t))};
		void *q = case_rows_to(&c, c.q, (size_t)c.rows * c.sh.n_heads * c.sh.head_dim);
		uint32_t *ids = malloc(n * sizeof *ids), count[CASE_SEQS * SKV_MAX_HEADS];
		float *weight = malloc(n * sizeof *weight);

		for (int again = 0; again < 2; again++) { /* calls leave the workspace as it was */
			struct skv_workspace w = case_work(&c, 2);
			on->kern->score_sketches(&c.sh, &c.batch, q, &s, &w);
			on->kern->select_sketches(&c.sh, &c.batch, q, s.sum, &sel, &list, &w);
			on->kern->select_sketches(&c.sh, &c.batch, q, s.sum, &sel, &list, &w);
			case_work_done(&c, &w);
		}
		case_from(&c, weight, s.token, n * sizeof *weight);
		case_from(&c, ids, list.ids, n * sizeof *ids);
		case_from(&c, count, list.count, (size_t)c.n * rows * sizeof *count);
		for (uint32_t l = 0; l < c.n * rows; l++) {
			ck_assert_uint_le(count[l], list.max_count);
			check_list(&c, &sel, l / rows, weight + (size_t)l * stride, ids + (size_t)l * stride, count[l]);
		}
		free(ids);
		free(weight);
		case_off(&c);
		case_deinit(&c);
	}
}
END_TEST

int main(void)
{
	Suite *s = case_suite("test-sketch");
	TCase *t = add_case(s, "sketches", 120, NULL, NULL, NULL);

	int cases = rnd_hurried() ? BITS : SHAPES * BITS;

	add_cases(t, as_reference, cases);
	add_cases(t, equal_keys, cases);
	add_cases(t, cuts_do_not_matter, cases);
	add_cases(t, selected_at_once, cases);
	return run_suite(s);
}
