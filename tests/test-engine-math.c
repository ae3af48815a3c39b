/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's arithmetic against double precision, and its scores against examples worked out by hand. */
#include <check.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "engine/ops.h"
#include "engine/progress.h"
#include "engine/score.h"
#include "tests/random.h"

/* n floats of about -size … size; to be freed. */
static float *random_floats(size_t n, double size)
{
	float *x = malloc((n ? n : 1) * sizeof(*x));

	ck_assert_ptr_nonnull(x);
	for (size_t i = 0; i < n; i++)
		x[i] = (float)((2 * rnd_unit() - 1) * size);
	return x;
}

/* ---- operations ------------------------------------------------------------------------------ */

START_TEST(matmul)
{
	static const uint32_t rows[] = {1, 2, 3, 4, 5, 16, 33, 130},
			      shapes[][2] = {{16, 16}, {48, 7}, {256, 264}, {33, 50}};

	for (size_t s = 0; s < sizeof(shapes) / sizeof(*shapes); s++)
		for (size_t k = 0; k < sizeof(rows) / sizeof(*rows); k++) {
			uint32_t in = shapes[s][0], out = shapes[s][1];
			float *x = random_floats((size_t)rows[k] * in, 1),
			      *w = random_floats((size_t)out * in, 1);
			float *y = random_floats((size_t)rows[k] * out, 9);

			eng_matmul(y, x, w, rows[k], in, out);
			for (uint32_t r = 0; r < rows[k]; r++)
				for (uint32_t o = 0; o < out; o++) {
					double want = 0;

					for (uint32_t i = 0; i < in; i++)
						want += (double)x[r * in + i] * w[o * in + i];
					ck_assert_double_eq_tol(y[r * out + o], want, 1e-4);
				}
			free(x);
			free(w);
			free(y);
		}
}
END_TEST

START_TEST(rmsnorm)
{
	static const uint32_t shapes[][2] = {{1, 1}, {3, 17}, {200, 256}};

	for (size_t s = 0; s < sizeof(shapes) / sizeof(*shapes); s++) {
		uint32_t rows = shapes[s][0], n = shapes[s][1];
		float *x = random_floats((size_t)rows * n, 3), *w = random_floats(n, 2),
		      *y = random_floats((size_t)rows * n, 9);

		eng_rmsnorm(y, x, w, 1e-5f, rows, n);
		for (uint32_t r = 0; r < rows; r++) {
			double sum = 0;

			for (uint32_t i = 0; i < n; i++)
				sum += (double)x[r * n + i] * x[r * n + i];
			for (uint32_t i = 0; i < n; i++)
				ck_assert_double_eq_tol(y[r * n + i],
				                        x[r * n + i] / sqrt(sum / n + 1e-5) * w[i], 2e-6);
		}
		eng_rmsnorm(x, x, w, 1e-5f, rows, n); /* in place, the same */
		ck_assert_mem_eq(x, y, (size_t)rows * n * sizeof(*x));
		free(x);
		free(w);
		free(y);
	}
}
END_TEST

START_TEST(swiglu)
{
	static const float special[] = {0,     -0.0f,  1e-30f, -1e-30f, 20,   -20,   86.9f, -86.9f,
	                                87.1f, -87.1f, 88,     -88,     1e4f, -1e4f, 3e38f, -3e38f};
	uint32_t n = 1000, rows = 40, n_special = sizeof(special) / sizeof(*special);
	float *x = random_floats((size_t)rows * 2 * n, 30), *y = random_floats((size_t)rows * n, 9);

	memcpy(x, special, sizeof(special));
	for (uint32_t i = 0; i < n_special; i++)
		x[n + i] = 0.5f;
	eng_swiglu(y, x, rows, n);
	for (uint32_t r = 0; r < rows; r++)
		for (uint32_t i = 0; i < n; i++) {
			double g = x[r * 2 * n + i], want = g / (1 + exp(-g)) * x[r * 2 * n + n + i];

			ck_assert_msg(fabs(y[r * n + i] - want) <= 1e-6 * fabs(want) + 1e-30,
			              "silu(%g) gives %g, expected %g", g, (double)y[r * n + i], want);
		}
	free(x);
	free(y);
}
END_TEST

