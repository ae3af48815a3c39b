/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/unit/kernels/test-select.c - selections by attention scores, against a direct implementation of struct
 * skv_select, on every backend of this machine: ties, NaNs, infinities, holes, budgets of all kinds, one list for each
 * sequence or head, unions of heads and of the heads of a group. All ids must be equal.
 */
#include "tests/support/kernel-case.h"
#include "tests/ref/attention.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <string.h>

static const uint32_t ones[CASE_SEQS] = {1, 1, 1, 1, 1, 1, 1, 1};

/* Scores, the selection to make by them, and the expected lists. */
struct problem {
	bool tokens, together;
	uint32_t rows, lists; /* of a sequence: rows of scores, and lists to make */
	uint32_t score_stride, list_stride;
	struct skv_select sel;
	float *score;          /* [seq][rows][score_stride] */
	uint32_t *ids, *count; /* [seq][lists][list_stride], [seq][lists] */
};

static uint32_t units_of(const struct kernel_case *c, const struct problem *p, uint32_t i)
{
	return p->tokens ? c->seq[i].len : skv_pages_of(c->seq[i].len);
}

/* ---- the reference --------------------------------------------------------------------------- */

/*
 * Marks the units that are taken in any case, and the other resident ones; returns how many of the latter are wanted.
 */
static uint32_t plain_choice(const struct kernel_case *c, const struct problem *p, uint32_t i, bool *chosen,
                             bool *other)
{
	const struct skv_select *sel = &p->sel;
	uint32_t n = units_of(c, p, i), k = skv_budget_of(sel->budget, n, sel->floor);
	uint32_t recent = sel->recent ? sel->recent : k / 8, pin;

	recent = recent < sel->recent_floor ? sel->recent_floor : recent;
	recent = sel->no_recent ? 0 : recent < k ? recent : k;
	pin = sel->pin_counts && sel->pin > k - recent ? k - recent : sel->pin;
	for (uint32_t u = 0; u < n; u++) {
		bool there = case_resident(c, i, p->tokens ? u : u * SKV_PAGE_TOKENS);
		bool kept = u < pin || u >= n - recent;
		chosen[u] = there && kept;
		other[u] = there && !kept;
	}
	return sel->pin_counts ? k - recent - pin : k - recent;
}

/* The selection as policy.h describes it. */
static void plain_select(const float *score, uint32_t n, uint32_t want, const bool *other, bool *chosen)
{
	float *rest = malloc(n * sizeof *rest);
	uint32_t *best = malloc(n * sizeof *best);

	for (uint32_t u = 0; u < n; u++)
		rest[u] = other[u] ? score[u] : -INFINITY;
	for (uint32_t x = ref_topk(rest, n, want, best); x > 0; x--)
		chosen[best[x - 1]] = true;
	free(rest);
	free(best);
}

/* The rows name their best in turns, until as many as wanted are chosen or none is left. */
static void plain_union(const struct problem *p, const float *score, uint32_t n, uint32_t want, const bool *other,
                        bool *chosen)
{
	bool *named = calloc((size_t)p->rows * n, sizeof *named), any = true;

	while (any) {
		any = false;
		for (uint32_t row = 0; row < p->rows && want > 0; row++) {
			const float *x = score + (size_t)row * p->score_stride;
			int64_t best = -1;
			for (uint32_t u = 0; u < n; u++)
				if (other[u] && !named[row * n + u] && x[u] > -INFINITY && (best < 0 || x[u] > x[best]))
					best = u;
			if (best < 0)
				continue;
			any = named[row * n + best] = true;
			want -= !chosen[best];
			chosen[best] = true;
		}
	}
	free(named);
}

static void solve(const struct kernel_case *c, struct problem *p)
{
	for (uint32_t l = 0; l < c->n * p->lists; l++) {
		uint32_t i = l / p->lists, n = units_of(c, p, i), want;
		const float *score = p->score + (size_t)i * p->rows * p->score_stride;
		bool *chosen = calloc(n, sizeof *chosen), *other = calloc(n, sizeof *other);

		want = plain_choice(c, p, i, chosen, other);
		if (p->together)
			plain_union(p, score, n, want, other, chosen);
		for (uint32_t r = 0, each = p->rows / p->lists; r < each && !p->together; r++)
			plain_select(score + (size_t)(l % p->lists * each + r) * p->score_stride, n, want, other, chosen);
		p->count[l] = 0;
		for (uint32_t u = 0; u < n; u++)
			if (chosen[u])
				p->ids[(size_t)l * p->list_stride + p->count[l]++] = u;
		free(chosen);
		free(other);
	}
}

