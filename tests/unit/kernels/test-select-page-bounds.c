/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/unit/kernels/test-select-page-bounds.c - bounds of pages, value by value, and scores by them, on every backend
 * of this machine. Bounds are made in various calls, over any previous contents of state pages, with holes and with
 * missing state pages.
 */
#include "tests/support/kernel-case.h"
#include "tests/ref/attention.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <string.h>

static const uint32_t ones[CASE_SEQS] = {1, 1, 1, 1, 1, 1, 1, 1};

/* Lengths of one page, and a token less or more; of one state page, and a token more; and random ones. */
static void random_lengths(uint32_t len[CASE_SEQS])
{
	static const uint32_t some[] = {1, 15, 16, 17, 256, 257};

	for (uint32_t i = 0; i < CASE_SEQS; i++)
		len[i] = i < 4 ? some[rnd_below(6)] : 1 + rnd_below(i < 7 ? 60 : 600);
}

/* A case of one of the shapes; `holes`: some pages and some state pages are missing. */
static void bounds_case(struct kernel_case *c, int shape, bool holes)
{
	uint32_t len[CASE_SEQS];

	random_lengths(len);
	case_of_shape(c, shape, CASE_SEQS, len, ones);
	if (!holes)
		return;
	case_punch(c, 5);
	for (uint32_t i = 0; i < c->n; i++)
		for (uint32_t p = 0; p < skv_pages_of(skv_pages_of(len[i])); p++)
			if (!rnd_below(6))
				c->state[i][p] = skv_pte_make(SKV_PTE_NONE, 0);
}

static bool bounded(const struct kernel_case *c, uint32_t i, uint32_t page)
{
	return skv_pte_resident(c->table[i][page]) && skv_pte_resident(c->state[i][page / SKV_PAGE_TOKENS]);
}

/* Makes the bounds of each sequence up to len[i], for its last n[i] tokens. */
static void update(struct kernel_case *c, const uint32_t *len, const uint32_t *n, int threads)
{
	struct skv_kseq seq[CASE_SEQS];
	struct skv_batch b = c->batch;
	struct skv_workspace w = case_work(c, threads);

	case_from(c, seq, c->batch.seq, c->n * sizeof *seq);
	b.max_state = rnd_below(20);
	for (uint32_t i = 0; i < c->n; i++) {
		seq[i].len = len[i];
		seq[i].n_state = n[i];
		b.max_state = n[i] > b.max_state ? n[i] : b.max_state;
	}
	b.seq = case_to(c, seq, c->n * sizeof *seq);
	c->on->kern->update_bounds(&c->sh, &b, NULL, &w);
	case_work_done(c, &w);
}

static void update_all(struct kernel_case *c)
{
	uint32_t len[CASE_SEQS];

	for (uint32_t i = 0; i < c->n; i++)
		len[i] = c->seq[i].len;
	update(c, len, len, 2);
}

/* ---- bounds ---------------------------------------------------------------------------------- */

/* Is x a bound, as tight as the dtype allows? In fp8 small numbers are in steps of 2^-9 of their row's unit. */
static bool is_bound(float x, float want, float unit, bool high)
{
	return fabsf(want) >= unit * 0x1p-6f ? x == want : (high ? x >= want : x <= want) && fabsf(x - want) < unit * 0x1p-9f;
}

/* Checks a row of a copy of a state page: minima or maxima of page `page` with this many tokens, of kv head h. */
static void check_row(const struct kernel_case *c, const uint8_t *state, uint32_t i, uint32_t page, uint32_t tokens, uint32_t h,
                      bool high)
{
	const uint32_t nth = (high * c->sh.n_kv_heads + h) * SKV_PAGE_TOKENS + page % SKV_PAGE_TOKENS;
	const float unit = ref_unit_in_page(c->sh.dtype, state, c->sh.n_kv_heads, c->sh.head_dim, nth);
	const uint8_t *row = state + nth * c->sh.head_dim * skv_dtype_bytes(c->sh.dtype);
	const uint32_t stride = c->sh.n_kv_heads * c->sh.head_dim, from = page * SKV_PAGE_TOKENS, end = from + tokens;

	for (uint32_t d = 0; d < c->sh.head_dim; d++) {
		const float *k = c->k[i] + h * c->sh.head_dim + d;
		float x = ref_load(c->sh.dtype, row + d * skv_dtype_bytes(c->sh.dtype)) * unit, want = k[(size_t)from * stride];

		for (uint32_t t = from; t < end; t++)
			want = high ? fmaxf(want, k[(size_t)t * stride]) : fminf(want, k[(size_t)t * stride]);
		if (c->sh.dtype == SKV_FP8 ? !is_bound(x, want, unit, high) : x != want)
			ck_abort_msg("%s: sequence %u, page %u, kv head %u, element %u: %g, should be %g", c->on->name,
			             i, page, h, d, (double)x, (double)want);
	}
}

