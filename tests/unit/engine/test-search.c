/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the loss of a small random model under policies against logits computed text by text, and the layers that a
 * search finds against all sets of layers.
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
#include "tests/support/policies.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

enum { LAYERS = 6, VOCAB = 264, TEXTS = 3, PROMPT = 160, ROWS = 40 };

static const struct fx_model shape = {48, LAYERS, 4, 2, 16, 80, VOCAB, 512, 10000, 1e-5, FX_BF16, true};
static struct eng_model model;
static int32_t ids[TEXTS][PROMPT + ROWS];
static struct eng_text texts[TEXTS];
static struct eng_progress progress;
static struct eng_loss_setup with;

static uint32_t rows_of(uint32_t text)
{
	return ROWS - 3 * text;
}

static void setup(void)
{
	struct fx_weights *w = fx_weights_new(&shape);
	struct eng_error err;

	/* on a busy machine, threads of such a small model spend most of their time waiting for each other */
	omp_set_num_threads(1);
	daemon_setup();
	fx_model_write(&shape, w, folder);
	fx_weights_free(w);
	ck_assert_msg(!eng_model_load(&model, folder, eng_backend_host(), SKV_F32, &err), "%s", err.text);
	for (uint32_t t = 0; t < TEXTS; t++) {
		for (uint32_t i = 0; i < PROMPT; i++)
			ids[t][i] = (int32_t)rnd_below(256);
		ck_assert_int_eq(eng_recall_task(ids[t] + PROMPT, ROWS, ids[t], PROMPT, ENG_RECALL_TASK_BYTES), 0);
		/* texts of different lengths; 0: all remaining rows */
		texts[t] = (struct eng_text){.ids = ids[t], .n = PROMPT + rows_of(t), .from = PROMPT, .rows = t ? rows_of(t) : 0};
	}
	eng_progress_begin(&progress, stderr, 1, true);
	with = (struct eng_loss_setup){.model = &model, .client = engine_client, .kv_dtype = SKV_F32, .texts = texts,
	                               .n = TEXTS, .progress = &progress};
}

static void teardown(void)
{
	eng_model_deinit(&model);
	daemon_teardown();
}

/* ---- recall ---------------------------------------------------------------------------------- */

/* Each piece is a piece of the text; none is repeated before all occurred. */
START_TEST(recall)
{
	enum { PIECE = ENG_RECALL_TASK_PIECE, PIECES = 7, TEXT = PIECES * PIECE + 5, N = (PIECES + 2) * PIECE + 3 };
	int32_t text[TEXT], got[N];
	uint32_t seen = 0, at = 0;

	for (uint32_t i = 0; i < TEXT; i++)
		text[i] = (int32_t)i;
	ck_assert_int_eq(eng_recall_task(got, N, text, TEXT, PIECE), 0);
	for (; at + PIECE <= N; at += PIECE) {
		uint32_t piece = (uint32_t)got[at] / PIECE;

		ck_assert_int_eq(memcmp(got + at, text + piece * PIECE,
		                        PIECE * sizeof(*got)), 0);
		if (at < PIECES * PIECE)
			seen |= 1u << piece;
	}
	ck_assert_uint_eq(seen, (1u << PIECES) - 1);
	ck_assert_int_eq(memcmp(got, got + PIECES * PIECE, PIECE * sizeof(*got)), 0);
	ck_assert_int_eq(got[at], got[at - PIECES * PIECE]); /* the last one is cut */
	ck_assert_int_ne(memcmp(got, text, PIECES * PIECE * sizeof(*got)), 0);
}
END_TEST

/* ---- losses ---------------------------------------------------------------------------------- */

static float logits_of[2][TEXTS][ROWS][VOCAB];

