/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/unit/kernels/test-decode.c - decode attention against tests/ref/attention.c, on every backend of this machine.
 *
 * Outputs are initialized with NaNs, so that no buffer holds the expected result by accident. One thread, two and three
 * must give the same bits, and so must a sequence alone and in a batch.
 */
#include "tests/support/score-case.h"
#include "tests/ref/attention.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <string.h>

#define TOLERANCE 3e-5

/* ---- decode ---------------------------------------------------------------------------------- */

enum way { DENSE, WINDOW, PAGES, TOKENS };

/* One decode call of any kind. Its pointers lead to host memory, or after params_on() to the backend's memory. */
struct attend_params {
	enum way way;
	struct skv_window window;
	struct skv_index_list list;
	struct skv_scores ev; /* rows = 0: none */
};

static void list_init(struct kernel_case *c, struct attend_params *p, enum way way, uint32_t rows)
{
	uint32_t stride = (way == PAGES ? skv_pages_of(c->max_len) : c->max_len) + 3;
	p->way = way;
	p->list = (struct skv_index_list){.rows = rows, .stride = stride};
	p->list.ids = calloc((size_t)c->n * rows * stride, sizeof(uint32_t));
	p->list.count = calloc((size_t)c->n * rows, sizeof(uint32_t));
	for (uint32_t r = 0; r < c->n * rows; r++) {
		uint32_t len = c->seq[r / rows].len, one_in = 1 + rnd_below(5), *count = &p->list.count[r];
		/* sometimes an empty list; ids past the end do not count */
		uint32_t units = rnd_below(8) ? (way == PAGES ? skv_pages_of(len) : len + 2) : 0;
		for (uint32_t u = 0; u < units; u++)
			if (!rnd_below(one_in))
				p->list.ids[(size_t)r * stride + (*count)++] = u;
		p->list.max_count = *count > p->list.max_count ? *count : p->list.max_count;
	}
}

/* Lets kv heads read each other's lists. */
static void list_map(const struct kernel_case *c, struct attend_params *p)
{
	p->list.mapped = true;
	for (uint32_t h = 0; h < c->sh.n_kv_heads; h++)
		p->list.map[h] = (uint8_t)rnd_below(c->sh.n_kv_heads);
}

static void list_deinit(struct attend_params *p)
{
	free(p->list.ids);
	free(p->list.count);
}

static struct attend_params params_on(struct kernel_case *c, const struct attend_params *p)
{
	struct attend_params there = *p;
	size_t lists = (size_t)c->n * p->list.rows;
	if (lists) {
		there.list.ids = case_to(c, p->list.ids, lists * p->list.stride * sizeof(uint32_t));
		there.list.count = case_to(c, p->list.count, lists * sizeof(uint32_t));
	}
	return there;
}

static bool sees(const struct kernel_case *c, const struct attend_params *p, uint32_t i, uint32_t head, uint32_t token)
{
	const struct skv_window *w = &p->window;
	if (!case_resident(c, i, token))
		return false;
	if (p->way == DENSE)
		return true;
	if (p->way == WINDOW) {
		uint32_t len = c->seq[i].len, size = skv_budget_of(w->budget, len, w->floor);
		uint32_t recent = size > w->sinks ? size - w->sinks : 1;
		return token < w->sinks || token + recent >= len;
	}
	const struct skv_index_list *l = &p->list;
	uint32_t own = l->rows == 1 ? 0 : l->rows == c->sh.n_kv_heads ? head / (c->sh.n_heads / l->rows) : head;
	uint32_t r = i * l->rows + (l->mapped ? l->map[own] : own);
	uint32_t unit = p->way == PAGES ? token / 16 : token;
	for (uint32_t x = 0; x < l->count[r]; x++)
		if (l->ids[(size_t)r * l->stride + x] == unit)
			return true;
	return false;
}

