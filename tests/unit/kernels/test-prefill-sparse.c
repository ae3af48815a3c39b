/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/unit/kernels/test-prefill-sparse.c - attention of prompts to a part of the tokens before them, with lists made
 * here, against tests/ref/prefill.c on every backend. Dense rows equal those of the dense kernel. Chunking, the batch,
 * threads and repeated steps do not change a bit.
 */
#include "tests/support/prefill-case.h"
#include "tests/ref/attention.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <string.h>

/* What rows see, including lists, which are the same whenever they are made. */
struct method {
	struct skv_sparse sp; /* without lists */
	uint32_t rows, unit;  /* of lists; rows 0: none */
	bool more, mapped;
	uint8_t map[SKV_MAX_HEADS];
	uint64_t seed;
};

/* ---- methods --------------------------------------------------------------------------------- */

static struct method streaming(void)
{
	return (struct method){.sp = {.tile = 16u << rnd_below(4), .sinks = rnd_below(2) * rnd_below(100),
	                              .window = 1 + rnd_below(rnd_below(2) ? 150 : 20)}};
}

static struct method hip(const struct skv_shape *sh)
{
	return (struct method){.sp = {.tile = 64, .sinks = 64 * rnd_below(3), .window = 64 * rnd_below(3), .by_tile = true,
	                              .n_saved_queries = 1},
	                       .rows = sh->n_heads, .unit = 8};
}

static struct method minference(const struct skv_shape *sh)
{
	return (struct method){.sp = {.tile = 64, .by_tile = true, .segment = 128u << rnd_below(2),
	                              .n_saved_queries = SKV_MINFERENCE_ROWS},
	                       .rows = sh->n_heads, .unit = 64, .more = true};
}

static struct method kascade(const struct skv_shape *sh)
{
	struct method m = {.sp = {.tile = skv_kascade_tile(sh->n_heads / sh->n_kv_heads), .by_tile = true,
	                          .n_saved_queries = 1},
	                   .rows = sh->n_kv_heads, .unit = 1, .mapped = rnd_below(2)};

	for (uint32_t h = 0; h < sh->n_kv_heads; h++)
		m.map[h] = (uint8_t)rnd_below(sh->n_kv_heads);
	return m;
}

static struct method method_of(int which, const struct skv_shape *sh)
{
	struct method m = which == 0   ? streaming()
	                  : which == 1 ? hip(sh)
	                  : which == 2 ? minference(sh)
	                               : kascade(sh);
	const uint32_t correct = rnd_below(6);

	m.seed = rnd64();
	if (correct) {
		m.sp.gamma = m.sp.segment ? 32u << rnd_below(5) : 2u << rnd_below(8);
		m.sp.delta = correct > 1;
	}
	return m;
}

/* True for one in `one_in` of all (sequence, tile, list, unit). */
static bool drawn(const struct method *m, uint64_t i, uint64_t x, uint64_t row, uint64_t u, uint32_t one_in)
{
	const uint64_t parts[] = {i, x, row, u};
	uint64_t h = m->seed;

	for (int k = 0; k < 4; k++) {
		h = (h ^ parts[k]) * 0xd6e8feb86659fd93u;
		h ^= h >> 32;
	}
	return h % one_in == 0;
}

/* Units and single tokens that are listed for the tile at x are between the sinks and the window. */
static bool lists_unit(const struct method *m, uint32_t i, uint32_t x, uint32_t row, uint32_t u)
{
	return m->rows && u * m->unit >= m->sp.sinks && (u + 1) * m->unit + m->sp.window <= x && drawn(m, i, x, row,
			u, 3);
}

static bool lists_token(const struct method *m, uint32_t i, uint32_t x, uint32_t row, uint32_t t)
{
	return m->more && t >= m->sp.sinks && t + m->sp.window < x && !lists_unit(m, i, x, row, t / m->unit) &&
	       drawn(m, i, x, row + 1000, t, 5);
}

struct viewer {
	const struct method *m;
	const struct skv_shape *sh;
	uint32_t i;
};