/* Computes the logits of each text under a policy, step by step. */
static void take_logits(uint32_t policy, const char *spec)
{
	struct skv_model what = eng_model_describe(&model, SKV_F32);
	struct eng_forward f = ENG_FORWARD_NULL;
	struct skv_session *session;
	struct eng_error err;

	ok(skv_open(engine_client, &what, spec, &session));
	ck_assert_msg(!eng_forward_init(&f, &model, PROMPT, &err), "%s", err.text);
	for (uint32_t t = 0; t < TEXTS; t++) {
		struct skv_step_item item = SKV_STEP_ITEM(.n_tokens = PROMPT, .flags = SKV_STEP_PROMPT, .tokens = ids[t]);
		const float *logits;

		ok(skv_seq_new(session, NULL, 0, &item.seq));
		ck_assert_msg(!eng_forward(&f, session, &item, 1, &err), "%s", err.text);
		ok(skv_step_end(session, NULL, NULL));
		item = SKV_STEP_ITEM(.seq = item.seq, .n_tokens = 1);
		for (uint32_t at = 0; at < rows_of(t); at++) {
			item.tokens = ids[t] + PROMPT + at;
			ck_assert_msg(!eng_forward(&f, session, &item, 1, &err), "%s", err.text);
			ck_assert_int_eq(eng_forward_logits(&f, &logits, &err), 0);
			memcpy(logits_of[policy][t][at], logits, sizeof(logits_of[policy][t][at]));
			ok(skv_step_end(session, NULL, NULL));
		}
		ok(skv_seq_drop(item.seq));
	}
	eng_forward_deinit(&f);
	skv_close(session);
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
	uint32_t rows = 0;

	for (uint32_t c = 0; c < TEXTS; c++)
		for (uint32_t at = 0; at < rows_of(c); at++, rows++) {
			softmax(logits_of[0][c][at], p);
			softmax(logits_of[1][c][at], q);
			for (int i = 0; i < VOCAB; i++)
				sum += p[i] * log(p[i] / q[i]);
		}
	return sum / rows;
}

START_TEST(losses)
{
	/* more specs than are decoded together with these texts */
	const char *specs[40] = {"full", POLICY_PAGES "?budget=2&layers=1,3&dense=1",
	                         POLICY_PAGES "?budget=64&layers=2", "no-such"};
	double got[40], want;
	struct eng_loss l;
	struct eng_error err;

	take_logits(0, "full");
	take_logits(1, specs[1]);
	want = divergence();
	ck_assert_double_gt(want, 1e-4);

	ck_assert_msg(!eng_loss_init(&l, &with, &err), "%s", err.text);
	ck_assert_int_lt(eng_loss_of(&l, specs, 4, "", got, &err), 0);
	for (int i = 3; i < 40; i++)
		specs[i] = specs[i % 3];
	ck_assert_msg(!eng_loss_of(&l, specs, 40, "", got, &err), "%s", err.text);
	for (int i = 0; i < 40; i++) {
		double expected = i % 3 == 1 ? want : 0; /* the third policy selects all pages */

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

/* Losses of all sets of a small model's layers, indexed by the set's bits. */
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

/* Whether no set is better that differs in one layer after the first. */
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
	const struct skv_layer_set start = {.bits[0] = ((UINT64_C(1) << c->n) - 1) << c->first};
	uint32_t layers[LAYERS * 2], set = 0;
	struct eng_error err;

	ck_assert_msg(!eng_search(c, judge, arg, &start, 1, layers, found, &err), "%s", err.text);
	ck_assert_uint_eq(layers[0], c->first);
	for (uint32_t i = 0; i < c->n; i++) {
		ck_assert(i == 0 || layers[i] > layers[i - 1]);
		ck_assert_uint_lt(layers[i], c->n_layers);
		set |= 1u << layers[i];
	}
	return set;
}

/* Odd rounds: random losses with many equals. Even rounds: each layer adds its loss, so there is one optimum. */
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
	const struct skv_layer_set start = {.bits[0] = 1 << 0 | 1 << 3};
	uint32_t layers[] = {0, 3}, asked = 0;
	struct eng_found found = {.judged = 77};
	struct eng_error err;

	ck_assert_int_eq(eng_search(&c, refuse, &asked, &start, 1, layers, &found, &err), -EIO);
	ck_assert_str_eq(err.text, "cannot say");
	ck_assert(asked == 1 && layers[1] == 3 && found.judged == 77);
}
END_TEST

/* Layers 4 and 5 lower the loss, 5 by more; fails after two calls. */
static int give_up(void *arg, const struct skv_layer_set *sets, uint32_t n, double *ret, struct eng_error *err)
{
	if (++*(uint32_t *)arg > 2)
		return eng_fail(err, -EINTR, "interrupted");
	for (uint32_t i = 0; i < n; i++)
		ret[i] = 10 - (sets[i].bits[0] >> 4 & 1) - 2.0 * (sets[i].bits[0] >> 5 & 1);
	return 0;
}