static uint32_t tokens_of(const struct kernel_case *c, uint32_t i, uint32_t page)
{
	const uint32_t left = c->seq[i].len - page * SKV_PAGE_TOKENS;

	return left < SKV_PAGE_TOKENS ? left : SKV_PAGE_TOKENS;
}

static void check_untouched(const struct kernel_case *c, const uint8_t *at, size_t bytes)
{
	for (size_t x = 0; x < bytes; x++)
		if (at[x] != 0xff)
			ck_abort_msg("%s: byte %zu of the bounds of no page was written", c->on->name, x);
}

/* Checks that all resident pages have their bounds, and that nothing else was written to the state pages. */
static void check_bounds(const struct kernel_case *c)
{
	const size_t row = c->sh.head_dim * skv_dtype_bytes(c->sh.dtype), half = c->sh.n_kv_heads * SKV_PAGE_TOKENS * row;
	uint8_t *state = malloc(c->sh.page_bytes);

	for (uint32_t i = 0; i < c->n; i++)
		for (uint32_t u = 0; u < skv_pages_of(skv_pages_of(c->seq[i].len)) * SKV_PAGE_TOKENS; u++) {
			skv_pte e = c->state[i][u / SKV_PAGE_TOKENS];
			if (!skv_pte_resident(e))
				continue;
			if (u % SKV_PAGE_TOKENS == 0)
				case_from(c, state, c->sh.pool + skv_pte_id(e) * c->sh.page_bytes, c->sh.page_bytes);
			for (uint32_t h = 0; h < c->sh.n_kv_heads; h++)
				for (int high = 0; high < 2; high++) {
					size_t place = (h * SKV_PAGE_TOKENS + u % SKV_PAGE_TOKENS) * row;
					const uint8_t *at = state + high * half + place;
					if (u < skv_pages_of(c->seq[i].len) && bounded(c, i, u))
						check_row(c, state, i, u, tokens_of(c, i, u), h, high);
					else
						check_untouched(c, at, row);
				}
		}
	free(state);
}

/* Checks kv head h, whose page with the slot is filled up to the slot. */
static void check_slots(const struct kernel_case *c, const struct skv_kseq *s, uint32_t i, uint32_t h, uint32_t slot)
{
	const size_t row = c->sh.head_dim * skv_dtype_bytes(c->sh.dtype), half = c->sh.n_kv_heads * SKV_PAGE_TOKENS * row;
	uint8_t *state = malloc(c->sh.page_bytes);

	for (uint32_t u = 0; u < skv_pages_of(s->len); u++) {
		const uint32_t page = skv_pte_id(c->state[i][u / SKV_PAGE_TOKENS]);
		const bool own = u == slot / SKV_PAGE_TOKENS;
		if (u % SKV_PAGE_TOKENS == 0)
			case_from(c, state, c->sh.pool + page * c->sh.page_bytes, c->sh.page_bytes);
		for (int high = 0; high < 2; high++) {
			const uint8_t *at = state + high * half + (h * SKV_PAGE_TOKENS + u % SKV_PAGE_TOKENS) * row;
			if (own || s->n_state > 1)
				check_row(c, state, i, u, own ? slot % SKV_PAGE_TOKENS + 1 : SKV_PAGE_TOKENS, h, high);
			else
				check_untouched(c, at, row);
		}
	}
	free(state);
}

/* Bounds are made token by token, in chunks, or all at once, and partly several times. */
START_TEST(bounds_of_pages)
{
	static const uint32_t steps[] = {11, 16, 100, 5000};

	for (const struct test_backend *b = case_backends(); b->kern; b++)
		for (int way = 0; way < 4; way++) {
			uint32_t done[CASE_SEQS] = {0}, n[CASE_SEQS];
			struct kernel_case c;
			bool more = true;

			bounds_case(&c, _i, way % 2);
			if (!case_load(&c, b)) {
				case_deinit(&c);
				continue;
			}
			while (more) {
				more = false;
				for (uint32_t i = 0; i < c.n; i++) {
					uint32_t left = c.seq[i].len - done[i];
					uint32_t some = left < steps[way] ? left : steps[way];
					done[i] += some;
					n[i] = some ? some + rnd_below(done[i] - some + 1) : 0;
					more |= done[i] < c.seq[i].len;
				}
				update(&c, done, n, 1 + way % 2);
			}
			check_bounds(&c);
			update_all(&c);
			check_bounds(&c);
			case_off(&c);
			case_deinit(&c);
		}
}
END_TEST