/* Runs sequences [from, from + n) of the case; q, out and the call's pointers lead to the backend's memory. */
static void run(struct kernel_case *c, const struct attend_params *p, uint32_t from, uint32_t n, const void *q,
                void *out, int threads)
{
	const struct skv_kernels *kern = c->on->kern;
	const struct skv_batch batch = case_part(c, from, n);
	struct skv_workspace w = case_work(c, threads);
	struct skv_index_list list = p->list;

	if (list.ids) {
		list.ids += (size_t)from * list.rows * list.stride;
		list.count += from * list.rows;
	}
	switch (p->way) {
	case DENSE:
		kern->decode_dense(&c->sh, &batch, q, out, p->ev.rows ? &p->ev : NULL, &w);
		break;
	case WINDOW:
		kern->decode_window(&c->sh, &batch, q, out, &p->window, &w);
		break;
	case PAGES:
		kern->decode_pages(&c->sh, &batch, q, out, &list, &w);
		break;
	case TOKENS:
		kern->decode_tokens(&c->sh, &batch, q, out, &list, &w);
		break;
	}
	case_work_done(c, &w);
}

/* Computes the outputs, with q as the backend rounds it, and what a call adds to each sequence's counter. */
static void reference(const struct kernel_case *c, const struct test_backend *b, const struct attend_params *p,
                      double *out, double *lse, uint64_t *attended)
{
	const uint32_t dim = c->sh.head_dim, stride = c->sh.n_kv_heads * dim;
	const uint32_t group = c->sh.n_heads / c->sh.n_kv_heads;
	bool *visible = malloc(c->max_len);
	float *q = case_q(c, b);
	for (uint32_t i = 0; i < c->n; i++) {
		attended[i] = 0;
		for (uint32_t head = 0; head < c->sh.n_heads; head++) {
			size_t at = ((size_t)c->seq[i].row * c->sh.n_heads + head) * dim, h = head / group;
			const bool apart = head % group == 0 || p->list.rows == c->sh.n_heads;
			for (uint32_t t = 0; t < c->seq[i].len; t++) {
				visible[t] = apart ? sees(c, p, i, head, t) : visible[t];
				attended[i] += visible[t];
			}
			lse[c->seq[i].row * c->sh.n_heads + head] = ref_attention(q + at, c->k[i] + h * dim, c->v[i] + h * dim, c->seq[i].len, stride,
			              dim, case_softmax(c, head), visible, out + at, NULL);
		}
	}
	free(visible);
	free(q);
}

static size_t out_floats(const struct kernel_case *c)
{
	return (size_t)c->rows * c->sh.n_heads * c->sh.head_dim;
}

/*
 * Returns the output on the case's backend. Checks that it has the same bits for any number of threads, any batch, and
 * with out = q.
 */
#define RUNS 5 /* runs of each sequence */
static void run_all(const char *what, struct kernel_case *c, const struct attend_params *p, float *out)
{
	struct attend_params there = params_on(c, p);
	size_t floats = out_floats(c);
	float *again = malloc(floats * sizeof *again);
	void *q = case_rows_to(c, c->q, floats), *mem = case_to(c, NULL, case_rows_bytes(c, floats));

	run(c, &there, 0, c->n, q, mem, 1);
	case_rows_from(c, out, mem, floats);
	for (int threads = 2; threads <= 3; threads++) {
		mem = case_to(c, NULL, case_rows_bytes(c, floats));
		run(c, &there, 0, c->n, q, mem, threads);
		case_rows_from(c, again, mem, floats);
		ck_assert_msg(case_same_bits(again, out, floats), "%s, %s: other bits on %d threads", what,
		              c->on->name, threads);
	}
	mem = case_to(c, NULL, case_rows_bytes(c, floats));
	for (uint32_t i = 0; i < c->n; i++)
		run(c, &there, i, 1, q, mem, 1);
	case_rows_from(c, again, mem, floats);
	ck_assert_msg(case_same_bits(again, out, floats), "%s, %s: other bits for a sequence alone", what,
	              c->on->name);
	run(c, &there, 0, c->n, q, q, 1);
	case_rows_from(c, again, q, floats);
	ck_assert_msg(case_same_bits(again, out, floats), "%s, %s: other bits in the place of q", what, c->on->name);
	free(again);
}