/* An interrupted search returns its best result so far: here the best exchange of the first of two layers. */
START_TEST(search_is_interrupted)
{
	const struct eng_choice c = {.n_layers = 7, .n = 3};
	const struct skv_layer_set start = {.bits[0] = 1 << 0 | 1 << 1 | 1 << 2};
	uint32_t layers[3], calls = 0;
	struct eng_found found;
	struct eng_error err;

	ck_assert_int_eq(eng_search(&c, give_up, &calls, &start, 1, layers, &found, &err), -EINTR);
	ck_assert(layers[0] == 0 && layers[1] == 2 && layers[2] == 5);
	ck_assert_uint_eq(found.judged, 5);
	ck_assert_double_eq(found.loss, 8);
	ck_assert_double_eq(found.first_loss, 10);
}
END_TEST

/* Of several sets it starts from the best one; a set that is there twice is judged once. */
START_TEST(search_from_several)
{
	const struct eng_choice c = {.n_layers = 7, .n = 3};
	const struct skv_layer_set starts[] = {{.bits[0] = 1 << 0 | 1 << 1 | 1 << 2}, {.bits[0] = 1 << 0 | 1 << 4 | 1 << 5},
	                                       {.bits[0] = 1 << 0 | 1 << 1 | 1 << 2}};
	uint32_t layers[3], calls = 0;
	struct eng_found found;
	struct eng_error err;

	ck_assert_int_eq(eng_search(&c, give_up, &calls, starts, 3, layers, &found, &err), -EINTR);
	ck_assert(layers[0] == 0 && layers[1] == 4 && layers[2] == 5);
	ck_assert_uint_eq(found.judged, 6); /* and four with another layer in the place of 4 */
	ck_assert(found.first_loss == 10 && found.loss == 7);
}
END_TEST

/* Sets of layers, judged by their losses under a policy. */
struct under {
	struct eng_loss *loss;
	const char *prefix;
};

static int judge_under(void *arg, const struct skv_layer_set *sets, uint32_t n, double *ret, struct eng_error *err)
{
	const struct under *u = arg;
	char spec[LAYERS * LAYERS][128];
	const char *specs[LAYERS * LAYERS];

	for (uint32_t i = 0; i < n; i++) {
		int at = snprintf(spec[i], sizeof(spec[i]), "%s", u->prefix);

		for (uint32_t l = 0; l < LAYERS; l++)
			if (skv_layer_in(&sets[i], l))
				at += snprintf(spec[i] + at, sizeof(spec[i]) - (size_t)at, "%u,", l);
		spec[i][at - 1] = '\0';
		specs[i] = spec[i];
	}
	return eng_loss_of(u->loss, specs, n, "", ret, err);
}

/* A search with the losses of a real model under a policy. */
START_TEST(search_of_a_model)
{
	static const char *const policies[] = {POLICY_PAGES "?dense=1&budget=2&layers=",
	                                       POLICY_ANCHORS ":dense-anchors?budget=12&layers="};
	struct eng_choice c = {.n_layers = LAYERS, .first = _i ? 0 : 1};
	static double loss[1 << LAYERS];
	struct eng_found found;
	struct eng_error err;
	struct eng_loss l;
	struct under under = {&l, policies[_i]};

	ck_assert_msg(!eng_loss_init(&l, &with, &err), "%s", err.text);
	for (c.n = 2; c.n <= 3; c.n++) {
		uint32_t set;

		for (uint32_t s = 1; s < 1u << LAYERS; s++) {
			const struct skv_layer_set one = {.bits[0] = s};

			if (__builtin_popcount(s) == (int)c.n && __builtin_ctz(s) == (int)c.first)
				ck_assert_msg(!judge_under(&under, &one, 1, &loss[s], &err), "%s", err.text);
		}
		set = search(&c, judge_under, &under, &found);
		ck_assert_double_eq_tol(found.loss, loss[set], 1e-4);
		ck_assert(nothing_near_is_better(loss, &c, set));
		if (c.n == 2)
			ck_assert_double_eq_tol(found.loss, best_of_all(loss, &c), 1e-4); /* sets judged together: rounded otherwise */
	}
	eng_loss_deinit(&l);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-search");
	TCase *t;

	add_case(s, "tables", 60, NULL, NULL, recall, search_against_all, search_gives_up, search_is_interrupted, search_from_several, NULL);
	t = add_case(s, "models", LIMIT, setup, teardown, losses, NULL);
	tcase_add_loop_test(t, search_of_a_model, 0, 2);
	return run_suite(s);
}
