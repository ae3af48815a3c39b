/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a small random model loses under policies, against logits compared plainly; and the layers that a search finds,
 * against all sets of layers.
 */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include "engine/recall-task.h"
#include "engine/loss.h"
#include "engine/search.h"
#include "tests/support/engine-daemon.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

enum { LAYERS = 6, VOCAB = 264, CASES = 3, PROMPT = 160, ANSWER = 40, TEXT = 1000 };
#define PIECE_BYTES (ENG_RECALL_TASK_PIECE * sizeof(int32_t))

static const struct fx_model shape = {48, LAYERS, 4, 2, 16, 80, VOCAB, 512, 10000, 1e-5, FX_BF16, true};
static struct eng_model model;
static struct eng_cases cases;
static struct eng_eval eval;
static int32_t bos = 256;
static const struct eng_tokens tokens = {.begin = {&bos, 1, 1}, .vocab = VOCAB, .eos = 257, .ends = {257}, .n_ends = 1};

static void any_text(int32_t *ids)
{
	for (int i = 0; i < TEXT; i++)
		ids[i] = (int32_t)rnd_below(256);
}

static void setup(void)
{
	const struct eng_recall_task echo = {.n = CASES, .prompt = PROMPT, .answer = ANSWER};
	struct fx_weights *w = fx_weights_new(&shape);
	struct eng_error err;
	int32_t text[TEXT];

	/* threads that wait for each other are most of the time of a model so small, on a machine that is busy */
	omp_set_num_threads(1);
	daemon_setup();
	fx_model_write(&shape, w, folder);
	fx_weights_free(w);
	ck_assert_msg(!eng_model_load(&model, folder, eng_backend_host(), SKV_F32, &err), "%s", err.text);
	any_text(text);
	ck_assert_int_eq(eng_recall_task_cases(&cases, text, TEXT, &echo, &tokens, &err), 0);
	eval = (struct eng_eval){.model = &model, .tokens = &tokens, .client = engine_client, .kv_dtype = SKV_F32, .cases = &cases,
	                         .batch = 2, .chunk = ENG_CHUNK, .quiet = true};
}

static void teardown(void)
{
	eng_cases_deinit(&cases);
	eng_model_deinit(&model);
	daemon_teardown();
}

/* ---- echoes ---------------------------------------------------------------------------------- */

/* Each piece of the answer is one of the prompt, none comes again before all were there. */
START_TEST(echoes)
{
	const struct eng_recall_task echo = {.n = 5, .prompt = 7 * ENG_RECALL_TASK_PIECE + 5,
	                                     .answer = 9 * ENG_RECALL_TASK_PIECE + 3};
	struct eng_cases list;
	struct eng_error err;
	int32_t text[TEXT];

	any_text(text);
	ck_assert_int_eq(eng_recall_task_cases(&list, text, TEXT, &echo, &tokens, &err), 0);
	ck_assert_uint_eq(list.n, 5);
	for (size_t i = 0; i < list.n; i++) {
		const struct eng_case *c = &list.list[i];
		uint32_t seen = 0;

		ck_assert(c->n_prompt == echo.prompt + 1 && c->prompt[0] == 256);
		ck_assert(c->n_answer == echo.answer + 1 && c->answer[echo.answer] == 257);
		ck_assert_int_eq(memcmp(c->prompt + 1, text + i * (TEXT - echo.prompt) / 4, echo.prompt * sizeof(*text)), 0);
		for (uint32_t at = 0; at + ENG_RECALL_TASK_PIECE <= echo.answer; at += ENG_RECALL_TASK_PIECE) {
			const int32_t *piece = memmem(c->prompt, c->n_prompt * sizeof(*piece), c->answer + at, PIECE_BYTES);

			ck_assert_ptr_nonnull(piece);
			seen |= at < echo.prompt - 5 ? 1u << (piece - c->prompt) / ENG_RECALL_TASK_PIECE : 0;
		}
		ck_assert_uint_eq(seen, (1u << 7) - 1);
		ck_assert_int_eq(memcmp(c->answer, c->answer + (size_t)7 * ENG_RECALL_TASK_PIECE, PIECE_BYTES), 0);
		ck_assert_int_ne(memcmp(c->answer, c->prompt + 1, 7 * PIECE_BYTES), 0);
	}
	eng_cases_deinit(&list);
}
END_TEST

