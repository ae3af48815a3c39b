/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/unit/kernels/test-prefill-tiles.c - lists of tiles: what Kascade, HiP and MInference choose for rows of a
 * prompt, against tests/ref/prefill.c on every backend; chunking, the batch and threads do not change a list; and the
 * outputs of rows that see the lists.
 *
 * Choices by softmax weights are not determined at the edge of a budget, so only entries that are clearly in or out are
 * checked. HiP's choices are checked exactly, including ties, with keys and queries of small integers, whose products
 * are exact.
 */
#include "tests/support/prefill-case.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <string.h>

#define SLACK 1e-3 /* of a weight: rounding of scores in fp32 */

/* A plan, and the parameters that kernels get for it. */
struct method {
	struct skv_prefill plan;
	struct skv_sparse sp; /* without lists */
	uint32_t rows;        /* of lists */
	uint32_t lists;       /* 1 or, with `more`, 2 */
	uint32_t unit[2];
};

/* The list of a tile of sequence i that begins at x. */
struct seen {
	uint32_t i, x, row, n;
	const uint32_t *ids;
};

/* ---- methods --------------------------------------------------------------------------------- */

static struct method hip(const struct skv_shape *sh)
{
	struct method m = {.rows = sh->n_heads, .lists = 1, .unit = {8}};

	m.plan = (struct skv_prefill){.how = SKV_PREFILL_HIP, .sinks = 64 * rnd_below(3), .window = 64 * rnd_below(3)};
	m.plan.keep[0] = 64 * (1 + rnd_below(6));
	m.plan.keep[1] = 32 * (1 + rnd_below(m.plan.keep[0] / 32));
	m.plan.keep[2] = 8 * (1 + rnd_below(m.plan.keep[1] / 8));
	m.sp = (struct skv_sparse){.tile = 64, .sinks = m.plan.sinks, .window = m.plan.window, .by_tile = true,
	                           .n_saved_queries = 1};
	return m;
}

static struct method minference(const struct skv_shape *sh)
{
	struct method m = {.rows = sh->n_heads, .lists = 2, .unit = {64, 1}};

	m.plan = (struct skv_prefill){.how = SKV_PREFILL_MINFERENCE, .segment = 128u << rnd_below(2),
	                              .vertical = SKV_MINFERENCE_FORCED + rnd_below(100),
	                              .slash = SKV_MINFERENCE_FORCED + rnd_below(rnd_below(2) ? 4 : 200)};
	m.sp = (struct skv_sparse){.tile = 64, .by_tile = true, .segment = m.plan.segment,
	                           .n_saved_queries = SKV_MINFERENCE_ROWS};
	return m;
}

static struct method kascade(const struct skv_shape *sh)
{
	struct method m = {.rows = sh->n_kv_heads, .lists = 1, .unit = {1}};

	m.plan = (struct skv_prefill){.how = SKV_PREFILL_KASCADE, .top_floor = rnd_below(60)};
	if (rnd_below(2))
		m.plan.top.share = (float)(0.05 + rnd_unit() / 2);
	else
		m.plan.top.count = 1 + rnd_below(200);
	m.sp = (struct skv_sparse){.tile = skv_kascade_tile(sh->n_heads / sh->n_kv_heads), .by_tile = true,
	                           .n_saved_queries = 1};
	return m;
}

static struct method method_of(uint32_t how, const struct skv_shape *sh)
{
	struct method m = how == SKV_PREFILL_HIP ? hip(sh) : how == SKV_PREFILL_KASCADE ? kascade(sh) : minference(sh);

	m.plan.correct = rnd_below(3);
	if (m.plan.correct != SKV_CORRECT_NONE) {
		m.plan.gamma = m.sp.gamma = 2u << rnd_below(8);
		m.plan.tail = m.sp.gamma + rnd_below(64);
		m.sp.delta = m.plan.correct == SKV_CORRECT_DELTA;
	}
	return m;
}

static bool takes(const struct skv_kernels *k, const struct method *m)
{
	return k->prefill_sparse && (m->plan.how == SKV_PREFILL_HIP       ? k->hip_lists != NULL
	                             : m->plan.how == SKV_PREFILL_KASCADE ? k->kascade_lists != NULL
	                                                                  : k->minference_lists != NULL);
}

