/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/unit/kernels/test-prefill.c - causal attention of many rows, against tests/ref/attention.c on every backend.
 * The split into calls, batches and threads does not change a bit.
 */
#include "tests/support/kernel-case.h"
#include "tests/ref/attention.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <string.h>

static void prefill_case(struct kernel_case *c, int i, uint32_t one_in)
{
	rnd_begin((uint64_t)i);
	uint32_t len[] = {1, 17, 64, 150, 200, 190}, n_q[] = {1, 17, 64, 70, 200, 1};
	len[3] = 71 + rnd_below(150);
	n_q[3] = 1 + rnd_below(70);
	case_of_shape(c, i, 6, len, n_q);
	if (one_in)
		case_punch(c, one_in);
}

static size_t out_floats(const struct kernel_case *c)
{
	return (size_t)c->rows * c->sh.n_heads * c->sh.head_dim;
}

/* q and out are in the backend's memory; returns the output. */
static float *run(struct kernel_case *c, const struct skv_batch *batch, const void *q, void *out, int threads)
{
	float *result = malloc(out_floats(c) * sizeof *result);
	struct skv_workspace w = case_work(c, threads);
	c->on->kern->prefill_dense(&c->sh, batch, q, out, &w);
	case_work_done(c, &w);
	case_rows_from(c, result, out, out_floats(c));
	return result;
}

static void reference(const struct kernel_case *c, const struct test_backend *b, double *out, double *lse)
{
	const struct skv_shape *sh = &c->sh;
	const uint32_t dim = sh->head_dim, group = sh->n_heads / sh->n_kv_heads;
	bool visible[512];
	float *q = case_q(c, b);
	for (uint32_t i = 0; i < c->n; i++)
		for (uint32_t row = 0; row < c->seq[i].n_q; row++) {
			uint32_t n = c->seq[i].len - c->seq[i].n_q + row + 1;
			for (uint32_t t = 0; t < n; t++)
				visible[t] = case_resident(c, i, t);
			for (uint32_t head = 0; head < sh->n_heads; head++) {
				size_t at = ((size_t)(c->seq[i].row + row) * sh->n_heads + head) * dim;
				size_t kv = head / group * dim;
				lse[(c->seq[i].row + row) * sh->n_heads + head] = ref_attention(q + at, c->k[i] + kv, c->v[i] + kv, n, sh->n_kv_heads * dim,
				              dim, case_softmax(c, head), visible, out + at, NULL);
			}
		}
	free(q);
}

/* Returns the output on the case's backend. Checks the same bits on any number of threads, and with out = q. */
static float *run_all(struct kernel_case *c)
{
	size_t floats = out_floats(c), bytes = case_rows_bytes(c, floats);
	void *q = case_rows_to(c, c->q, floats);
	float *out = run(c, &c->batch, q, case_to(c, NULL, bytes), 1);

	for (int threads = 2; threads <= 3; threads++) {
		float *again = run(c, &c->batch, q, case_to(c, NULL, bytes), threads);
		ck_assert_msg(case_same_bits(again, out, floats), "%s: other bits on %d threads",
		              c->on->name, threads);
		free(again);
	}
	float *in_place = run(c, &c->batch, q, q, 1);
	ck_assert_msg(case_same_bits(in_place, out, floats), "%s: other bits in the place of q",
	              c->on->name);
	free(in_place);
	return out;
}

static void check_prefill(struct kernel_case *c, double tolerance, bool devices)
{
	size_t floats = out_floats(c);
	double *ref = malloc(floats * sizeof *ref), *lse = malloc((size_t)c->rows * c->sh.n_heads * sizeof *lse);
	int rounded = -1; /* was q rounded when the reference was computed? -1: not computed yet */

	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		if ((b->device && !devices) || !case_load(c, b))
			continue;
		case_lse_begin(c);
		float *out = run_all(c);
		if (rounded != case_rounds_q(c, b))
			reference(c, b, ref, lse);
		rounded = case_rounds_q(c, b);
		case_compare(b->name, out, ref, floats, case_tolerance(c, b, tolerance), 0);
		case_lse_check(c, "prefill", lse, b->device ? 2e-3 : tolerance);
		free(out);
		case_off(c);
	}
	free(ref);
	free(lse);
}