START_TEST(add)
{
	static const uint64_t sizes[] = {0, 1, 5, 100000};

	for (size_t s = 0; s < sizeof(sizes) / sizeof(*sizes); s++) {
		float *x = random_floats(sizes[s], 1), *y = random_floats(sizes[s], 1),
		      *sum = random_floats(sizes[s], 1);

		memcpy(sum, x, sizes[s] * sizeof(*x));
		eng_add(sum, y, sizes[s]);
		for (uint64_t i = 0; i < sizes[s]; i++)
			ck_assert(sum[i] == x[i] + y[i]);
		free(x);
		free(y);
		free(sum);
	}
}
END_TEST

START_TEST(rope)
{
	const struct eng_heads heads = {.n_heads = 6, .n_kv_heads = 2, .head_dim = 32};
	const struct eng_rope r = {.type = ENG_ROPE_DEFAULT, .theta = 500000};
	const uint32_t rows = 300, d = 32, width = (6 + 2 + 2) * d;
	float *table = eng_rope_table(&r, d, 4000), *in = random_floats(rows * width, 2);
	float *q = random_floats(rows * 6 * d, 9), *k = random_floats(rows * 2 * d, 9),
	      *v = random_floats(rows * 2 * d, 9);
	uint32_t position[rows];

	for (uint32_t i = 0; i < rows; i++)
		position[i] = i ? rnd_below(4000) : 3999;
	eng_rope_split(q, k, v, in, &heads, table, position, rows);
	for (uint32_t row = 0; row < rows; row++)
		for (uint32_t head = 0; head < 8; head++)
			for (uint32_t i = 0; i < d / 2; i++) {
				const float *from = in + row * width + head * d;
				const float *to = head < 6 ? q + (row * 6 + head) * d
				                           : k + (row * 2 + head - 6) * d;
				double angle = position[row] * pow(500000, -2.0 * i / d), c = cos(angle),
				       s = sin(angle);

				/* the angle is rounded to fp32: at 4,000 that moves it by up to 1.2e-4 */
				ck_assert_double_eq_tol(to[i], from[i] * c - from[d / 2 + i] * s, 8e-4);
				ck_assert_double_eq_tol(to[d / 2 + i], from[d / 2 + i] * c + from[i] * s,
				                        8e-4);
			}
	for (uint32_t row = 0; row < rows; row++)
		ck_assert_mem_eq(v + row * 2 * d, in + row * width + 8 * d, 2 * d * sizeof(*v));
	free(table);
	free(in);
	free(q);
	free(k);
	free(v);
}
END_TEST

/* Llama 3.1's scaling at the points where its three parts meet. */
START_TEST(rope_scaling)
{
	struct eng_rope linear = {.type = ENG_ROPE_LINEAR, .theta = 10000, .factor = 4};
	struct eng_rope llama3 = {.type = ENG_ROPE_LLAMA3,
	                          .theta = 500000,
	                          .factor = 8,
	                          .low_freq_factor = 1,
	                          .high_freq_factor = 4,
	                          .original_positions = 8192};

	ck_assert_double_eq_tol(eng_rope_frequency(&linear, 64, 3), pow(10000, -6.0 / 64) / 4, 1e-15);
	for (uint32_t i = 0; i < 64; i++) {
		double f = pow(500000, -2.0 * i / 128), wavelength = 2 * M_PI / f,
		       got = eng_rope_frequency(&llama3, 128, i);

		if (wavelength < 8192 / 4.0) {
			ck_assert_double_eq_tol(got, f, 1e-15);
		} else if (wavelength > 8192) {
			ck_assert_double_eq_tol(got, f / 8, 1e-15);
		} else {
			double smooth = (8192 / wavelength - 1) / (4 - 1);

			ck_assert_double_eq_tol(got, (1 - smooth) * f / 8 + smooth * f, 1e-15);
			ck_assert(got > f / 8 && got < f);
		}
	}
}
END_TEST