/* Few distinct integers, so that many scores are equal. */
static void whole_numbers(struct kernel_case *c)
{
	const size_t row = (size_t)c->sh.n_kv_heads * c->sh.head_dim;

	for (uint32_t i = 0; i < c->n; i++)
		for (size_t x = 0; x < c->seq[i].len * row; x++)
			c->k[i][x] = c->k_in[i][x] = (float)rnd_below(rnd_below(2) ? 3 : 2) - 1;
	for (size_t x = 0; x < (size_t)c->rows * c->sh.n_heads * c->sh.head_dim; x++)
		c->q[x] = rnd_below(8) ? 0 : (float)rnd_below(3) - 1;
}

static void scale_queries(struct kernel_case *c, float by)
{
	for (size_t x = 0; x < (size_t)c->rows * c->sh.n_heads * c->sh.head_dim; x++)
		c->q[x] *= by;
}

static void prepare(struct kernel_case *c, const struct method *m)
{
	prompts_init(c, &m->sp);
	for (uint32_t i = 0; m->sp.gamma && i < c->n; i++)
		c->seq[i].dense_from = ref_tail(c->seq[i].len, m->sp.gamma, m->plan.tail);
}

/* ---- lists against the reference --------------------------------------------------------------- */

static void wrong(const struct kernel_case *c, const struct seen *l, const char *what, uint32_t id)
{
	ck_abort_msg("%s: prompt of %u from %u, list %u of tile %u: %s %u", c->on->name, c->seq[l->i].n_q, c->seq[l->i].prompt_start,
	             l->row, l->x, what, id);
}

/* Returns which of [0, n) are listed; checks that the ids ascend. */
static bool *listed(const struct kernel_case *c, const struct seen *l, uint32_t n)
{
	bool *in = calloc(n + 1, sizeof *in);

	for (uint32_t x = 0; x < l->n; x++) {
		if (l->ids[x] >= n || (x && l->ids[x] <= l->ids[x - 1]))
			wrong(c, l, "out of range or order:", l->ids[x]);
		in[l->ids[x]] = true;
	}
	return in;
}

/* Between these two weights the choice is open. */
struct edge {
	double low, high;
};

static int downwards(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x < y) - (x > y);
}

/* The edge for the k best of weight[n], among those that are there (NULL: all). */
static struct edge edge_of(const double *weight, uint32_t n, uint32_t k, const bool *there)
{
	double *sorted = malloc((n + 1) * sizeof *sorted), last;
	uint32_t m = 0;

	for (uint32_t t = 0; t < n; t++)
		if (!there || there[t])
			sorted[m++] = weight[t];
	qsort(sorted, m, sizeof *sorted, downwards);
	last = k == 0 ? INFINITY : k >= m ? -1 : sorted[k - 1];
	free(sorted);
	return (struct edge){last < 0 ? -1 : last * (1 - SLACK) - 1e-30, last < 0 ? -1 : last * (1 + SLACK) + 1e-30};
}

static void check_best(const struct kernel_case *c, const struct method *m, const struct ref_rows *r,
                       const struct seen *l)
{
	double *weight = malloc((l->x + 1) * sizeof *weight);
	bool *in = listed(c, l, l->x);
	const uint32_t k = skv_budget_of(m->plan.top, l->x, m->plan.top_floor);
	uint32_t there = 0;

	ref_tile_weights(r, l->x, l->row, weight);
	const struct edge e = edge_of(weight, l->x, k, r->there);
	for (uint32_t t = 0; t < l->x; t++) {
		there += r->there[t];
		if (in[t] && (!r->there[t] || weight[t] < e.low))
			wrong(c, l, "should not have", t);
		if (!in[t] && r->there[t] && weight[t] > e.high)
			wrong(c, l, "should have", t);
	}
	if (l->n != (k < there ? k : there))
		wrong(c, l, "so many are there:", l->n);
	free(weight);
	free(in);
}

static void check_stages(const struct kernel_case *c, const struct method *m, const struct ref_rows *r,
                         const struct seen *l)
{
	bool *in = listed(c, l, l->x / 8), *chosen = calloc(l->x + 1, sizeof *chosen);

	ref_stages(r, &m->plan, l->x, l->row, chosen);
	for (uint32_t t = 0; t < l->x; t++)
		if (in[t / 8] != chosen[t])
			wrong(c, l, chosen[t] ? "should have" : "should not have", t / 8);
	free(in);
	free(chosen);
}