START_TEST(prefill)
{
	struct kernel_case c;
	prefill_case(&c, _i, _i % 2 ? 5 : 0);
	check_prefill(&c, 3e-5, true);
	for (size_t x = 0; x < out_floats(&c); x++)
		c.q[x] *= 100;
	check_prefill(&c, 2e-3, true);
	case_deinit(&c);
}
END_TEST

/* Makes the next call from some rows of some unfinished sequences. Returns the number of sequences. */
static uint32_t cut(struct kernel_case *c, const struct skv_kseq *all, uint32_t *done, struct skv_kseq *seq)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < c->n; i++) {
		uint32_t rest = all[i].n_q - done[i], take = 1 + rnd_below(90);
		if (!rest || !rnd_below(3))
			continue;
		seq[n] = all[i];
		seq[n].n_q = take < rest ? take : rest;
		seq[n].row = all[i].row + done[i];
		seq[n].len = all[i].len - rest + seq[n].n_q;
		done[i] += seq[n++].n_q;
	}
	return n;
}

/* Random chunks in random batches give the same bits as one pass. */
START_TEST(any_chunking)
{
	struct kernel_case c;
	prefill_case(&c, _i, _i % 2 ? 0 : 5);
	size_t floats = out_floats(&c);
	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		uint32_t done[CASE_SEQS] = {0}, rows = 0;
		struct skv_kseq all[CASE_SEQS], seq[CASE_SEQS];
		if (!case_load(&c, b))
			continue;
		case_from(&c, all, c.batch.seq, c.n * sizeof *all);
		void *q = case_rows_to(&c, c.q, floats);
		void *out = case_to(&c, NULL, case_rows_bytes(&c, floats));
		float *whole = run(&c, &c.batch, q, case_to(&c, NULL, case_rows_bytes(&c, floats)), 1);
		while (rows < c.rows) {
			struct skv_batch batch = case_part(&c, 0, cut(&c, all, done, seq));
			batch.seq = case_to(&c, seq, batch.n * sizeof *seq);
			free(run(&c, &batch, q, out, 1));
			for (uint32_t i = 0; i < batch.n; i++)
				rows += seq[i].n_q;
		}
		float *pieces = malloc(floats * sizeof *pieces);
		case_rows_from(&c, pieces, out, floats);
		ck_assert_msg(case_same_bits(whole, pieces, floats), "%s: other bits when cut",
		              b->name);
		free(whole);
		free(pieces);
		case_off(&c);
	}
	case_deinit(&c);
}
END_TEST

/* A NaN in token t affects the rows from t on, and on the host no earlier row; kernels.h says what devices do. */
START_TEST(nothing_reaches_back)
{
	const uint32_t len[] = {130, 130}, n_q[] = {130, 130};
	struct kernel_case c;
	rnd_begin((uint64_t)_i);
	case_of_shape(&c, _i, 2, len, n_q);
	for (uint32_t i = 0; i < 2; i++) {
		size_t at = ((size_t)rnd_below(130) * c.sh.n_kv_heads + rnd_below(c.sh.n_kv_heads)) *
		            c.sh.head_dim + rnd_below(c.sh.head_dim);
		case_set(&c, i, !i, at, rnd_below(2) ? NAN : INFINITY);
	}
	check_prefill(&c, 3e-5, false);
	case_deinit(&c);
}
END_TEST

int main(void)
{
	Suite *s = case_suite("test-prefill");
	TCase *t = add_case(s, "all", 60, NULL, NULL, NULL);
	int cases = rnd_hurried() ? 2 : CASE_SHAPES;

	add_cases(t, prefill, cases);
	add_cases(t, any_chunking, cases);
	add_cases(t, nothing_reaches_back, cases);
	return run_suite(s);
}