START_TEST(argmax_and_nll)
{
	const float ties[] = {1, 5, -3, 5, 5};
	float large[] = {1000, 999, -1000};
	float *x = random_floats(264, 8);
	double sum = 0;

	ck_assert_uint_eq(eng_argmax(ties, 5), 1);
	ck_assert_uint_eq(eng_argmax(ties, 1), 0);
	ck_assert_double_eq_tol(eng_nll(large, 3, 0), log(1 + exp(-1)), 1e-12);
	ck_assert_double_eq_tol(eng_nll(large, 3, 2), 2000 + log(1 + exp(-1)), 1e-9);
	for (int i = 0; i < 264; i++)
		sum += exp(x[i]);
	ck_assert_double_eq_tol(eng_nll(x, 264, 17), log(sum) - x[17], 1e-9);
	free(x);
}
END_TEST

/* ---- scores ---------------------------------------------------------------------------------- */

enum { EOS = 257 };

/* The ids of a text; '$' stands for eos. Returns how many. */
static uint32_t ids(const char *text, int32_t *to)
{
	uint32_t n = 0;

	for (; *text; text++)
		to[n++] = *text == '$' ? EOS : *text;
	return n;
}

struct scored {
	const char *got, *want;
	bool exact;
	double line, token;
};

static const struct scored forced[] = {
	{"ab\ncd\n$", "ab\ncd\n$", true, 1, 1},
	{"xb\ncd\n$", "ab\ncd\n$", false, 2 / 3.0, 6 / 7.0},
	/* a wrong '\n' spoils its own line alone */
	{"abxcd\n$", "ab\ncd\n$", false, 2 / 3.0, 6 / 7.0},
	{"ab\ncd\nx", "ab\ncd\n$", false, 2 / 3.0, 6 / 7.0},
	{"zz$", "ab$", false, 0, 1 / 3.0},
	{"$", "$", true, 1, 1},
	{"\n\n$", "\n\n$", true, 1, 1},
};

static const struct scored freely[] = {
	{"ab\ncd\n$", "ab\ncd\n$", true, 1, 1},
	/* one byte too many: one line is wrong, and every place after it */
	{"abx\ncd\n$", "ab\ncd\n$", false, 2 / 3.0, 2 / 7.0},
	{"ab\ncd\n", "ab\ncd\n$", false, 2 / 3.0, 6 / 7.0},
	{"ab\ncd\nef\n$", "ab\ncd\n$", false, 2 / 3.0, 6 / 7.0},
	{"$", "ab\n$", false, 0, 0},
	{"", "ab\n$", false, 0, 0},
	{"ab", "ab\n$", false, 0, 0.5},
	{"cd\nab\n$", "ab\ncd\n$", false, 1 / 3.0, 3 / 7.0},
};

START_TEST(scores_forced)
{
	int32_t got[16], want[16];
	uint32_t n = ids(forced[_i].got, got);
	struct eng_score s;

	ck_assert_uint_eq(ids(forced[_i].want, want), n);
	s = eng_score_forced(got, want, n, EOS);
	ck_assert(s.exact == forced[_i].exact);
	ck_assert_double_eq_tol(s.line, forced[_i].line, 1e-12);
	ck_assert_double_eq_tol(s.token, forced[_i].token, 1e-12);
}
END_TEST

START_TEST(scores_free)
{
	int32_t got[16], want[16];
	uint32_t n_got = ids(freely[_i].got, got), n_want = ids(freely[_i].want, want);
	struct eng_score s = eng_score_free(got, n_got, want, n_want, EOS);

	ck_assert(s.exact == freely[_i].exact);
	ck_assert_double_eq_tol(s.line, freely[_i].line, 1e-12);
	ck_assert_double_eq_tol(s.token, freely[_i].token, 1e-12);
}
END_TEST