static void check_attended(const char *what, const struct kernel_case *c, const uint64_t *each)
{
	uint64_t now[CASE_SEQS];
	case_from(c, now, c->attended, c->n * sizeof *now);
	for (uint32_t i = 0; i < c->n; i++) {
		uint64_t added = case_has_counter(i) ? RUNS * each[i] : 0;
		now[i] -= case_attended_before(i);
		ck_assert_msg(now[i] == added, "%s, %s: %llu attended, should be %llu", what, c->on->name,
		              (unsigned long long)now[i], (unsigned long long)added);
	}
}

static void check_attend(const char *what, struct kernel_case *c, const struct attend_params *p, double tolerance)
{
	size_t floats = out_floats(c);
	float *out = malloc(floats * sizeof *out);
	double *ref = malloc(floats * sizeof *ref), *lse = malloc((size_t)c->rows * c->sh.n_heads * sizeof *lse);
	uint64_t attended[CASE_SEQS];
	int rounded = -1; /* was q rounded when the reference was computed? -1: not computed yet */

	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		char name[64];
		if (!case_load(c, b))
			continue;
		case_lse_begin(c);
		run_all(what, c, p, out);
		if (rounded != case_rounds_q(c, b))
			reference(c, b, p, ref, lse, attended);
		rounded = case_rounds_q(c, b);
		snprintf(name, sizeof name, "%s, %s", what, b->name);
		case_compare(name, out, ref, floats, case_tolerance(c, b, tolerance), 0);
		case_lse_check(c, what, lse, b->device ? 2e-3 : tolerance);
		check_attended(what, c, attended);
		case_off(c);
	}
	free(out);
	free(ref);
	free(lse);
}

static const uint32_t ones[CASE_SEQS] = {1, 1, 1, 1, 1, 1, 1, 1};

static void decode_case(struct kernel_case *c, int i, uint32_t one_in)
{
	uint32_t len[] = {1, 15, 16, 17, 33, 900, 40};
	rnd_begin((uint64_t)i);
	len[5] = rnd_hurried() ? 530 : 513 + rnd_below(800);
	len[6] = 2 + rnd_below(200);
	case_of_shape(c, i, 7, len, ones);
	if (one_in)
		case_punch(c, one_in);
}

START_TEST(decode_dense)
{
	struct kernel_case c;
	decode_case(&c, _i, _i % 2 ? 4 : 0);
	check_attend("dense", &c, &(struct attend_params){.way = DENSE}, TOLERANCE);
	/* Scores of some hundreds: a softmax that does not subtract its maximum overflows. */
	for (size_t x = 0; x < (size_t)c.rows * c.sh.n_heads * c.sh.head_dim; x++)
		c.q[x] *= 100;
	check_attend("dense, large scores", &c, &(struct attend_params){.way = DENSE}, 2e-3);
	case_deinit(&c);
}
END_TEST

START_TEST(decode_window)
{
	struct kernel_case c;
	decode_case(&c, _i, _i % 2 ? 0 : 4);
	for (uint32_t round = 0; round < 4; round++) {
		/* sinks and window: apart, touching, overlapping, in one page, larger than the sequence */
		struct attend_params p = {.way = WINDOW};
		p.window.sinks = rnd_below(round == 1 ? 20 : c.max_len + 20);
		if (round & 1)
			p.window.budget.share = (float)(0.01 + 0.99 * rnd_unit());
		else
			p.window.budget.count = 1 + rnd_below(c.max_len + 30);
		p.window.floor = rnd_below(2) ? rnd_below(100) : 0;
		check_attend("window", &c, &p, TOLERANCE);
	}
	case_deinit(&c);
}
END_TEST