/* ---- losses ---------------------------------------------------------------------------------- */

static float logits_of[2][CASES][ANSWER + 1][VOCAB];

static void take_logits(void *arg, uint32_t policy, size_t c, uint32_t at, const float *logits)
{
	(void)arg;
	memcpy(logits_of[policy][c][at], logits, sizeof(logits_of[policy][c][at]));
}

static void softmax(const float *x, double *p)
{
	double sum = 0;

	for (int i = 0; i < VOCAB; i++)
		sum += p[i] = exp((double)x[i]);
	for (int i = 0; i < VOCAB; i++)
		p[i] /= sum;
}

static double divergence(void)
{
	double sum = 0, p[VOCAB], q[VOCAB];

	for (int c = 0; c < CASES; c++)
		for (int at = 0; at <= ANSWER; at++) {
			softmax(logits_of[0][c][at], p);
			softmax(logits_of[1][c][at], q);
			for (int i = 0; i < VOCAB; i++)
				sum += p[i] * log(p[i] / q[i]);
		}
	return sum / (CASES * (ANSWER + 1));
}

START_TEST(losses)
{
	/* more of them than are run at once */
	const char *specs[19] = {"full", "delta?budget=2&layers=1,3&dense=1", "delta?budget=64&layers=2", "no-such"};
	const char *two[] = {"full", specs[1]};
	struct eng_eval plain = eval;
	struct eng_result *results;
	double got[19], want;
	struct eng_loss l;
	struct eng_error err;

	plain.policies = two;
	plain.n_policies = 2;
	plain.looks = take_logits;
	ck_assert_msg(!eng_evaluate(&plain, &results, &err), "%s", err.text);
	free(results);
	want = divergence();
	ck_assert_double_gt(want, 1e-4);

	ck_assert_msg(!eng_loss_init(&l, &eval, &err), "%s", err.text);
	ck_assert_int_lt(eng_loss_of(&l, specs, 4, got, &err), 0);
	for (int i = 3; i < 19; i++)
		specs[i] = specs[i % 3];
	ck_assert_msg(!eng_loss_of(&l, specs, 19, got, &err), "%s", err.text);
	for (int i = 0; i < 19; i++) {
		double expected = i % 3 == 1 ? want : 0; /* the third selects all pages that there are */

		ck_assert_double_eq_tol(got[i], expected, want / 1000);
	}
	eng_loss_deinit(&l);
}
END_TEST

/* ---- the search ------------------------------------------------------------------------------ */

static uint32_t bits_of(const struct skv_layer_set *set)
{
	return (uint32_t)set->bits[0];
}

/* Of sets of layers of a small model, by their bits. */
struct table {
	double loss[1 << 12];
	uint32_t asked[1 << 12], n;
};

static int look_up(void *arg, const struct skv_layer_set *sets, uint32_t n, double *ret, struct eng_error *err)
{
	struct table *t = arg;

	(void)err;
	for (uint32_t i = 0; i < n; i++) {
		t->asked[bits_of(&sets[i])]++;
		t->n++;
		ret[i] = t->loss[bits_of(&sets[i])];
	}
	return 0;
}

/* Is no set better that differs from this one in one layer behind the first? */
static bool nothing_near_is_better(const double *loss, const struct eng_choice *c, uint32_t set)
{
	for (uint32_t other = 0; other < 1u << c->n_layers; other++)
		if (__builtin_popcount(other) == (int)c->n && __builtin_popcount(other ^ set) == 2 &&
		    __builtin_ctz(other) == (int)c->first && loss[other] < loss[set])
			return false;
	return true;
}

static double best_of_all(const double *loss, const struct eng_choice *c)
{
	double best = INFINITY;

	for (uint32_t set = 1; set < 1u << c->n_layers; set++)
		if (__builtin_popcount(set) == (int)c->n && __builtin_ctz(set) == (int)c->first)
			best = fmin(best, loss[set]);
	return best;
}

static uint32_t search(const struct eng_choice *c, eng_judge *judge, void *arg, struct eng_found *found)
{
	uint32_t layers[LAYERS * 2], set = 0;
	struct eng_error err;

	for (uint32_t i = 0; i < c->n; i++)
		layers[i] = c->first + i;
	ck_assert_msg(!eng_search(c, judge, arg, layers, found, &err), "%s", err.text);
	ck_assert_uint_eq(layers[0], c->first);
	for (uint32_t i = 0; i < c->n; i++) {
		ck_assert(i == 0 || layers[i] > layers[i - 1]);
		ck_assert_uint_lt(layers[i], c->n_layers);
		set |= 1u << layers[i];
	}
	return set;
}