static void see(const void *ctx, uint32_t p, uint32_t head, bool *visible)
{
	const struct viewer *v = ctx;
	const struct method *m = v->m;
	const uint32_t x = p / m->sp.tile * m->sp.tile, h = head / (v->sh->n_heads / v->sh->n_kv_heads);
	const uint32_t row = m->rows == v->sh->n_kv_heads ? (m->mapped ? m->map[h] : h) : head;

	for (uint32_t t = 0; t <= p; t++)
		visible[t] = t < m->sp.sinks || (m->sp.by_tile ? t + m->sp.window >= x : t + m->sp.window > p) ||
		             (m->rows && lists_unit(m, v->i, x, row, t / m->unit)) || lists_token(m, v->i, x, row, t);
}

/* ---- calls ----------------------------------------------------------------------------------- */

typedef bool lists_fn(const struct method *, uint32_t i, uint32_t x, uint32_t row, uint32_t u);

/* Makes the lists of a call. */
static struct skv_tile_lists list(struct kernel_case *c, const struct calls *a, const struct method *m, uint32_t unit,
                             lists_fn *lists)
{
	struct skv_tile_lists t = {.rows = m->rows, .unit = unit, .mapped = m->mapped,
	                      .tiles = skv_max_tiles(a->batch.max_q, m->sp.tile) + rnd_below(2),
	                      .stride = c->max_len / unit + 1 + rnd_below(3)};
	const size_t n = tiles_number(a, &t);

	memcpy(t.map, m->map, sizeof t.map);
	t.ids = malloc(n * t.stride * sizeof *t.ids);
	t.count = calloc(n, sizeof *t.count);
	memset(t.ids, 0xff, n * t.stride * sizeof *t.ids);
	for (uint32_t s = 0; s < a->batch.n; s++) {
		const uint32_t first = (a->seq[s].len - a->seq[s].n_q) / m->sp.tile, last = (a->seq[s].len - 1) / m->sp.tile;
		for (uint32_t x = first; x <= last; x++)
			for (uint32_t row = 0; row < t.rows; row++) {
				const size_t at = ((size_t)s * t.tiles + x - first) * t.rows + row;
				for (uint32_t u = 0; u * unit < x * m->sp.tile; u++)
					if (lists(m, a->of[s], x * m->sp.tile, row, u))
						t.ids[at * t.stride + t.count[at]++] = u;
			}
	}
	struct skv_tile_lists there = tiles_to(c, a, &t);
	tiles_free(&t);
	return there;
}

static size_t floats_of(const struct kernel_case *c)
{
	return (size_t)c->rows * c->sh.n_heads * c->sh.head_dim;
}

static void run_call(struct kernel_case *c, const struct calls *a, const struct skv_sparse *sp, const void *q,
                     void *out, int threads)
{
	struct skv_workspace w = calls_work(a, c, sp, threads);

	c->on->kern->save_queries(&c->sh, &a->batch, q, sp, &w);
	c->on->kern->prefill_sparse(&c->sh, &a->batch, q, out, sp, &w);
	case_work_done(c, &w);
}

/* Runs all rows, in calls of `step` rows each. */
static float *run(struct kernel_case *c, const struct method *m, uint32_t step, int threads, bool in_place)
{
	const size_t bytes = case_rows_bytes(c, floats_of(c));
	void *q = case_rows_to(c, c->q, floats_of(c)), *out = in_place ? q : case_to(c, NULL, bytes);
	float *result = malloc(floats_of(c) * sizeof *result);
	struct skv_sparse sp = m->sp;
	struct skv_tile_lists units, more;
	struct calls a;

	calls_begin(&a, c, step);
	while (calls_next(&a, c)) {
		if (m->rows) {
			units = list(c, &a, m, m->unit, lists_unit);
			sp.lists = &units;
		}
		if (m->more) {
			more = list(c, &a, m, 1, lists_token);
			sp.extra = &more;
		}
		run_call(c, &a, &sp, q, out, threads);
		if (!in_place && !rnd_below(3)) /* repeat the step */
			run_call(c, &a, &sp, q, out, threads);
	}
	case_rows_from(c, result, out, floats_of(c));
	return result;
}

