/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/unit/kernels/test-select-recall.c - attention scores without output, and the share of them on a window or on
 * lists, on every backend of this machine.
 */
#include "tests/support/kernel-case.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <string.h>

static const uint32_t ones[CASE_SEQS] = {1, 1, 1, 1, 1, 1, 1, 1};

/* Weights that a backend computed: [seq][rows][stride]. */
struct weights {
	struct skv_scores ev; /* in the backend's memory */
	float *token, *page;
};

static struct weights weigh(struct kernel_case *c, uint32_t rows, const void *q, void *out)
{
	uint32_t pages = (skv_pages_of(c->max_len) + 3) / 4 * 4, tokens = pages * SKV_PAGE_TOKENS;
	struct weights w = {.ev = {.rows = rows, .sum = true, .token_stride = tokens, .page_stride = pages}};
	size_t n = (size_t)c->n * rows;
	struct skv_workspace work = case_work(c, 3);

	w.ev.token = case_to(c, NULL, n * tokens * sizeof *w.token);
	w.ev.page = case_to(c, NULL, n * pages * sizeof *w.page);
	c->on->kern->decode_dense(&c->sh, &c->batch, q, out, &w.ev, &work);
	case_work_done(c, &work);
	w.token = malloc(n * tokens * sizeof *w.token);
	w.page = malloc(n * pages * sizeof *w.page);
	case_from(c, w.token, w.ev.token, n * tokens * sizeof *w.token);
	case_from(c, w.page, w.ev.page, n * pages * sizeof *w.page);
	return w;
}

static void weights_free(struct weights *w)
{
	free(w->token);
	free(w->page);
}

/* Sums of these weights equal those of the pass, bit by bit. */
static void check_sums(struct kernel_case *c, uint32_t rows, const struct weights *w)
{
	const size_t n = (size_t)c->n * rows * w->ev.page_stride;
	struct skv_workspace work = case_work(c, 3);
	struct skv_scores again = w->ev;
	float *page = malloc(n * sizeof *page);

	memset(page, 0xff, n * sizeof *page);
	again.page = case_to(c, page, n * sizeof *page);
	c->on->kern->sum_pages(&c->batch, &again, &work);
	case_work_done(c, &work);
	case_from(c, page, again.page, n * sizeof *page);
	for (uint32_t r = 0; r < c->n * rows; r++)
		ck_assert_msg(!memcmp(page + (size_t)r * w->ev.page_stride, w->page + (size_t)r * w->ev.page_stride,
		                      skv_pages_of(c->seq[r / rows].len) * sizeof *page), "%s: row %u", c->on->name, r);
	free(page);
}

/* The weights are the same with and without output; without, no token counts as attended to. */
static void check_weights(struct kernel_case *c, uint32_t rows, const struct weights *w, const void *q)
{
	size_t width = (size_t)c->rows * c->sh.n_heads * c->sh.head_dim;
	uint64_t attended[CASE_SEQS];
	struct weights with;

	case_from(c, attended, c->attended, c->n * sizeof *attended);
	for (uint32_t i = 0; i < c->n; i++)
		ck_assert_uint_eq(attended[i], case_attended_before(i));
	with = weigh(c, rows, q, case_to(c, NULL, case_rows_bytes(c, width)));
	for (uint32_t r = 0; r < c->n * rows; r++) {
		uint32_t len = c->seq[r / rows].len;
		ck_assert(!memcmp(w->token + (size_t)r * w->ev.token_stride, with.token + (size_t)r * w->ev.token_stride,
		                  len * sizeof(float)));
		ck_assert(!memcmp(w->page + (size_t)r * w->ev.page_stride, with.page + (size_t)r * w->ev.page_stride,
		                  skv_pages_of(len) * sizeof(float)));
	}
	check_sums(c, rows, w);
	weights_free(&with);
}

static void check_recall(struct kernel_case *c, const struct weights *w, const struct skv_attended *seen, const double *want,
                         double tolerance, const char *what)
{
	float *ret = case_to(c, NULL, c->n * sizeof *ret), now[CASE_SEQS];
	struct skv_workspace work = case_work(c, 3);

	c->on->kern->recall(&c->sh, &c->batch, &w->ev, seen, ret, &work);
	case_work_done(c, &work);
	case_from(c, now, ret, sizeof *now * c->n);
	case_compare(what, now, want, c->n, tolerance, 0);
}