/* Losses that say nothing, with many equals; and those where each layer adds something, so that one way leads down. */
START_TEST(search_against_all)
{
	for (int round = 0; round < 300; round++) {
		struct eng_choice c = {.n_layers = 1 + rnd_below(12)};
		struct eng_found found;
		static struct table t;
		double each[12];
		uint32_t set;

		c.first = rnd_below(c.n_layers);
		c.n = 1 + rnd_below(c.n_layers - c.first);
		memset(&t, 0, sizeof(t));
		for (uint32_t l = 0; l < 12; l++)
			each[l] = rnd_unit();
		for (uint32_t s = 0; s < 1u << c.n_layers; s++) {
			t.loss[s] = round % 2 ? rnd_below(20) : 0;
			for (uint32_t l = 0; round % 2 == 0 && l < c.n_layers; l++)
				t.loss[s] += s >> l & 1 ? each[l] : 0;
		}
		set = search(&c, look_up, &t, &found);
		ck_assert_double_eq(found.loss, t.loss[set]);
		ck_assert_double_eq(found.first_loss, t.loss[((1u << c.n) - 1) << c.first]);
		ck_assert_uint_eq(found.judged, t.n);
		ck_assert(nothing_near_is_better(t.loss, &c, set));
		if (round % 2 == 0 || c.n <= 2)
			ck_assert_double_eq_tol(found.loss, best_of_all(t.loss, &c), 1e-12);
		for (uint32_t s = 0; s < 1u << c.n_layers; s++)
			ck_assert_uint_le(t.asked[s], 1);
	}
}
END_TEST

static int refuse(void *arg, const struct skv_layer_set *sets, uint32_t n, double *ret, struct eng_error *err)
{
	(void)sets, (void)ret;
	*(uint32_t *)arg += n;
	return eng_fail(err, -EIO, "cannot say");
}

START_TEST(search_gives_up)
{
	const struct eng_choice c = {.n_layers = 5, .n = 2};
	uint32_t layers[] = {0, 3}, asked = 0;
	struct eng_found found = {.judged = 77};
	struct eng_error err;

	ck_assert_int_eq(eng_search(&c, refuse, &asked, layers, &found, &err), -EIO);
	ck_assert_str_eq(err.text, "cannot say");
	ck_assert(asked == 1 && layers[1] == 3 && found.judged == 77);
}
END_TEST

/* What the model itself loses under a policy. */
START_TEST(search_of_a_model)
{
	static const char *const policies[] = {"delta?dense=1&budget=2&layers=",
	                                       "kascade:dense-anchors?budget=12&layers="};
	struct eng_choice c = {.n_layers = LAYERS, .first = _i ? 0 : 1};
	static double loss[1 << LAYERS];
	struct eng_found found;
	struct eng_error err;
	struct eng_loss l;

	ck_assert_msg(!eng_loss_init(&l, &eval, &err), "%s", err.text);
	l.prefix = policies[_i];
	for (c.n = 2; c.n <= 3; c.n++) {
		uint32_t set;

		for (uint32_t s = 1; s < 1u << LAYERS; s++) {
			const struct skv_layer_set one = {.bits[0] = s};

			if (__builtin_popcount(s) == (int)c.n && __builtin_ctz(s) == (int)c.first)
				ck_assert_msg(!eng_loss_of_layers(&l, &one, 1, &loss[s], &err), "%s", err.text);
		}
		set = search(&c, eng_loss_of_layers, &l, &found);
		ck_assert_double_eq_tol(found.loss, loss[set], 1e-6);
		ck_assert(nothing_near_is_better(loss, &c, set));
		if (c.n == 2)
			ck_assert_double_eq_tol(found.loss, best_of_all(loss, &c), 1e-6);
	}
	eng_loss_deinit(&l);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-search");
	TCase *t;

	add_case(s, "tables", 60, NULL, NULL, echoes, search_against_all, search_gives_up, NULL);
	t = add_case(s, "models", LIMIT, setup, teardown, losses, NULL);
	tcase_add_loop_test(t, search_of_a_model, 0, 2);
	return run_suite(s);
}