/* ---- problems -------------------------------------------------------------------------------- */

static float random_score(uint32_t kind)
{
	static const float special[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-45f};
	if (kind == 0) /* softmax weights */
		return expf(3 * rnd_normal());
	if (kind == 1) /* ties everywhere */
		return (float)rnd_below(4);
	return rnd_below(2) ? special[rnd_below(sizeof special / sizeof *special)] : rnd_normal();
}

/* With fewer lists than rows, a list unites several rows: in turns if `together`, else with the best of each row. */
static void problem_init(struct problem *p, const struct kernel_case *c, uint32_t rows, bool tokens, bool together, uint32_t lists)
{
	uint32_t units = tokens ? skv_pages_of(c->max_len) * SKV_PAGE_TOKENS : skv_pages_of(c->max_len);
	uint32_t kind = rnd_below(3);
	*p = (struct problem){.tokens = tokens, .together = together, .rows = rows, .lists = lists};
	p->score_stride = tokens ? units + SKV_PAGE_TOKENS * rnd_below(3) : (units + 3) / 4 * 4 + 4 * rnd_below(3);
	p->list_stride = units + rnd_below(3);
	p->score = malloc((size_t)c->n * rows * p->score_stride * sizeof *p->score);
	p->ids = malloc((size_t)c->n * rows * p->list_stride * sizeof *p->ids);
	p->count = malloc((size_t)c->n * rows * sizeof *p->count);
	/* scores past the end of a sequence are better than all others */
	for (size_t x = 0; x < (size_t)c->n * rows * p->score_stride; x++)
		p->score[x] = INFINITY;
	for (uint32_t r = 0; r < c->n * rows; r++)
		for (uint32_t u = 0; u < units_of(c, p, r / rows); u++)
			p->score[(size_t)r * p->score_stride + u] = random_score(kind);
}

static void problem_deinit(struct problem *p)
{
	free(p->score);
	free(p->ids);
	free(p->count);
}

static struct skv_select random_select(const struct kernel_case *c, bool tokens)
{
	uint32_t units = tokens ? c->max_len : skv_pages_of(c->max_len);
	struct skv_select sel = {.layer = c->sh.layer};
	if (rnd_below(2))
		sel.budget.share = (float)(0.001 + 0.999 * rnd_unit());
	else
		sel.budget.count = 1 + rnd_below(rnd_below(2) ? 10 : units + 10);
	sel.floor = rnd_below(2) ? rnd_below(30) : 0;
	sel.recent = rnd_below(2) ? rnd_below(units) : 0;
	sel.recent_floor = rnd_below(2) ? rnd_below(20) : 0;
	sel.no_recent = rnd_below(3) == 0;
	sel.pin_counts = rnd_below(2);
	sel.pin = rnd_below(2) ? rnd_below(rnd_below(2) ? 5 : units + 5) : 0;
	return sel;
}

/* ---- on a backend ---------------------------------------------------------------------------- */

static void check_list(const struct kernel_case *c, const struct problem *p, const struct skv_index_list *list,
                       uint32_t from, uint32_t n, const char *how)
{
	size_t lists = (size_t)n * p->lists, at = (size_t)from * p->lists;
	uint32_t *ids = malloc(lists * p->list_stride * sizeof *ids), *count = malloc(lists * sizeof *count);

	case_from(c, ids, list->ids, lists * p->list_stride * sizeof *ids);
	case_from(c, count, list->count, lists * sizeof *count);
	for (size_t r = 0; r < lists; r++) {
		const uint32_t *want = p->ids + (at + r) * p->list_stride, *got = ids + r * p->list_stride;
		ck_assert_uint_le(count[r], list->max_count);
		if (count[r] != p->count[at + r])
			ck_abort_msg("%s, %s: list %zu has %u %s, should have %u", c->on->name, how, at + r,
			             count[r], p->tokens ? "tokens" : "pages", p->count[at + r]);
		for (uint32_t x = 0; x < count[r]; x++)
			if (got[x] != want[x])
				ck_abort_msg("%s, %s: list %zu: id %u of %u is %u, should be %u", c->on->name,
				             how, at + r, x, count[r], got[x], want[x]);
	}
	free(ids);
	free(count);
}