START_TEST(evidence)
{
	struct eng_evidence e = ENG_EVIDENCE_NULL;
	float *rows = random_floats(5 * 20, 4);
	double nll = 0, margin = INFINITY;

	rows[3] = rows[11] = rows[15] = 4.5f; /* the first row has ties at the top */
	for (int r = 0; r < 5; r++) {
		float best = -INFINITY, second = -INFINITY;

		eng_evidence_add(&e, rows + 20 * r, 20, r);
		nll += eng_nll(rows + 20 * r, 20, (uint32_t)r);
		for (int i = 0; i < 20; i++) {
			float x = rows[20 * r + i];

			second = x > best ? best : x > second ? x : second;
			best = x > best ? x : best;
		}
		margin = fmin(margin, (double)best - second);
	}
	ck_assert_uint_eq(e.rows, 5);
	ck_assert_double_eq_tol(e.nll, nll, 1e-12);
	ck_assert(e.smallest_margin == margin);
	ck_assert(e.top[0] == 3 && e.top[1] == 11 && e.top[2] == 15);
	for (int i = 0; i < ENG_TOP; i++) {
		int better = 0;

		ck_assert(e.top_logit[i] == rows[e.top[i]]);
		for (uint32_t j = 0; j < 20; j++)
			better += rows[j] > e.top_logit[i] || (rows[j] == e.top_logit[i] && j < e.top[i]);
		ck_assert_int_eq(better, i);
	}
	free(rows);
}
END_TEST

/* ---- progress -------------------------------------------------------------------------------- */

START_TEST(progress_is_for_terminals)
{
	int pipe_fd[2], pty = posix_openpt(O_RDWR | O_NOCTTY);
	struct eng_progress p;
	double begun;
	bool soon;
	char text[512];
	ssize_t n;
	FILE *f;

	ck_assert_int_eq(pipe(pipe_fd), 0);
	f = fdopen(pipe_fd[1], "w");
	eng_progress_begin(&p, f, 10, false);
	eng_progress_show(&p, 5, "work");
	eng_progress_end(&p);
	fclose(f);
	ck_assert_int_eq(read(pipe_fd[0], text, sizeof(text)), 0);
	close(pipe_fd[0]);

	ck_assert(pty >= 0 && grantpt(pty) == 0 && unlockpt(pty) == 0);
	f = fopen(ptsname(pty), "w");
	ck_assert_ptr_nonnull(f);
	eng_progress_begin(&p, f, 10, false);
	eng_progress_show(&p, 5, "work");
	begun = p.drawn;
	eng_progress_show(&p, 6, "too soon");
	soon = eng_now() - begun < 0.1; /* unless this machine is very slow */
	eng_progress_end(&p);
	/* the terminal may hand on what was written in pieces */
	for (n = 0, text[0] = '\0'; n < 4 || strcmp(text + n - 4, "\r\033[K") != 0; text[n] = '\0') {
		ssize_t got;

		ck_assert_int_eq(poll(&(struct pollfd){.fd = pty, .events = POLLIN}, 1, 5000), 1);
		got = read(pty, text + n, sizeof(text) - 1 - (size_t)n);
		ck_assert_int_gt(got, 0);
		n += got;
	}
	ck_assert_ptr_nonnull(strstr(text, "[############............]  50 %"));
	ck_assert_ptr_nonnull(strstr(text, "work"));
	ck_assert(!soon || !strstr(text, "too soon"));
	fclose(f);
	close(pty);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("engine: arithmetic");
	TCase *t = tcase_create("operations");

	tcase_set_timeout(t, 30);
	tcase_add_test(t, matmul);
	tcase_add_test(t, rmsnorm);
	tcase_add_test(t, swiglu);
	tcase_add_test(t, add);
	tcase_add_test(t, rope);
	tcase_add_test(t, rope_scaling);
	tcase_add_test(t, argmax_and_nll);
	suite_add_tcase(s, t);

	t = tcase_create("scores");
	tcase_add_loop_test(t, scores_forced, 0, sizeof(forced) / sizeof(*forced));
	tcase_add_loop_test(t, scores_free, 0, sizeof(freely) / sizeof(*freely));
	tcase_add_test(t, evidence);
	tcase_add_test(t, progress_is_for_terminals);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	SRunner *r = srunner_create(suite());
	int failed;

	rnd_seed("test-engine-math");
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
