/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/unit/kernels/test-row-strides.c - rows of q, k, v and out that are a stride apart, as in an engine's fused
 * projections: the same bits as with contiguous rows, and nothing written between rows. For devices only: the client
 * library gathers such rows for the host's kernels.
 */
#include "tests/support/prefill-case.h"
#include "tests/support/score-case.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <string.h>

#define GAP 8u /* gaps between rows are multiples of this many elements: 16 bytes or more in any dtype */

/* Rows of `width` elements on the case's backend, `stride` apart, with NaNs between them. */
struct wide {
	void *at;
	uint32_t rows, width, stride;
};

/* If `src` is NULL, the rows are NaNs, too. */
static struct wide spread(struct kernel_case *c, const float *src, uint32_t rows, uint32_t width)
{
	struct wide w = {.rows = rows, .width = width, .stride = width + GAP * (1 + rnd_below(9))};
	const size_t n = (size_t)rows * w.stride;
	float *x = malloc(n * sizeof *x);

	for (size_t i = 0; i < n; i++)
		x[i] = src && i % w.stride < width ? src[i / w.stride * width + i % w.stride] : NAN;
	w.at = src ? case_rows_to(c, x, n) : case_to(c, NULL, case_rows_bytes(c, n));
	free(x);
	return w;
}

/* Returns the rows without gaps, for the caller to free. Checks that the gaps were not written. */
static float *gather(const struct kernel_case *c, const struct wide *w, const char *what)
{
	const size_t n = (size_t)w->rows * w->stride;
	float *x = malloc(n * sizeof *x), *rows = malloc((size_t)w->rows * w->width * sizeof *rows);

	case_rows_from(c, x, w->at, n);
	for (size_t i = 0; i < n; i++)
		if (i % w->stride < w->width)
			rows[i / w->stride * w->width + i % w->stride] = x[i];
		else if (!isnan(x[i]))
			ck_abort_msg("%s: element %zu, between rows of out, was written", what, i);
	free(x);
	return rows;
}

static uint32_t q_width(const struct kernel_case *c)
{
	return c->sh.n_heads * c->sh.head_dim;
}

static void same_bits(const char *what, const void *x, const void *want, size_t bytes)
{
	if (memcmp(x, want, bytes) != 0)
		ck_abort_msg("%s: other bits with strides", what);
}

/*
 * run(c, shape, q, out, arg) is called with contiguous rows, with strides, and with strides and out = q. It returns
 * `extra` floats of the backend's memory that it fills in besides out, or NULL. Without `writes` out is not written.
 */
typedef const float *run_fn(struct kernel_case *, const struct skv_shape *, const void *q, void *out, const void *arg);

static void check(const char *what, struct kernel_case *c, run_fn *run, const void *arg, bool writes, size_t extra)
{
	const size_t n = (size_t)c->rows * q_width(c);
	struct skv_shape sh = c->sh;
	struct wide q = spread(c, c->q, c->rows, q_width(c)), out = spread(c, NULL, c->rows, q_width(c));
	float *want = malloc(n * sizeof *want), *more[2] = {malloc(extra * sizeof **more + 1), malloc(extra * sizeof **more + 1)};
	void *plain = case_to(c, NULL, case_rows_bytes(c, n));
	const float *beside = run(c, &sh, case_rows_to(c, c->q, n), plain, arg);

	case_rows_from(c, want, plain, n);
	if (extra)
		case_from(c, more[0], beside, extra * sizeof **more);
	sh.q_stride = q.stride;
	sh.out_stride = out.stride;
	for (int in_place = 0; in_place <= writes; in_place++) {
		float *got;

		if (in_place) {
			out = q;
			sh.out_stride = sh.q_stride;
		}
		beside = run(c, &sh, q.at, out.at, arg);
		got = gather(c, &out, what);
		if (writes)
			same_bits(what, got, want, n * sizeof *got);
		if (extra)
			case_from(c, more[1], beside, extra * sizeof **more);
		same_bits(what, more[1], more[0], extra * sizeof **more);
		free(got);
	}
	free(want);
	free(more[0]);
	free(more[1]);
}

/* ---- append ---------------------------------------------------------------------------------- */