static void same_bits(const struct kernel_case *c, const float *was, float *is, const char *what)
{
	const size_t row = (size_t)c->sh.n_heads * c->sh.head_dim;

	for (uint32_t i = 0; i < c->n; i++)
		for (uint32_t x = 0; x < c->seq[i].n_q; x++) {
			const size_t at = (c->seq[i].row + x) * row;
			ck_assert_msg(case_same_bits(was + at, is + at, row), "%s: row %u of a prompt of %u from %u: other bits %s",
			              c->on->name, c->seq[i].prompt_start + x, c->seq[i].n_q, c->seq[i].prompt_start, what);
		}
	free(is);
}

/* Checks that dense rows equal those of the dense kernel. */
static void check_dense(struct kernel_case *c, const struct method *m, const float *out)
{
	const size_t row = (size_t)c->sh.n_heads * c->sh.head_dim;
	void *there = case_to(c, NULL, case_rows_bytes(c, floats_of(c)));
	float *dense = malloc(floats_of(c) * sizeof *dense);
	struct skv_workspace w = case_work(c, 1);

	c->on->kern->prefill_dense(&c->sh, &c->batch, case_rows_to(c, c->q, floats_of(c)), there, &w);
	case_work_done(c, &w);
	case_rows_from(c, dense, there, floats_of(c));
	for (uint32_t i = 0; i < c->n; i++)
		for (uint32_t x = 0; x < c->seq[i].n_q; x++) {
			const uint32_t p = c->seq[i].prompt_start + x;
			const size_t at = (c->seq[i].row + x) * row;
			if (skv_row_dense(&c->seq[i], &m->sp, p))
				ck_assert_msg(case_same_bits(dense + at, out + at, row), "%s: dense row %u is another",
				              c->on->name, p);
		}
	free(dense);
}

static void reference(const struct kernel_case *c, const struct test_backend *b, const struct method *m, double *out,
                      double *lse)
{
	float *q = case_q(c, b);

	for (uint32_t i = 0; i < c->n; i++) {
		const struct ref_rows r = prompts_ref(c, i, q);
		const struct ref_correct correct = {.gamma = m->sp.gamma, .delta = m->sp.delta, .dense = c->seq[i].dense_from,
		                                    .segment = m->sp.segment};
		const struct viewer v = {.m = m, .sh = &c->sh, .i = i};
		ref_prompt(&r, &correct, see, &v, out + (size_t)c->seq[i].row * c->sh.n_heads * c->sh.head_dim,
		           lse + (size_t)c->seq[i].row * c->sh.n_heads);
		free((void *)r.there);
	}
	free(q);
}

/* ---- tests ----------------------------------------------------------------------------------- */

/*
 * With a correction some prompts get a random dense tail, whatever gamma is. Real tails would cover many prompts as a
 * whole.
 */
static void prepare(struct kernel_case *c, const struct method *m)
{
	prompts_init(c, &m->sp);
	for (uint32_t i = 0; m->sp.gamma && i < c->n; i++)
		if (rnd_below(3))
			c->seq[i].dense_from = rnd_below(8) ? c->seq[i].prompt_start + rnd_below(c->seq[i].n_q) : 0;
}

static void check(struct kernel_case *c, const struct method *m, double tolerance, bool devices)
{
	const size_t floats = floats_of(c);
	double *ref = malloc(floats * sizeof *ref), *lse = malloc((size_t)c->rows * c->sh.n_heads * sizeof *lse);
	int rounded = -1; /* was q rounded when the reference was computed? -1: not computed yet */

	prepare(c, m);
	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		if (!b->kern->prefill_sparse || (b->device && !devices) || !case_load(c, b))
			continue;
		case_lse_begin(c);
		float *out = run(c, m, STEP_WHOLE, 1, false);
		if (rounded != case_rounds_q(c, b))
			reference(c, b, m, ref, lse);
		rounded = case_rounds_q(c, b);
		/* a difference adds the errors of two more rows */
		case_compare(b->name, out, ref, floats, (m->sp.delta ? 3 : 1) * case_tolerance(c, b, tolerance), 0);
		case_lse_check(c, "sparse", lse, b->device ? 2e-3 : tolerance);
		if (devices) {
			check_dense(c, m, out);
			if (rnd_below(2)) {
				same_bits(c, out, run(c, m, STEP_WHOLE, 2, true), "on 2 threads, in the place of q");
				same_bits(c, out, run(c, m, STEP_RANDOM, 3, false), "when cut");
			} else {
				same_bits(c, out, run(c, m, STEP_RANDOM, 1, true), "when cut, in the place of q");
				same_bits(c, out, run(c, m, 17, 1, false), "when cut into 17 rows each");
			}
		}
		free(out);
		case_off(c);
	}
	free(ref);
	free(lse);
}