/*
 * Each kv head has its new token in a slot: makes the bounds of that slot's page only, or of all pages; the others are
 * full.
 */
START_TEST(bounds_of_slots)
{
	const uint32_t len[] = {16, 32, 160, 272, 48}, n = sizeof len / sizeof *len;

	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		struct kernel_case c;
		struct skv_kseq seq[CASE_SEQS];
		uint32_t slot[CASE_SEQS * SKV_MAX_HEADS];

		case_of_shape(&c, _i, n, len, ones);
		if (!case_load(&c, b)) {
			case_deinit(&c);
			continue;
		}
		case_from(&c, seq, c.batch.seq, n * sizeof *seq);
		for (uint32_t i = 0; i < n; i++) {
			const uint32_t fill = rnd_below(SKV_PAGE_TOKENS);
			seq[i].len -= SKV_PAGE_TOKENS - 1 - fill; /* the rows exist nevertheless */
			seq[i].n_state = i % 2 ? 1 : seq[i].len;
			for (uint32_t h = 0; h < c.sh.n_kv_heads; h++)
				slot[i * c.sh.n_kv_heads + h] = rnd_below(len[i] / SKV_PAGE_TOKENS) * SKV_PAGE_TOKENS + fill;
		}
		struct skv_slot_mapping slots = {.granularity = SKV_PAGE_TOKENS,
		                                 .slot = case_to(&c, slot, sizeof slot)};
		struct skv_batch batch = case_part(&c, 0, n);
		struct skv_workspace w = case_work(&c, 2);
		batch.seq = case_to(&c, seq, n * sizeof *seq);
		batch.max_state = c.max_len;
		b->kern->update_bounds(&c.sh, &batch, &slots, &w);
		case_work_done(&c, &w);
		for (uint32_t x = 0; x < n * c.sh.n_kv_heads; x++)
			check_slots(&c, &seq[x / c.sh.n_kv_heads], x / c.sh.n_kv_heads, x % c.sh.n_kv_heads, slot[x]);
		case_off(&c);
		case_deinit(&c);
	}
}
END_TEST

/* ---- scores ---------------------------------------------------------------------------------- */

struct scores {
	uint32_t pool, rows, stride;
	float *page; /* [seq][rows][stride] */
};

/* Scores sequences [from, from + n). */
static void score(struct kernel_case *c, struct scores *x, uint32_t from, uint32_t n, int threads)
{
	const size_t floats = (size_t)n * x->rows * x->stride;
	struct skv_scores ev = {.rows = x->rows, .page_stride = x->stride};
	struct skv_batch b = case_part(c, from, n);
	struct skv_workspace w = case_work(c, threads);

	ev.page = case_to(c, NULL, floats * sizeof(float));
	c->on->kern->score_pages(&c->sh, &b, case_rows_to(c, c->q, (size_t)c->rows * c->sh.n_heads * c->sh.head_dim),
	                         x->pool, &ev, &w);
	case_work_done(c, &w);
	x->page = malloc(floats * sizeof(float));
	case_from(c, x->page, ev.page, floats * sizeof(float));
}

/*
 * The score of q head `head`, or with MEAN_Q of the mean of the group that begins with it, with q as on the backend.
 * The mean is computed in floats, as on the backend, because its rounding may depend on the last bit.
 */
static double head_score(const struct kernel_case *c, uint32_t pool, uint32_t i, uint32_t head, uint32_t page)
{
	const uint32_t dim = c->sh.head_dim, group = c->sh.n_heads / c->sh.n_kv_heads, from = page * SKV_PAGE_TOKENS;
	const uint32_t left = c->seq[i].len - from, stride = c->sh.n_kv_heads * dim;
	const uint32_t heads = pool == SKV_REDUCE_MEAN_Q ? group : 1;
	float q[SKV_MAX_HEAD_DIM];

	for (uint32_t d = 0; d < dim; d++) {
		float sum = 0;
		for (uint32_t g = 0; g < heads; g++) {
			size_t row = (size_t)c->seq[i].row * c->sh.n_heads + head + g;
			sum += ref_round(c->sh.io_dtype, c->q[row * dim + d]);
		}
		sum /= (float)heads;
		q[d] = case_rounded_q(c, c->on, sum);
	}
	return ref_bound(q, c->k[i] + (size_t)from * stride + head / group * dim,
	                 left < SKV_PAGE_TOKENS ? left : SKV_PAGE_TOKENS, stride, dim);
}