/* Is x of [0, n) one of the k best by weight, with the first ones forced? 1, 0, or -1 at the edge. */
static int chosen(const double *weight, const struct edge *e, uint32_t x)
{
	return x < SKV_MINFERENCE_FORCED || weight[x] > e->high ? 1 : weight[x] < e->low ? 0 : -1;
}

static void check_lines(const struct kernel_case *c, const struct method *m, const struct ref_rows *r, const struct seen *l,
                        const struct seen *more)
{
	const uint32_t begin = ref_begin(r, l->x, m->plan.segment), n = begin + SKV_MINFERENCE_ROWS, blocks = l->x / 64;
	double *column = malloc(n * sizeof *column), *diagonal = malloc(n * sizeof *diagonal);
	bool *in = listed(c, l, blocks), *token = listed(c, more, l->x);
	int *block = calloc(blocks + 1, sizeof *block);

	ref_lines(r, begin, l->row, column, diagonal);
	const struct edge v = edge_of(column + SKV_MINFERENCE_FORCED, n - SKV_MINFERENCE_FORCED,
	                              m->plan.vertical - SKV_MINFERENCE_FORCED, NULL);
	const struct edge s = edge_of(diagonal + SKV_MINFERENCE_FORCED, n - SKV_MINFERENCE_FORCED,
	                              m->plan.slash - SKV_MINFERENCE_FORCED, NULL);
	for (uint32_t p = l->x; p < l->x + 64; p++)
		for (uint32_t t = 0; t < l->x; t++) {
			const int is = p - t < n ? chosen(diagonal, &s, p - t) : 0;
			block[t / 64] = is == 1 || block[t / 64] == 1 ? 1 : is ? is : block[t / 64];
		}
	for (uint32_t u = 0; u < blocks; u++)
		if (block[u] >= 0 && in[u] != block[u])
			wrong(c, l, block[u] ? "should have block" : "should not have block", u);
	for (uint32_t t = 0; t < l->x; t++) {
		const int is = t < n ? chosen(column, &v, t) : 0;
		if (token[t] && (in[t / 64] || is == 0))
			wrong(c, more, "should not have token", t);
		if (!token[t] && !in[t / 64] && is == 1)
			wrong(c, more, "should have token", t);
	}
	free(column);
	free(diagonal);
	free(in);
	free(token);
	free(block);
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Lists of a call: in the backend's memory, and copies. */
struct lists {
	struct skv_tile_lists there[2], here[2];
};

/* Saves queries, then makes the lists of the call. */
static void make_lists(struct kernel_case *c, const struct calls *a, const struct method *m, const void *q, int threads,
                       struct lists *l)
{
	const struct skv_kernels *k = c->on->kern;
	struct skv_workspace w = calls_work(a, c, &m->sp, threads);

	for (uint32_t x = 0; x < m->lists; x++)
		l->there[x] = tiles_for(a, c, m->sp.tile, m->rows, m->unit[x]);
	k->save_queries(&c->sh, &a->batch, q, &m->sp, &w);
	if (m->plan.how == SKV_PREFILL_HIP)
		k->hip_lists(&c->sh, &a->batch, q, &m->sp, m->plan.keep, &l->there[0], &w);
	else if (m->plan.how == SKV_PREFILL_KASCADE)
		k->kascade_lists(&c->sh, &a->batch, q, &m->sp, m->plan.top, m->plan.top_floor, &l->there[0], &w);
	else
		k->minference_lists(&c->sh, &a->batch, q, &m->sp, m->plan.vertical, m->plan.slash, &l->there[0],
		                    &l->there[1], &w);
	case_work_done(c, &w);
	for (uint32_t x = 0; x < m->lists; x++)
		l->here[x] = tiles_from(c, a, &l->there[x]);
}

static void lists_free(const struct method *m, struct lists *l)
{
	for (uint32_t x = 0; x < m->lists; x++)
		tiles_free(&l->here[x]);
}

static struct seen seen_of(const struct calls *a, const struct method *m, const struct skv_tile_lists *t, uint32_t s, uint32_t x,
                           uint32_t row)
{
	const uint32_t j = x / m->sp.tile - (a->seq[s].len - a->seq[s].n_q) / m->sp.tile;
	const size_t at = ((size_t)s * t->tiles + j) * t->rows + row;

	return (struct seen){.i = a->of[s], .x = x, .row = row, .n = t->count[at], .ids = t->ids + at * t->stride};
}

/*
 * Are a tile's lists defined? In a segment, only if its dense first rows were computed and the last of them is not
 * after the tile.
 */
static bool matters(const struct method *m, const struct skv_kseq *s, uint32_t x)
{
	const uint32_t begin = m->plan.segment ? skv_first_row(s, x, m->plan.segment) : 0;

	return !m->plan.segment || (x >= begin && s->len >= begin + SKV_MINFERENCE_ROWS);
}

typedef void tile_fn(void *ctx, uint32_t s, uint32_t x, uint32_t row);

/* Calls fn(ctx, sequence of the call, tile, row) for all lists of the call that matter. */
static void each_list(const struct calls *a, const struct method *m, tile_fn *fn, void *ctx)
{
	for (uint32_t s = 0; s < a->batch.n; s++) {
		const uint32_t start = a->seq[s].len - a->seq[s].n_q;
		for (uint32_t x = start / m->sp.tile * m->sp.tile; x < a->seq[s].len; x += m->sp.tile)
			for (uint32_t row = 0; matters(m, &a->seq[s], x) && row < m->rows; row++)
				fn(ctx, s, x, row);
	}
}

/* ---- right lists, and the same ones however a prompt is cut ------------------------------------- */

struct pass {
	struct kernel_case *c;
	const struct method *m;
	struct calls a;
	struct lists now;
	/* of the whole prompts: */
	struct calls whole;
	struct lists was;
	const float *q; /* as the backend rounds it */
};

static void check_list(void *ctx, uint32_t s, uint32_t x, uint32_t row)
{
	const struct pass *p = ctx;
	const struct seen l = seen_of(&p->whole, p->m, &p->was.here[0], s, x, row);
	const struct ref_rows r = prompts_ref(p->c, l.i, p->q);

	if (p->m->plan.how == SKV_PREFILL_HIP) {
		check_stages(p->c, p->m, &r, &l);
	} else if (p->m->plan.how == SKV_PREFILL_KASCADE) {
		check_best(p->c, p->m, &r, &l);
	} else {
		const struct seen more = seen_of(&p->whole, p->m, &p->was.here[1], s, x, row);
		check_lines(p->c, p->m, &r, &l, &more);
	}
	free((void *)r.there);
}

static void same_list(void *ctx, uint32_t s, uint32_t x, uint32_t row)
{
	const struct pass *p = ctx;

	for (uint32_t k = 0; k < p->m->lists; k++) {
		const struct seen is = seen_of(&p->a, p->m, &p->now.here[k], s, x, row);
		/* that call has all sequences */
		const struct seen was = seen_of(&p->whole, p->m, &p->was.here[k], is.i, x, row);
		if (is.n != was.n || memcmp(is.ids, was.ids, is.n * sizeof *is.ids))
			wrong(p->c, &is, "other bits when cut; row", p->a.seq[s].len - p->a.seq[s].n_q);
	}
}

static void check_on(struct kernel_case *c, const struct method *m)
{
	static const uint32_t steps[] = {17, STEP_RANDOM, 1};
	void *q = case_rows_to(c, c->q, (size_t)c->rows * c->sh.n_heads * c->sh.head_dim);
	float *seen = case_q(c, c->on);
	struct pass p = {.c = c, .m = m, .q = seen};

	calls_begin(&p.whole, c, STEP_WHOLE);
	calls_next(&p.whole, c);
	make_lists(c, &p.whole, m, q, 1, &p.was);
	each_list(&p.whole, m, check_list, &p);
	for (size_t x = 0; x < sizeof steps / sizeof *steps - (c->max_len > 250); x++) {
		calls_begin(&p.a, c, steps[x]);
		while (calls_next(&p.a, c)) {
			make_lists(c, &p.a, m, q, steps[x] == STEP_RANDOM ? 1 + (int)rnd_below(3) : 1, &p.now);
			each_list(&p.a, m, same_list, &p);
			lists_free(m, &p.now);
		}
	}
	lists_free(m, &p.was);
	free(seen);
}

static void check_lists(uint32_t how, int shape, uint32_t most)
{
	struct kernel_case c;

	prompts_make(&c, shape, most);
	if (how == SKV_PREFILL_HIP)
		whole_numbers(&c);
	else
		scale_queries(&c, 3);
	const struct method m = method_of(how, &c.sh);
	prepare(&c, &m);
	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		if (!takes(b->kern, &m) || !case_load(&c, b))
			continue;
		check_on(&c, &m);
		case_off(&c);
	}
	case_deinit(&c);
}