static void append_all(struct kernel_case *c, const float *k, const float *v, bool strides)
{
	const uint32_t width = c->sh.n_kv_heads * c->sh.head_dim;
	uint32_t rows = 0, most = 0;
	struct skv_shape sh = c->sh;
	struct skv_kseq seq[CASE_SEQS];
	struct skv_workspace work;

	case_from(c, seq, c->batch.seq, c->n * sizeof *seq);
	for (uint32_t i = 0; i < c->n; i++) {
		seq[i].row = rows;
		seq[i].n_q = seq[i].len;
		rows += seq[i].n_q;
		most = seq[i].n_q > most ? seq[i].n_q : most;
	}
	const struct skv_batch b = {.seq = case_to(c, seq, c->n * sizeof *seq), .n = c->n, .max_len = c->max_len, .max_q = most};
	struct wide wk = spread(c, k, rows, width), wv = spread(c, v, rows, width);

	work = case_work_of(c, c->on->kern->workspace_bytes(&sh, c->n, rows, c->max_len, 1), 1);
	if (strides) {
		sh.k_stride = wk.stride;
		sh.v_stride = wv.stride;
		c->on->kern->append(&sh, &b, NULL, wk.at, wv.at, &work);
	} else {
		c->on->kern->append(&sh, &b, NULL, case_rows_to(c, k, (size_t)rows * width),
		                    case_rows_to(c, v, (size_t)rows * width), &work);
	}
	case_work_done(c, &work);
}

START_TEST(append)
{
	const uint32_t len[] = {1, 15, 16, 70}, n_q[] = {1, 1, 1, 1}, rows = 1 + 15 + 16 + 70;
	struct kernel_case c;

	case_of_shape(&c, _i, 4, len, n_q);
	const size_t n = (size_t)rows * c.sh.n_kv_heads * c.sh.head_dim, bytes = c.pool_pages * c.sh.page_bytes;
	float *k = malloc(n * sizeof *k), *v = malloc(n * sizeof *v);
	uint8_t *pool[2] = {malloc(bytes), malloc(bytes)};

	for (size_t x = 0; x < n; x++) {
		k[x] = rnd_normal();
		v[x] = rnd_normal();
	}
	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		if (!b->device)
			continue;
		for (int strides = 0; strides < 2 && case_on(&c, b); strides++) {
			append_all(&c, k, v, strides);
			case_from(&c, pool[strides], c.sh.pool, bytes);
			case_off(&c);
			if (strides)
				same_bits("append", pool[1], pool[0], bytes);
		}
	}
	free(k);
	free(v);
	free(pool[0]);
	free(pool[1]);
	case_deinit(&c);
}
END_TEST

/* ---- decode ---------------------------------------------------------------------------------- */

static const float *dense(struct kernel_case *c, const struct skv_shape *sh, const void *q, void *out, const void *arg)
{
	const struct skv_scores *scores = arg;
	struct skv_workspace work = case_work(c, 1);

	c->on->kern->decode_dense(sh, &c->batch, q, out, scores, &work);
	case_work_done(c, &work);
	return scores ? scores->lse : NULL;
}

static const float *window(struct kernel_case *c, const struct skv_shape *sh, const void *q, void *out, const void *arg)
{
	const struct skv_window w = {.sinks = 5, .floor = 40, .budget.count = 40};
	struct skv_workspace work = case_work(c, 1);

	(void)arg;
	c->on->kern->decode_window(sh, &c->batch, q, out, &w, &work);
	case_work_done(c, &work);
	return NULL;
}

/* The tokens that it selects are the input of listed(). */
static const float *topk(struct kernel_case *c, const struct skv_shape *sh, const void *q, void *out, const void *arg)
{
	const struct skv_select select = {.budget.count = 50, .floor = 4, .recent_floor = 1};
	struct skv_scores scores = score_to(c, 1);
	struct skv_index_list list = *(const struct skv_index_list *)arg;
	struct skv_workspace work = case_work(c, 1);

	c->on->kern->decode_topk(sh, &c->batch, q, out, &scores, &select, &list, &work);
	case_work_done(c, &work);
	return NULL;
}

static const float *listed(struct kernel_case *c, const struct skv_shape *sh, const void *q, void *out, const void *arg)
{
	struct skv_index_list list = *(const struct skv_index_list *)arg;
	struct skv_workspace work = case_work(c, 1);

	list.max_count = c->max_len;
	c->on->kern->decode_tokens(sh, &c->batch, q, out, &list, &work);
	case_work_done(c, &work);
	return NULL;
}

static const float *bounds(struct kernel_case *c, const struct skv_shape *sh, const void *q, void *out, const void *arg)
{
	const struct skv_scores *scores = arg;
	struct skv_workspace work = case_work(c, 1);

	(void)out;
	c->on->kern->score_pages(sh, &c->batch, q, SKV_REDUCE_MAX, scores, &work);
	case_work_done(c, &work);
	return scores->page;
}