static void check_window(struct kernel_case *c, const struct weights *w, struct skv_window window)
{
	double want[CASE_SEQS] = {0};

	for (uint32_t i = 0; i < c->n; i++)
		for (uint32_t t = 0; t < c->seq[i].len; t++)
			if (t < window.sinks || t >= skv_window_start(&window, c->seq[i].len))
				want[i] += w->token[(size_t)i * w->ev.token_stride + t] / (double)c->sh.n_heads;
	check_recall(c, w, &(struct skv_attended){.window = &window}, want, 1e-5, "window");
	window.budget = (struct skv_budget){.count = c->max_len}; /* all tokens: 1, less the weight of learned sinks */
	for (uint32_t i = 0; i < c->n; i++) {
		want[i] = 0;
		for (uint32_t t = 0; t < c->seq[i].len; t++)
			want[i] += w->token[(size_t)i * w->ev.token_stride + t] / (double)c->sh.n_heads;
	}
	check_recall(c, w, &(struct skv_attended){.window = &window}, want, 1e-5 + case_weight_slack(c, c->on), "all");
}

/* Random ascending lists of units: one for each row of weights; with `mapped` rows read each other's lists. */
static void check_lists(struct kernel_case *c, const struct weights *w, bool tokens, bool mapped)
{
	uint32_t rows = w->ev.rows, stride = tokens ? w->ev.token_stride : w->ev.page_stride;
	uint32_t *ids = calloc((size_t)c->n * rows * stride, sizeof *ids), *count = calloc(c->n * rows, sizeof *count);
	const float *weight = tokens ? w->token : w->page;
	struct skv_index_list list = {.rows = rows, .stride = stride, .max_count = stride, .mapped = mapped};
	double want[CASE_SEQS] = {0};
	uint32_t one_in = 1 + rnd_below(8);

	for (uint32_t row = 0; mapped && row < rows; row++)
		list.map[row] = (uint8_t)rnd_below(rows);
	for (uint32_t r = 0; r < c->n * rows; r++)
		for (uint32_t u = 0; u < (tokens ? c->seq[r / rows].len : skv_pages_of(c->seq[r / rows].len)); u++)
			if (rnd_below(one_in) == 0)
				ids[(size_t)r * stride + count[r]++] = u;
	for (uint32_t r = 0; r < c->n * rows; r++) {
		size_t from = r / rows * rows + skv_index_list_row(&list, r % rows);

		for (uint32_t j = 0; j < count[from]; j++)
			want[r / rows] += weight[(size_t)r * stride + ids[from * stride + j]] / (double)c->sh.n_heads;
	}
	list.ids = case_to(c, ids, (size_t)c->n * rows * stride * sizeof *ids);
	list.count = case_to(c, count, (size_t)c->n * rows * sizeof *count);
	check_recall(c, w, &(struct skv_attended){.list = &list, .tokens = tokens}, want, 1e-5,
	             tokens ? "tokens" : "pages");
	free(ids);
	free(count);
}

START_TEST(random_cases)
{
	uint32_t len[] = {1, 15, 16, 17, 300, 2000};
	struct kernel_case c;

	rnd_begin((uint64_t)_i);
	len[4] += rnd_below(300);
	case_of_shape(&c, _i % CASE_SHAPES, 6, len, ones);
	if (_i % 3 == 0)
		case_punch(&c, 4);
	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		if (!case_load(&c, b))
			continue;
		const void *q = case_rows_to(&c, c.q, (size_t)c.rows * c.sh.n_heads * c.sh.head_dim);
		const uint32_t rows[] = {1, c.sh.n_kv_heads, c.sh.n_heads};
		const uint32_t sinks = rnd_below(20), size = 1 + rnd_below(100);

		for (int r = 0; r < 3; r++) {
			struct weights w = weigh(&c, rows[r], q, NULL);

			if (r == 0) {
				check_weights(&c, 1, &w, q);
				check_window(&c, &w, (struct skv_window){.sinks = sinks, .budget.count = size});
				check_window(&c, &w, (struct skv_window){.sinks = 4, .floor = 8, .budget.share = 0.3f});
			}
			for (int tokens = 0; tokens < 2; tokens++) {
				check_lists(&c, &w, tokens, false);
				if (r == 1)
					check_lists(&c, &w, tokens, true);
			}
			weights_free(&w);
		}
		case_off(&c);
	}
	case_deinit(&c);
}
END_TEST

int main(void)
{
	Suite *s = case_suite("test-select-recall");
	TCase *t = add_case(s, "all", 60, NULL, NULL, NULL);

	add_cases(t, random_cases, rnd_hurried() ? 3 : CASE_SHAPES);
	return run_suite(s);
}
