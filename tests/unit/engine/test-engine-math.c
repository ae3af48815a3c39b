/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the engine's arithmetic against double precision, and its scores against examples computed by hand. */
#include <check.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sparsekv/client.h>
#include "engine/divergence.h"
#include "engine/draft.h"
#include "engine/ops.h"
#include "engine/progress.h"
#include "engine/score.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

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

START_TEST(rotary_table)
{
	const struct skv_rope yarn = {
		.type = SKV_ROPE_YARN, .theta = 10000, .factor = 16, .low = 1, .high = 32, .original = 4096};
	float *table = eng_rope_table(&yarn, 64, 300);

	ck_assert_ptr_nonnull(table);
	for (uint32_t p = 0; p < 300; p++)
		for (uint32_t i = 0; i < 32; i++) {
			const double angle = p * skv_rope_frequency(&yarn, 64, i), scale = 0.1 * log(16) + 1;

			/* angles are rounded to 24 bits */
			ck_assert_double_eq_tol(table[p * 64 + i], scale * cos(angle), 1e-7 * (angle + 2));
			ck_assert_double_eq_tol(table[p * 64 + 32 + i], scale * sin(angle), 1e-7 * (angle + 2));
		}
	free(table);
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
static const struct eng_tokens tokens = {.vocab = 264, .eos = EOS, .ends = {EOS}, .n_ends = 1};

/* Writes the ids of a text; '$' stands for eos. Returns their number. */
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
	/* a wrong '\n' spoils only its own line */
	{"abxcd\n$", "ab\ncd\n$", false, 2 / 3.0, 6 / 7.0},
	{"ab\ncd\nx", "ab\ncd\n$", false, 2 / 3.0, 6 / 7.0},
	{"zz$", "ab$", false, 0, 1 / 3.0},
	{"$", "$", true, 1, 1},
	{"\n\n$", "\n\n$", true, 1, 1},
};

static const struct scored freely[] = {
	{"ab\ncd\n$", "ab\ncd\n$", true, 1, 1},
	/* one byte too many: one line is wrong, and every position after it */
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
	s = eng_score_forced(got, want, n, &tokens);
	ck_assert(s.exact == forced[_i].exact);
	ck_assert_double_eq_tol(s.line, forced[_i].line, 1e-12);
	ck_assert_double_eq_tol(s.token, forced[_i].token, 1e-12);
}
END_TEST

START_TEST(scores_free)
{
	int32_t got[16], want[16];
	uint32_t n_got = ids(freely[_i].got, got), n_want = ids(freely[_i].want, want);
	struct eng_score s = eng_score_free(got, n_got, want, n_want, &tokens);

	ck_assert(s.exact == freely[_i].exact);
	ck_assert_double_eq_tol(s.line, freely[_i].line, 1e-12);
	ck_assert_double_eq_tol(s.token, freely[_i].token, 1e-12);
}
END_TEST

START_TEST(likelihood)
{
	struct eng_likelihood e = ENG_LIKELIHOOD_NULL;
	float *rows = random_floats(5 * 20, 4);
	double nll = 0, margin = INFINITY;

	rows[3] = rows[11] = rows[15] = 4.5f; /* the first row has equal largest logits */
	for (int r = 0; r < 5; r++) {
		float best = -INFINITY, second = -INFINITY;

		eng_likelihood_add(&e, rows + 20 * r, 20, r);
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

/* ---- divergence, progress, drafts ------------------------------------------------------------ */

/* P = (1/2, 1/4, 1/4) and Q = (1/4, 1/2, 1/4), for any constant added to their logits: KL = ln 2 / 4. */
START_TEST(divergence)
{
	const float p[3] = {logf(2) + 3, 3, 3}, q[3] = {-40, logf(2) - 40, -40}, r[3] = {logf(2) - 7, -7, -7};
	struct eng_divergence d = {0};

	eng_divergence_add(&d, p, q, 3, 1);
	ck_assert_double_eq_tol(d.kl, log(2) / 4, 1e-6);
	ck_assert_double_eq_tol(d.nll_change, -log(2), 1e-6); /* the true token is likelier under Q */
	ck_assert_uint_eq(d.agree, 0);
	eng_divergence_add(&d, p, r, 3, 0);
	ck_assert_double_eq_tol(d.kl, log(2) / 4, 1e-6);
	ck_assert_double_eq_tol(d.nll_change, -log(2), 1e-6);
	ck_assert(d.agree == 1 && d.rows == 2);
}
END_TEST

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
	/* a terminal may deliver the output in pieces */
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

START_TEST(drafts)
{
	const int32_t text[] = {1, 2, 3, 4, 9, 2, 3, 5, 6, 1, 2, 3}, chosen[] = {4, 9, 7};
	int32_t draft[16];

	/* the draft follows the occurrence of 1 2 3, though 2 3 occurs later; limited by the text and by `most` */
	ck_assert_uint_eq(eng_draft(text, 12, 15, draft), 9);
	ck_assert_mem_eq(draft, text + 3, 9 * sizeof(*draft));
	ck_assert_uint_eq(eng_draft(text, 12, 2, draft), 2);
	ck_assert_uint_eq(eng_draft(text, 12, 0, draft), 0);
	/* 9 2 3 does not occur earlier, 2 3 does */
	ck_assert_uint_eq(eng_draft(text, 7, 15, draft), 4);
	ck_assert_mem_eq(draft, text + 3, 4 * sizeof(*draft));
	for (uint32_t n = 0; n < 7; n++) /* no pair of tokens occurs twice */
		ck_assert_uint_eq(eng_draft(text, n, 15, draft), 0);
	/* a run of one token continues */
	ck_assert_uint_eq(eng_draft((const int32_t[]){8, 8, 8, 8}, 4, 15, draft), 1);
	ck_assert_int_eq(draft[0], 8);

	ck_assert_uint_eq(eng_draft_accepted((const int32_t[]){4, 9, 2}, chosen, 3), 2);
	ck_assert_uint_eq(eng_draft_accepted(chosen, chosen, 3), 3);
	ck_assert_uint_eq(eng_draft_accepted((const int32_t[]){5, 9, 7}, chosen, 3), 0);
	ck_assert_uint_eq(eng_draft_accepted(chosen, chosen, 0), 0);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-engine-math");
	TCase *t;

	add_case(s, "operations", 30, NULL, NULL, rotary_table, argmax_and_nll, NULL);
	t = add_case(s, "scores", 60, NULL, NULL, likelihood, divergence, drafts, progress_is_for_terminals, NULL);
	tcase_add_loop_test(t, scores_forced, 0, sizeof(forced) / sizeof(*forced));
	tcase_add_loop_test(t, scores_free, 0, sizeof(freely) / sizeof(*freely));
	return run_suite(s);
}