static void make_bounds(struct kernel_case *c)
{
	struct skv_batch b = c->batch;
	struct skv_workspace work = case_work(c, 1);

	b.max_state = c->max_len;
	c->on->kern->update_bounds(&c->sh, &b, NULL, &work);
	case_work_done(c, &work);
}

START_TEST(decode)
{
	const uint32_t len[] = {1, 17, 250, 700}, n_q[] = {1, 1, 1, 1};
	struct kernel_case c;

	case_of_shape(&c, _i, 4, len, n_q);
	for (uint32_t i = 0; i < c.n; i++)
		c.seq[i].n_state = len[i];
	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		struct skv_scores scores;
		struct skv_index_list list;

		if (!b->device || !case_load(&c, b))
			continue;
		scores = score_to(&c, 0);
		list = (struct skv_index_list){.rows = c.sh.n_kv_heads, .stride = c.max_len};
		list.ids = case_to(&c, NULL, (size_t)c.n * list.rows * list.stride * sizeof(uint32_t));
		list.count = case_to(&c, NULL, c.n * list.rows * sizeof(uint32_t));
		check("dense", &c, dense, NULL, true, 0);
		check("dense with scores", &c, dense, &scores, true, c.n * c.sh.n_heads);
		check("window", &c, window, NULL, true, 0);
		check("top-k", &c, topk, &list, true, 0);
		check("listed tokens", &c, listed, &list, true, 0);
		make_bounds(&c);
		check("page bounds", &c, bounds, &scores, false, (size_t)c.n * scores.rows * scores.page_stride);
		case_off(&c);
	}
	case_deinit(&c);
}
END_TEST

/* ---- prefill --------------------------------------------------------------------------------- */

static const float *prompt(struct kernel_case *c, const struct skv_shape *sh, const void *q, void *out, const void *arg)
{
	struct skv_workspace work = case_work(c, 1);

	(void)arg;
	c->on->kern->prefill_dense(sh, &c->batch, q, out, &work);
	case_work_done(c, &work);
	return NULL;
}

/* A window; with Kascade's lists if `arg` saves queries. */
static const float *sparse(struct kernel_case *c, const struct skv_shape *sh, const void *q, void *out, const void *arg)
{
	struct skv_sparse sp = *(const struct skv_sparse *)arg;
	const struct skv_budget top = {.count = 30};
	struct skv_workspace work = case_work_of(c, c->on->kern->prefill_sparse_bytes(sh, &c->batch, &sp, 1), 1);
	const uint32_t tiles = skv_max_tiles(c->max_q, sp.tile);
	struct skv_tile_lists lists = {.rows = sh->n_kv_heads, .tiles = tiles, .stride = c->max_len, .unit = 1};
	const size_t n = (size_t)c->n * tiles * lists.rows;

	if (sp.n_saved_queries) {
		lists.ids = case_to(c, NULL, n * lists.stride * sizeof(uint32_t));
		lists.count = case_to(c, NULL, n * sizeof(uint32_t));
		c->on->kern->kascade_lists(sh, &c->batch, q, &sp, top, 1, &lists, &work);
		sp.lists = &lists;
	}
	c->on->kern->prefill_sparse(sh, &c->batch, q, out, &sp, &work);
	case_work_done(c, &work);
	return NULL;
}

START_TEST(prefill)
{
	const uint32_t len[] = {1, 17, 190, 300};
	const uint32_t n_q[] = {1, 17, 70, 300};
	struct kernel_case c;

	case_of_shape(&c, _i, 4, len, n_q);
	const struct skv_sparse near = {.tile = 64, .window = 50};
	const struct skv_sparse tops = {.tile = skv_kascade_tile(c.sh.n_heads / c.sh.n_kv_heads), .by_tile = true,
	                                .n_saved_queries = 1};

	prompts_init(&c, &tops);
	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		if (!b->device || !case_load(&c, b))
			continue;
		check("prefill", &c, prompt, NULL, true, 0);
		check("prefill of a window", &c, sparse, &near, true, 0);
		check("prefill with lists", &c, sparse, &tops, true, 0);
		case_off(&c);
	}
	case_deinit(&c);
}
END_TEST

int main(void)
{
	const enum case_device there = case_begin("test-row-strides");

	if (there != CASE_HAS_DEVICE)
		return there == CASE_LACKS_DEVICE ? EXIT_FAILURE : 77;
	Suite *s = suite_create("row strides");
	TCase *t = add_case(s, "all", 60, NULL, NULL, NULL);
	int cases = rnd_hurried() ? 2 : CASE_SHAPES;

	add_cases(t, append, cases);
	add_cases(t, decode, cases);
	add_cases(t, prefill, cases);
	return run_suite(s);
}
