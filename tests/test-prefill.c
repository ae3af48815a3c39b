/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/test-prefill.c - causal attention of many rows, against ref-attention.c on every ISA; and the
 * promise that how a prompt is cut into calls, batches and threads does not change a bit.
 */
#include "tests/kernel-case.h"
#include "tests/ref-attention.h"
#include <check.h>
#include <math.h>
#include <string.h>

static const struct {
	uint32_t heads, kv_heads, dim;
} shapes[] = {
	{1, 1, 16}, {8, 2, 64}, {12, 2, 48}, {7, 7, 80}, {32, 1, 128}, {7, 1, 96}, {2, 2, 256}, {3, 1, 64}, {200, 1, 16},
};
#define N_SHAPES ((int)(sizeof shapes / sizeof *shapes))
#define N_CASES (3 * N_SHAPES)

static void prefill_case(struct kernel_case *c, int i, uint32_t one_in)
{
	rnd_state += (uint64_t)i;
	uint32_t len[] = {1, 17, 64, 150, 200, 190}, n_q[] = {1, 17, 64, 70, 200, 1};
	len[3] = 71 + rnd_below(150);
	n_q[3] = 1 + rnd_below(70);
	case_init(c, (uint32_t)(i / N_SHAPES), shapes[i % N_SHAPES].heads,
	          shapes[i % N_SHAPES].kv_heads, shapes[i % N_SHAPES].dim, 6, len, n_q);
	case_append(c, skv_kernels_host(NULL), 200, 1);
	if (one_in)
		case_punch(c, one_in);
}

static size_t out_floats(const struct kernel_case *c)
{
	return (size_t)c->rows * c->sh.n_heads * c->sh.head_dim;
}

static void run(const struct skv_kernels *kern, const struct kernel_case *c, const struct skv_kseq *seq, uint32_t n,
                float *out, int threads)
{
	struct skv_work w = case_work(c, kern, threads);
	kern->prefill_dense(&c->sh, seq, n, c->q, out, &w);
	case_work_done(&w);
}

static void reference(const struct kernel_case *c, double *out)
{
	const struct skv_shape *sh = &c->sh;
	const uint32_t dim = sh->head_dim, group = sh->n_heads / sh->n_kv_heads;
	bool visible[512];
	for (uint32_t i = 0; i < c->n; i++)
		for (uint32_t row = 0; row < c->seq[i].n_q; row++) {
			uint32_t n = c->seq[i].len - c->seq[i].n_q + row + 1;
			for (uint32_t t = 0; t < n; t++)
				visible[t] = case_resident(c, i, t);
			for (uint32_t head = 0; head < sh->n_heads; head++) {
				size_t at = ((size_t)(c->seq[i].row + row) * sh->n_heads + head) * dim;
				size_t kv = head / group * dim;
				ref_attention(c->q + at, c->k[i] + kv, c->v[i] + kv, n, sh->n_kv_heads * dim, dim,
				              sh->scale, visible, out + at, NULL);
			}
		}
}

static void check_prefill(const struct kernel_case *c, double tolerance)
{
	size_t floats = out_floats(c);
	float *out[4], *again = malloc(floats * sizeof *again);
	double *ref = malloc(floats * sizeof *ref);
	int n = 0;

	for (const char *const *isa = case_isas(); *isa; isa++, n++) {
		out[n] = malloc(floats * sizeof(float));
		memset(out[n], 0xff, floats * sizeof(float));
		run(skv_kernels_host(*isa), c, c->seq, c->n, out[n], 1);
		for (int threads = 2; threads <= 3; threads++) {
			memset(again, 0xff, floats * sizeof *again);
			run(skv_kernels_host(*isa), c, c->seq, c->n, again, threads);
			ck_assert_msg(!memcmp(again, out[n], floats * sizeof *again), "%s: other bits on %d threads", *isa,
			              threads);
		}
	}
	reference(c, ref);
	for (int i = 0; i < n; i++) {
		case_compare(case_isas()[i], out[i], ref, floats, tolerance);
		free(out[i]);
	}
	free(again);
	free(ref);
}

START_TEST(prefill)
{
	struct kernel_case c;
	prefill_case(&c, _i, _i % 2 ? 5 : 0);
	check_prefill(&c, 3e-5);
	for (size_t x = 0; x < (size_t)c.rows * c.sh.n_heads * c.sh.head_dim; x++)
		c.q[x] *= 100;
	check_prefill(&c, 2e-3);
	case_deinit(&c);
}
END_TEST

/* Cut at random places, batched at random: the same bits as one pass. */
START_TEST(any_chunking)
{
	struct kernel_case c;
	prefill_case(&c, _i, _i % 2 ? 0 : 5);
	size_t floats = out_floats(&c);
	float *whole = malloc(floats * sizeof *whole), *cut = malloc(floats * sizeof *cut);
	for (const char *const *isa = case_isas(); *isa; isa++) {
		uint32_t done[CASE_SEQS] = {0}, left = c.rows;
		run(skv_kernels_host(*isa), &c, c.seq, c.n, whole, 1);
		memset(cut, 0xff, floats * sizeof *cut);
		while (left) {
			struct skv_kseq seq[CASE_SEQS];
			uint32_t n = 0;
			for (uint32_t i = 0; i < c.n; i++) {
				uint32_t rest = c.seq[i].n_q - done[i], take = 1 + rnd_below(90);
				if (!rest || !rnd_below(3))
					continue;
				take = take < rest ? take : rest;
				seq[n++] = (struct skv_kseq){.table = c.seq[i].table, .n_q = take, .row = c.seq[i].row + done[i],
				                             .len = c.seq[i].len - rest + take};
				done[i] += take;
				left -= take;
			}
			run(skv_kernels_host(*isa), &c, seq, n, cut, 1);
		}
		ck_assert_msg(!memcmp(whole, cut, floats * sizeof *cut), "%s: other bits when cut", *isa);
	}
	free(whole);
	free(cut);
	case_deinit(&c);
}
END_TEST

/* A NaN in token t shows in the rows from t on, and in none before. */
START_TEST(nothing_reaches_back)
{
	const uint32_t len[] = {130, 130}, n_q[] = {130, 130};
	struct kernel_case c;
	rnd_state += (uint64_t)_i;
	case_init(&c, (uint32_t)(_i / N_SHAPES), shapes[_i % N_SHAPES].heads,
	          shapes[_i % N_SHAPES].kv_heads, shapes[_i % N_SHAPES].dim, 2, len, n_q);
	for (uint32_t i = 0; i < 2; i++) {
		size_t at = ((size_t)rnd_below(130) * c.sh.n_kv_heads + rnd_below(c.sh.n_kv_heads)) *
		            c.sh.head_dim + rnd_below(c.sh.head_dim);
		(i ? c.k : c.v)[i][at] = (i ? c.k_in : c.v_in)[i][at] = rnd_below(2) ? NAN : INFINITY;
	}
	case_append(&c, skv_kernels_host(NULL), 130, 1);
	check_prefill(&c, 3e-5);
	case_deinit(&c);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("prefill");
	TCase *tc = tcase_create("all");
	int failed, cases = getenv("SKV_VALGRIND") ? 2 : N_CASES;

	rnd_seed("test-prefill");
	suite_add_tcase(suite, tc);
	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, prefill, 0, cases);
	tcase_add_loop_test(tc, any_chunking, 0, cases);
	tcase_add_loop_test(tc, nothing_reaches_back, 0, cases);

	SRunner *runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