static double row_score(const struct kernel_case *c, const struct scores *x, uint32_t i, uint32_t row, uint32_t page)
{
	const uint32_t each = c->sh.n_heads / x->rows, group = c->sh.n_heads / c->sh.n_kv_heads;
	double reduced = x->pool == SKV_REDUCE_MAX ? -INFINITY : 0;

	if (!bounded(c, i, page))
		return -INFINITY;
	for (uint32_t head = row * each; head < (row + 1) * each; head += x->pool == SKV_REDUCE_MEAN_Q ? group : 1) {
		double s = head_score(c, x->pool, i, head, page);
		reduced = x->pool == SKV_REDUCE_MAX ? fmax(reduced, s) : reduced + s;
	}
	return reduced;
}

/* Also checks that nothing was written past the last page. */
static void check_scores(const struct kernel_case *c, const struct scores *x)
{
	double *ref = malloc(x->stride * sizeof *ref);

	for (uint32_t i = 0; i < c->n; i++)
		for (uint32_t row = 0; row < x->rows; row++) {
			const float *page = x->page + ((size_t)i * x->rows + row) * x->stride;
			for (uint32_t p = 0; p < x->stride; p++)
				ref[p] = p < skv_pages_of(c->seq[i].len) ? row_score(c, x, i, row, p) : NAN;
			case_compare(c->on->name, page, ref, x->stride, 1e-3, 1e-5);
		}
	free(ref);
}

/* A sequence alone, on one thread, gives the same bits as in a batch. */
static void check_alone(struct kernel_case *c, const struct scores *all)
{
	for (uint32_t i = 0; i < c->n; i++) {
		struct scores one = *all;
		size_t floats = (size_t)all->rows * all->stride;

		score(c, &one, i, 1, 1);
		ck_assert_mem_eq(one.page, all->page + i * floats, floats * sizeof(float));
		free(one.page);
	}
}

START_TEST(scores_of_pages)
{
	for (const struct test_backend *b = case_backends(); b->kern; b++)
		for (int way = 0; way < 7; way++) {
			static const uint32_t pools[] = {SKV_REDUCE_MAX, SKV_REDUCE_SUM, SKV_REDUCE_MEAN_Q,
			                                 SKV_REDUCE_MAX};
			struct scores x = {.pool = pools[way % 4]};
			struct kernel_case c;

			bounds_case(&c, _i, way % 3 == 0);
			x.rows = way < 4 ? 1 : c.sh.n_kv_heads;
			if (way % 4 == 3) /* of each q head */
				x.rows = c.sh.n_heads;
			x.stride = (skv_pages_of(c.max_len) + 3) / 4 * 4 + 4 * rnd_below(3);
			if (case_load(&c, b)) {
				update_all(&c);
				score(&c, &x, 0, c.n, 2);
				check_scores(&c, &x);
				if (way % 4 == 0)
					check_alone(&c, &x);
				free(x.page);
				case_off(&c);
			}
			case_deinit(&c);
		}
}
END_TEST

/* Pages of equal tokens have equal scores, to the last bit, wherever the page is. */
START_TEST(equal_scores)
{
	const uint32_t len[] = {1000};

	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		struct scores x = {.pool = SKV_REDUCE_SUM, .rows = 1};
		struct kernel_case c;

		case_of_shape(&c, _i, 1, len, ones);
		const uint32_t row = c.sh.n_kv_heads * c.sh.head_dim;
		for (uint32_t t = 1; t < len[0]; t++) {
			memcpy(c.k_in[0] + (size_t)t * row, c.k_in[0], row * sizeof(float));
			memcpy(c.k[0] + (size_t)t * row, c.k[0], row * sizeof(float));
		}
		x.stride = (skv_pages_of(c.max_len) + 3) / 4 * 4;
		if (case_load(&c, b)) {
			update_all(&c);
			score(&c, &x, 0, 1, 1);
			check_scores(&c, &x);
			for (uint32_t p = 1; p < skv_pages_of(len[0]); p++)
				ck_assert_mem_eq(&x.page[p], &x.page[0], sizeof(float));
			free(x.page);
			case_off(&c);
		}
		case_deinit(&c);
	}
}
END_TEST

int main(void)
{
	Suite *s = case_suite("test-select-page-bounds");
	TCase *t = add_case(s, "all", 120, NULL, NULL, NULL);
	int cases = rnd_hurried() ? 3 : CASE_SHAPES;

	add_cases(t, bounds_of_pages, cases);
	add_cases(t, bounds_of_slots, cases);
	add_cases(t, scores_of_pages, cases);
	add_cases(t, equal_scores, cases);
	return run_suite(s);
}