/* Runs sequences [from, from + n). */
static void run(struct kernel_case *c, const struct problem *p, uint32_t from, uint32_t n, int threads,
                const char *how)
{
	const struct skv_batch batch = case_part(c, from, n);
	size_t lists = (size_t)n * p->lists;
	/* a fresh copy: scores may be overwritten */
	float *score = case_to(c, p->score + (size_t)from * p->rows * p->score_stride,
	                       (size_t)n * p->rows * p->score_stride * sizeof *score);
	struct skv_scores ev = {.rows = p->rows};
	struct skv_index_list list = {.rows = p->lists, .stride = p->list_stride};
	struct skv_workspace w = case_work(c, threads);

	*(p->tokens ? &ev.token : &ev.page) = score;
	*(p->tokens ? &ev.token_stride : &ev.page_stride) = p->score_stride;
	list.ids = case_to(c, NULL, lists * p->list_stride * sizeof *list.ids);
	list.count = case_to(c, NULL, lists * sizeof *list.count);
	if (p->together)
		c->on->kern->select_union(&c->sh, &batch, &ev, &p->sel, &list, &w);
	else
		c->on->kern->select(&c->sh, &batch, &ev, p->tokens, &p->sel, &list, &w);
	case_work_done(c, &w);
	check_list(c, p, &list, from, n, how);
}

static void check(struct kernel_case *c, struct problem *p)
{
	solve(c, p);
	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		if (!case_on(c, b))
			continue;
		run(c, p, 0, c->n, 1, "one thread");
		run(c, p, 0, c->n, 3, "three threads");
		for (uint32_t i = 0; i < c->n; i++)
			run(c, p, i, 1, 1, "alone");
		case_off(c);
	}
}

START_TEST(random_problems)
{
	uint32_t len[] = {1, 15, 16, 17, 33, 700, 3000};
	struct kernel_case c;
	rnd_begin((uint64_t)_i);
	len[5] += rnd_below(300);
	case_init(&c, SKV_BF16, 6, 3, 64, 7, len, ones);
	if (_i % 4)
		case_punch(&c, 1 + rnd_below(6));
	/*
	 * pages or tokens, of all heads or a kv head; tokens of q heads, united in turns; tokens or pages united for a
	 * kv head
	 */
	for (int way = 0; way < 7; way++) {
		struct problem p;
		problem_init(&p, &c, way >= 4 ? 6 : way & 1 ? 3 : 1, way >= 2 && way < 6, way == 4, way >= 5 || way & 1 ? 3 : 1);
		for (int again = 0; again < 3; again++) {
			p.sel = random_select(&c, p.tokens);
			p.sel.unite = way >= 5;
			check(&c, &p);
		}
		problem_deinit(&p);
	}
	case_deinit(&c);
}
END_TEST

/* One sequence of ten pages with scores 0 … 9, and the expected selection. */
static void check_ten(struct skv_select sel, uint32_t holes, uint32_t n, const uint32_t *want)
{
	const uint32_t len[] = {10 * SKV_PAGE_TOKENS - 3};
	struct kernel_case c;
	struct problem p;
	case_init(&c, SKV_BF16, 2, 1, 64, 1, len, ones);
	for (uint32_t page = 0; page < 10; page++)
		if (holes >> page & 1)
			c.table[0][page] = skv_pte_make(SKV_PTE_HOLE, 0);
	problem_init(&p, &c, 1, false, false, 1);
	for (uint32_t u = 0; u < 10; u++)
		p.score[u] = (float)u;
	p.sel = sel;
	check(&c, &p);
	ck_assert_uint_eq(p.count[0], n);
	ck_assert(!memcmp(p.ids, want, n * sizeof *want));
	problem_deinit(&p);
	case_deinit(&c);
}