START_TEST(lists)
{
	rnd_begin((uint64_t)_i);
	check_lists(SKV_PREFILL_HIP + (uint32_t)_i % 3, 7 * _i % CASE_SHAPES, 450);
}
END_TEST

/* Also with one row in each call. */
START_TEST(lists_of_rows)
{
	rnd_begin((uint64_t)_i);
	check_lists(SKV_PREFILL_HIP + (uint32_t)_i % 3, (int)rnd_below(CASE_SHAPES), 200);
}
END_TEST

/* ---- rows that see them ------------------------------------------------------------------------ */

/* Runs all rows, in calls: makes their lists, then attends to them. */
static float *run(struct kernel_case *c, const struct method *m, uint32_t step)
{
	const size_t floats = (size_t)c->rows * c->sh.n_heads * c->sh.head_dim;
	void *q = case_rows_to(c, c->q, floats), *out = case_to(c, NULL, case_rows_bytes(c, floats));
	float *result = malloc(floats * sizeof *result);
	struct calls a;

	calls_begin(&a, c, step);
	while (calls_next(&a, c)) {
		struct skv_sparse sp = m->sp;
		struct lists l;
		make_lists(c, &a, m, q, 1, &l);
		sp.lists = &l.there[0];
		sp.extra = m->lists > 1 ? &l.there[1] : NULL;
		struct skv_workspace w = calls_work(&a, c, &sp, 2);
		c->on->kern->prefill_sparse(&c->sh, &a.batch, q, out, &sp, &w);
		case_work_done(c, &w);
		lists_free(m, &l);
	}
	case_rows_from(c, result, out, floats);
	return result;
}