/* Begins iteration i: prompts of up to `most` tokens, and a method, with random numbers of its own. */
static struct method begin(struct kernel_case *c, int i, uint32_t most)
{
	rnd_begin((uint64_t)i);
	prompts_make(c, i % CASE_SHAPES, most);
	return method_of(i % 4, &c->sh);
}

/* One of two shapes in turn, which the seed chooses, and a method. */
START_TEST(any_method)
{
	struct kernel_case c;
	rnd_begin((uint64_t)_i);
	const struct method m = begin(&c, 2 * _i + (int)rnd_below(2), 340);

	check(&c, &m, 3e-5, true);
	case_deinit(&c);
}
END_TEST

/*
 * Prompts that begin so late in a segment that all of their rows there are dense first rows. These have no correction
 * row.
 */
START_TEST(first_segment_of_probes)
{
	static const int shapes[] = {12, 15, 23, 26}; /* head_dim 64, 3 heads a group, and 128, in fp16 and bf16 */
	uint32_t len[4], n_q[4];
	struct kernel_case c;

	rnd_begin((uint64_t)_i);
	for (int i = 0; i < 4; i++) {
		n_q[i] = 65 + rnd_below(230);
		len[i] = 128u * (1 + rnd_below(2)) - 1 - rnd_below(SKV_MINFERENCE_ROWS - 1) + n_q[i];
	}
	case_of_shape(&c, shapes[_i % 4], 4, len, n_q);
	struct method m = minference(&c.sh);
	m.seed = rnd64();
	m.sp.segment = 128;
	m.sp.gamma = 32u << rnd_below(3);
	m.sp.delta = _i / 4 % 2;
	check(&c, &m, 3e-5, true);
	case_deinit(&c);
}
END_TEST

/* One row in each call. */
START_TEST(one_by_one)
{
	struct kernel_case c;
	const struct method m = begin(&c, _i, 130);

	prepare(&c, &m);
	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		if (!b->kern->prefill_sparse || !case_load(&c, b))
			continue;
		float *out = run(&c, &m, STEP_WHOLE, 1, false);
		same_bits(&c, out, run(&c, &m, 1, 1, rnd_below(2)), "row by row");
		free(out);
		case_off(&c);
	}
	case_deinit(&c);
}
END_TEST

/* A NaN in token t affects the rows that see it, or whose correction rows do, and on the host no others. */
START_TEST(nothing_reaches_back)
{
	struct kernel_case c;
	const struct method m = begin(&c, _i, 200);

	for (uint32_t i = 0; i < c.n; i++) {
		const size_t at = (size_t)rnd_below(c.seq[i].len) * c.sh.n_kv_heads * c.sh.head_dim +
		                  rnd_below(c.sh.n_kv_heads * c.sh.head_dim);
		case_set(&c, i, rnd_below(2), at, NAN);
	}
	check(&c, &m, 3e-5, false);
	case_deinit(&c);
}
END_TEST

/*
 * Delta Attention's Lemma 1: for a row that sees its top k tokens, dense - sparse is what the tail adds to the dense
 * output, up to T / (H + T) max |v| over the head. H and T are the sums of exp(score) of head and tail.
 */