/* Selections made by hand, in case the reference and the kernels have the same error. */
START_TEST(by_hand)
{
	/* without `recent` it is an eighth of the budget: none of three, one of eight */
	check_ten((struct skv_select){.budget.count = 3}, 0, 3, (uint32_t[]){7, 8, 9});
	check_ten((struct skv_select){.budget.count = 3, .recent = 2}, 0, 3, (uint32_t[]){7, 8, 9});
	check_ten((struct skv_select){.budget.count = 3, .recent = 1}, 1u << 9, 2, (uint32_t[]){7, 8});
	check_ten((struct skv_select){.budget.count = 2, .pin = 2}, 1u << 0, 3, (uint32_t[]){1, 8, 9});
	check_ten((struct skv_select){.budget.count = 3, .recent = 1, .pin = 1, .pin_counts = 1}, 0, 3,
	          (uint32_t[]){0, 8, 9});
	check_ten((struct skv_select){.budget.count = 3, .recent = 2, .pin = 4, .pin_counts = 1}, 0, 3,
	          (uint32_t[]){0, 8, 9});
	check_ten((struct skv_select){.budget.count = 1, .recent_floor = 4}, 0, 1, (uint32_t[]){9});
	check_ten((struct skv_select){.budget.share = 0.25f}, 0, 3, (uint32_t[]){7, 8, 9});
	check_ten((struct skv_select){.budget.share = 0.01f, .floor = 2}, 1u << 8, 2, (uint32_t[]){7, 9});
	check_ten((struct skv_select){.budget.count = 99}, 0x2a5, 5, (uint32_t[]){1, 3, 4, 6, 8});
	check_ten((struct skv_select){.budget.count = 16, .recent_floor = 4, .no_recent = 1}, 0, 10,
	          (uint32_t[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
}
END_TEST

/* Two heads over ten tokens; the first token is a sink, the last is recent. */
START_TEST(union_by_hand)
{
	static const float score[2][10] = {{9, 1, 7, 7, 3, 2, 0, 0, 0, 9}, {9, 6, 7, 1, 1, 8, 2, 0, 0, 9}};
	/* head 0 names 2, 3, 4, 5, 1 ..., head 1 names 5, 2, 1, 6, 3 ...: together 2, 5, 3, 4, 1, 6 */
	static const uint32_t order[] = {2, 5, 3, 4, 1, 6};
	const uint32_t len[] = {10};

	for (uint32_t want = 0; want <= 6; want++) {
		struct kernel_case c;
		struct problem p;
		uint32_t count = 0;

		case_init(&c, SKV_BF16, 2, 1, 64, 1, len, ones);
		problem_init(&p, &c, 2, true, true, 1);
		for (uint32_t row = 0; row < 2; row++)
			memcpy(p.score + row * p.score_stride, score[row], sizeof score[row]);
		p.sel = (struct skv_select){.budget.count = want + 1, .recent = 1, .pin = 1};
		check(&c, &p);
		ck_assert_uint_eq(p.count[0], want + 2);
		for (uint32_t t = 0; t < 10; t++) {
			bool wanted = t == 0 || t == 9;
			for (uint32_t x = 0; x < want; x++)
				wanted |= order[x] == t;
			ck_assert(!wanted || p.ids[count++] == t);
		}
		problem_deinit(&p);
		case_deinit(&c);
	}
}
END_TEST

/* The same heads in a group: each has its own best, 2 and 3, 5 and 2, and the list is their union. */
START_TEST(united_by_hand)
{
	static const float score[2][10] = {{9, 1, 7, 7, 3, 2, 0, 0, 0, 9}, {9, 6, 7, 1, 1, 8, 2, 0, 0, 9}};
	const uint32_t len[] = {10};
	struct kernel_case c;
	struct problem p;

	case_init(&c, SKV_BF16, 2, 1, 64, 1, len, ones);
	problem_init(&p, &c, 2, true, false, 1);
	for (uint32_t row = 0; row < 2; row++)
		memcpy(p.score + row * p.score_stride, score[row], sizeof score[row]);
	p.sel = (struct skv_select){.budget.count = 3, .recent = 1, .pin = 1, .unite = 1};
	check(&c, &p);
	ck_assert_uint_eq(p.count[0], 5);
	ck_assert(!memcmp(p.ids, (uint32_t[]){0, 2, 3, 5, 9}, 5 * sizeof *p.ids));
	problem_deinit(&p);
	case_deinit(&c);
}
END_TEST

int main(void)
{
	Suite *s = case_suite("test-select");
	TCase *t = add_case(s, "all", 60, NULL, NULL, by_hand, union_by_hand, united_by_hand, NULL);

	add_cases(t, random_problems, rnd_hurried() ? 2 : 24);
	return run_suite(s);
}