static void reference(const struct kernel_case *c, const struct method *m, double *out)
{
	float *q = case_q(c, c->on);

	for (uint32_t i = 0; i < c->n; i++) {
		const struct ref_rows r = prompts_ref(c, i, q);
		ref_prefill(&r, &r, &m->plan, out + (size_t)c->seq[i].row * c->sh.n_heads * c->sh.head_dim);
		free((void *)r.there);
	}
	free(q);
}

/*
 * A whole plan. All choices are exact: HiP's are made with integers, the others' with queries of zeros, which give
 * equal weights.
 */
START_TEST(plans)
{
	struct kernel_case c;
	rnd_begin((uint64_t)_i);
	prompts_make(&c, 7 * _i % CASE_SHAPES, 400);
	const struct method m = method_of(SKV_PREFILL_HIP + (uint32_t)_i % 3, &c.sh);
	const size_t floats = (size_t)c.rows * c.sh.n_heads * c.sh.head_dim;
	double *ref = malloc(floats * sizeof *ref);
	int rounded = -1; /* was q rounded when the reference was computed? -1: not computed yet */

	if (m.plan.how == SKV_PREFILL_HIP)
		whole_numbers(&c);
	else
		scale_queries(&c, 0);
	prepare(&c, &m);
	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		if (!takes(b->kern, &m) || !case_load(&c, b))
			continue;
		if (rounded != case_rounds_q(&c, b))
			reference(&c, &m, ref);
		rounded = case_rounds_q(&c, b);
		for (int cut = 0; cut < 2; cut++) {
			float *out = run(&c, &m, cut ? STEP_RANDOM : STEP_WHOLE);
			case_compare(b->name, out, ref, floats, (m.sp.delta ? 3 : 1) * case_tolerance(&c, b, 3e-5), 0);
			free(out);
		}
		case_off(&c);
	}
	free(ref);
	case_deinit(&c);
}
END_TEST

int main(void)
{
	Suite *s = case_suite("test-prefill-tiles");
	TCase *t = add_case(s, "all", 120, NULL, NULL, NULL);
	int cases = rnd_hurried() ? 3 : 15; /* dtypes and head counts in turn */

	add_cases(t, lists, cases);
	add_cases(t, lists_of_rows, cases / 3);
	add_cases(t, plans, cases);
	return run_suite(s);
}