START_TEST(decode_lists)
{
	struct kernel_case c;
	decode_case(&c, _i, _i % 3 ? 6 : 0);
	/* a list for all heads, for each kv head, for each q head, and those of other kv heads */
	for (int whose = 0; whose < 4; whose++)
		for (enum way way = PAGES; way <= TOKENS; way++) {
			struct attend_params p = {0};
			list_init(&c, &p, way, whose == 0 ? 1 : whose == 2 ? c.sh.n_heads : c.sh.n_kv_heads);
			if (whose == 3)
				list_map(&c, &p);
			check_attend(way == PAGES ? "pages" : "tokens", &c, &p, TOLERANCE);
			list_deinit(&p);
		}
	case_deinit(&c);
}
END_TEST

START_TEST(all_pages_are_dense)
{
	struct kernel_case c;
	decode_case(&c, _i, 5);
	size_t floats = out_floats(&c);
	float *out[3];
	struct attend_params p[3] = {{.way = DENSE}, {.way = PAGES}, {.way = WINDOW, .window.budget.share = 1}};
	uint32_t stride = skv_pages_of(c.max_len), count[CASE_SEQS], *ids;

	ids = calloc((size_t)c.n * stride, sizeof *ids);
	for (uint32_t i = 0; i < c.n; i++) {
		count[i] = skv_pages_of(c.seq[i].len);
		for (uint32_t page = 0; page < count[i]; page++)
			ids[i * stride + page] = page;
	}
	p[1].list = (struct skv_index_list){.rows = 1, .stride = stride, .ids = ids, .count = count,
	                                    .max_count = stride};
	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		if (!case_load(&c, b))
			continue;
		void *q = case_rows_to(&c, c.q, floats);
		for (int i = 0; i < 3; i++) {
			struct attend_params there = params_on(&c, &p[i]);
			void *mem = case_to(&c, NULL, case_rows_bytes(&c, floats));
			run(&c, &there, 0, c.n, q, mem, 1);
			out[i] = malloc(floats * sizeof(float));
			case_rows_from(&c, out[i], mem, floats);
		}
		case_off(&c);
		ck_assert_msg(!memcmp(out[0], out[1], floats * sizeof(float)), "%s: pages", b->name);
		ck_assert_msg(!memcmp(out[0], out[2], floats * sizeof(float)), "%s: window", b->name);
		for (int i = 0; i < 3; i++)
			free(out[i]);
	}
	free(ids);
	case_deinit(&c);
}
END_TEST

START_TEST(nothing_to_see)
{
	struct kernel_case c;
	decode_case(&c, _i, 1);
	size_t floats = out_floats(&c), heads = c.n * c.sh.n_heads;
	float *out = malloc(floats * sizeof *out), lse[CASE_SEQS * SKV_MAX_HEADS];
	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		struct attend_params p = {.way = DENSE, .ev = {.rows = 1}};
		if (!case_load(&c, b))
			continue;
		void *q = case_rows_to(&c, c.q, floats);
		void *mem = case_to(&c, NULL, case_rows_bytes(&c, floats));
		p.ev.token_stride = skv_pages_of(c.max_len) * SKV_PAGE_TOKENS;
		p.ev.page_stride = (skv_pages_of(c.max_len) + 3) / 4 * 4;
		p.ev.lse = case_to(&c, NULL, heads * sizeof(float));
		run(&c, &p, 0, c.n, q, mem, 1);
		case_rows_from(&c, out, mem, floats);
		for (size_t x = 0; x < floats; x++)
			if (out[x] != 0)
				ck_abort_msg("%s: element %zu is %g", b->name, x, out[x]);
		case_from(&c, lse, p.ev.lse, heads * sizeof(float));
		for (uint32_t x = 0; x < heads; x++)
			if (lse[x] != -INFINITY)
				ck_abort_msg("%s: log-sum-exp %u is %g", b->name, x, lse[x]);
		run(&c, &(struct attend_params){.way = DENSE}, 0, 0, q, mem, 2);
		case_off(&c);
	}
	free(out);
	case_deinit(&c);
}
END_TEST