static void check_lemma(const struct kernel_case *c, const struct ref_rows *r, const bool *head, const float *dense,
                        const float *sparse, double tolerance)
{
	const uint32_t n = r->to;
	double *weight = malloc(n * sizeof *weight), *out = malloc(r->dim * sizeof *out);

	for (uint32_t h = 0; h < r->n_heads; h++, head += n) {
		double missed = 0; /* T / (H + T) */
		ref_row(r, n - 1, h, NULL, NULL, out, weight);
		for (uint32_t t = 0; t < n; t++)
			missed += head[t] ? 0 : weight[t];
		for (uint32_t d = 0; d < r->dim; d++) {
			double most = 0, tail = 0;
			for (uint32_t t = 0; t < n; t++) {
				const double v = r->v[((size_t)t * r->n_heads + h) * r->dim + d];
				most = head[t] && fabs(v) > most ? fabs(v) : most;
				tail += head[t] ? 0 : weight[t] * v;
			}
			const double rest = fabs(dense[h * r->dim + d] - sparse[h * r->dim + d] - tail);
			if (rest > missed * most + tolerance)
				ck_abort_msg("%s: head %u, element %u: off by %g, at most %g", c->on->name, h, d, rest,
				             missed * most);
		}
	}
	free(weight);
	free(out);
}

/* Tests one row of a prompt, of token 256. Each head sees the best k tokens before it, and itself. */
static void lemma_on(struct kernel_case *c, uint32_t k)
{
	const uint32_t n = c->seq[0].len, heads = c->sh.n_heads, floats = heads * c->sh.head_dim;
	const struct skv_tile_lists lists = {.rows = heads, .tiles = 1, .stride = n, .unit = 1,
	                                .ids = malloc(heads * n * sizeof(uint32_t)), .count = calloc(heads, sizeof(uint32_t))};
	float *q = case_q(c, c->on), *out[2] = {malloc(floats * sizeof(float)), malloc(floats * sizeof(float))};
	const struct ref_rows r = prompts_ref(c, 0, q);
	bool *head = calloc(heads * n, sizeof *head);
	double *weight = malloc(n * sizeof *weight);
	struct calls a;

	calls_begin(&a, c, STEP_WHOLE);
	calls_next(&a, c);
	for (uint32_t h = 0; h < heads; h++) {
		ref_tile_weights(&r, n - 1, h, weight);
		ref_mark_topk(weight, n - 1, k, 0, NULL, head + h * n);
		head[h * n + n - 1] = true;
		for (uint32_t t = 0; t + 1 < n; t++)
			if (head[h * n + t])
				lists.ids[h * n + lists.count[h]++] = t;
	}
	for (int sparse = 0; sparse < 2; sparse++) {
		const struct skv_tile_lists there = tiles_to(c, &a, &lists);
		const struct skv_sparse sp = {.tile = 128, .by_tile = true, .lists = sparse ? &there : NULL,
		                              .sinks = sparse ? 0 : n};
		void *to = case_to(c, NULL, case_rows_bytes(c, floats));
		run_call(c, &a, &sp, case_rows_to(c, c->q, floats), to, 1);
		case_rows_from(c, out[sparse], to, floats);
	}
	check_lemma(c, &r, head, out[0], out[1], 2 * case_tolerance(c, c->on, 3e-5));
	free(lists.ids);
	free(lists.count);
	free(q);
	free(out[0]);
	free(out[1]);
	free((void *)r.there);
	free(head);
	free(weight);
}

START_TEST(lemma)
{
	const uint32_t len[] = {257}, n_q[] = {1};
	struct kernel_case c;
	rnd_begin((uint64_t)_i);
	case_init(&c, (uint32_t)_i % 3, 3, 3, 64, 1, len, n_q);
	prompts_init(&c, &(struct skv_sparse){0});
	for (size_t x = 0; x < floats_of(&c); x++)
		c.q[x] *= (float)(1 << rnd_below(4));
	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		if (!b->kern->prefill_sparse || !case_load(&c, b))
			continue;
		lemma_on(&c, 1 + rnd_below(128));
		case_off(&c);
	}
	case_deinit(&c);
}
END_TEST

int main(void)
{
	Suite *s = case_suite("test-prefill-sparse");
	TCase *t = add_case(s, "all", 120, NULL, NULL, NULL);
	int cases = rnd_hurried() ? 4 : CASE_SHAPES;

	add_cases(t, any_method, cases / 2);
	add_cases(t, first_segment_of_probes, 8);
	add_cases(t, one_by_one, cases / 4);
	add_cases(t, nothing_reaches_back, cases / 2);
	add_cases(t, lemma, 6);
	return run_suite(s);
}