/* NaN and infinity of a token affect exactly the outputs that attend to it. */
START_TEST(specials_stay_where_they_are)
{
	static const float special[] = {NAN, INFINITY, -INFINITY};
	const uint32_t len[] = {600, 600, 600, 600};
	struct kernel_case c;
	case_of_shape(&c, _i, 4, len, ones);
	for (uint32_t i = 0; i < 4; i++) {
		uint32_t t = rnd_below(600), h = rnd_below(c.sh.n_kv_heads), d = rnd_below(c.sh.head_dim);
		case_set(&c, i, i % 2 == 0, ((size_t)t * c.sh.n_kv_heads + h) * c.sh.head_dim + d, special[rnd_below(3)]);
	}
	check_attend("specials", &c, &(struct attend_params){.way = DENSE}, TOLERANCE);
	case_deinit(&c);
}
END_TEST

/* ---- attention scores ------------------------------------------------------------------------ */

/* On a device, scores take a warp from attention, so the last digits of the output may change. */
static struct skv_scores run_with_scores(struct kernel_case *c, int variant)
{
	const size_t floats = out_floats(c);
	float *plain = malloc(floats * sizeof *plain), *out = malloc(floats * sizeof *out);
	void *q = case_rows_to(c, c->q, floats), *mem = case_to(c, NULL, case_rows_bytes(c, floats));
	struct attend_params p = {.way = DENSE};

	run(c, &p, 0, c->n, q, mem, 1);
	case_rows_from(c, plain, mem, floats);
	p.ev = score_to(c, variant);
	run(c, &p, 0, c->n, q, mem, 2);
	case_rows_from(c, out, mem, floats);
	if (!c->on->device)
		ck_assert_msg(!memcmp(plain, out, floats * sizeof *out), "%s: scores change the output",
		              c->on->name);
	double tolerance = case_tolerance(c, c->on, TOLERANCE), *ref = malloc(floats * sizeof *ref);
	for (size_t x = 0; x < floats; x++)
		ref[x] = plain[x];
	case_compare("output with scores", out, ref, floats, tolerance, 0);
	free(ref);
	free(plain);
	free(out);
	return p.ev;
}

static void check_scores(struct kernel_case *c, int variant)
{
	struct score_ref ref = {.out = NULL};
	int rounded = -1; /* was q rounded when the reference was computed? -1: not computed yet */

	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		if (!case_load(c, b))
			continue;
		const struct skv_scores scores = run_with_scores(c, variant);
		if (rounded != case_rounds_q(c, b)) {
			score_ref_free(&ref);
			ref = score_ref_of(c, &scores);
		}
		rounded = case_rounds_q(c, b);
		score_check(c, &scores, &ref);
		case_off(c);
	}
	score_ref_free(&ref);
}

START_TEST(scores)
{
	struct kernel_case c;
	decode_case(&c, _i, _i % 2 ? 5 : 0);
	for (int variant = 0; variant < 6; variant++)
		check_scores(&c, variant);
	case_deinit(&c);
}
END_TEST

int main(void)
{
	Suite *s = case_suite("test-decode");
	TCase *t = add_case(s, "all", 60, NULL, NULL, NULL);
	int cases = rnd_hurried() ? 3 : CASE_SHAPES;

	add_cases(t, decode_dense, cases);
	add_cases(t, decode_window, cases);
	add_cases(t, decode_lists, cases);
	add_cases(t, all_pages_are_dense, cases);
	add_cases(t, nothing_to_see, cases);
	add_cases(t, specials_stay_where_they_are, cases);
	add_cases(t, scores, cases);
	return run_suite(s);
}
