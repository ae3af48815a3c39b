/* SPDX-License-Identifier: Apache-2.0 */
/* Tests a calibration's measurements against the formulas in double precision, and its choices against all others. */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "engine/chart.h"
#include "engine/choose-layers.h"
#include "engine/measure.h"
#include "engine/profile.h"
#include "engine/sparse-error.h"
#include "tests/support/folder.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

/* ---- choosing -------------------------------------------------------------------------------- */

static double worth_of(const struct eng_choice *c, const double *worth, const uint32_t *layers)
{
	double sum = 0;

	for (uint32_t l = c->first; l < c->n_layers; l++)
		sum += worth[eng_choose_source(c, layers, l) * c->n_layers + l];
	return sum;
}

/* The largest sum over all sets; bits of `set` are the layers after the first. */
static double best_of_all(const struct eng_choice *c, const double *worth)
{
	double best = -INFINITY;

	for (uint32_t set = 0; set < 1u << (c->n_layers - c->first - 1); set++) {
		uint32_t layers[16] = {c->first}, n = 1;
		double sum;

		if ((uint32_t)__builtin_popcount(set) != c->n - 1)
			continue;
		for (uint32_t l = c->first + 1; l < c->n_layers; l++)
			if (set >> (l - c->first - 1) & 1)
				layers[n++] = l;
		sum = worth_of(c, worth, layers);
		best = sum > best ? sum : best;
	}
	return best;
}

START_TEST(anchors_against_all)
{
	for (int i = 0; i < 400; i++) {
		struct eng_choice c = {.n_layers = 1 + rnd_below(12)};
		uint32_t layers[16];
		double worth[144], sum;

		c.first = rnd_below(c.n_layers);
		c.n = 1 + rnd_below(c.n_layers - c.first);
		/* few distinct values, so that many choices are equally good */
		for (uint32_t p = 0; p < c.n_layers * c.n_layers; p++)
			worth[p] = i % 2 ? rnd_unit() - 0.2 : rnd_below(3);
		sum = eng_choose_anchors(&c, worth, layers);
		ck_assert_uint_eq(layers[0], c.first);
		for (uint32_t m = 1; m < c.n; m++)
			ck_assert_uint_gt(layers[m], layers[m - 1]);
		ck_assert_uint_lt(layers[c.n - 1], c.n_layers);
		ck_assert_double_eq_tol(sum, worth_of(&c, worth, layers), 1e-12);
		ck_assert_double_eq_tol(sum, best_of_all(&c, worth), 1e-12);
	}
}
END_TEST

/* Each part of the depth gives its layer with the largest shift; of equals the lower one. */
START_TEST(shifts)
{
	const struct eng_choice three = {.n_layers = 16, .first = 2, .n = 3}, five = {16, 1, 5}, all = {6, 2, 4},
	                        one = {16, 2, 1};
	/* shifts of the reference model (models/reference/README.md) */
	const double shift[] = {0,    .95, .86, .92, .94, .94, .91, .98, .82, .60, .80, .92, .92, .77, .79, .75};
	uint32_t layers[16];

	eng_choose_by_shift(&three, shift, layers);
	ck_assert(layers[0] == 2 && layers[1] == 7 && layers[2] == 11);
	eng_choose_by_shift(&five, shift, layers); /* parts 2-5, 6-9, 10-12, 13-15 */
	ck_assert(layers[0] == 1 && layers[1] == 4 && layers[2] == 7 && layers[3] == 11 && layers[4] == 14);
	eng_choose_by_shift(&all, shift, layers);
	ck_assert(layers[0] == 2 && layers[1] == 3 && layers[2] == 4 && layers[3] == 5);
	eng_choose_by_shift(&one, shift, layers);
	ck_assert_uint_eq(layers[0], 2);
}
END_TEST

START_TEST(heads)
{
	const double similarity[] = {.1, .7, .7, .9, .2, .3, 0, 0, 0}, of_ranks[] = {.1, .2, 1, 1, .2, .2, 1, 1, 1, 1, .3, .4, 1, 1, .4, .3};
	uint8_t map[4];

	eng_choose_heads(similarity, 3, 1, map);
	ck_assert(map[0] == 1 && map[1] == 0 && map[2] == 0);
	eng_choose_heads(of_ranks, 4, 2, map);
	ck_assert(map[0] == 1 && map[1] == 0 && map[2] == 3 && map[3] == 2);
	eng_choose_heads(of_ranks, 4, 4, map);
	ck_assert(map[0] == 0 && map[1] == 1 && map[2] == 2 && map[3] == 3);
}
END_TEST

/* ---- measuring ------------------------------------------------------------------------------- */

enum { LAYERS = 3, HEADS = 4, KV = 2, GROUP = HEADS / KV, TOKENS = 90 };

/* Softmax weights of a row. They are peaked: a few tokens have most of the weight. */
static void random_row(float *weights, uint32_t n)
{
	for (uint32_t r = 0; r < LAYERS * HEADS; r++) {
		double sum = 0;

		for (uint32_t t = 0; t < n; t++)
			sum += weights[r * n + t] = (float)exp(6 * rnd_unit());
		for (uint32_t t = 0; t < n; t++)
			weights[r * n + t] /= (float)sum;
	}
}

static double group_sum(const float *weights, uint32_t n, uint32_t layer, uint32_t kv, uint32_t t)
{
	double sum = 0;

	for (uint32_t j = 0; j < GROUP; j++)
		sum += weights[(layer * HEADS + kv * GROUP + j) * n + t];
	return sum;
}

/* Whether token t is among the `top` best of a layer's kv head; of equals the lower token comes first. */
static bool among_top(const float *weights, uint32_t n, uint32_t layer, uint32_t kv, uint32_t t, uint32_t top)
{
	double mine = group_sum(weights, n, layer, kv, t);
	uint32_t before = 0;

	for (uint32_t o = 0; o < n; o++) {
		double other = group_sum(weights, n, layer, kv, o);

		before += other > mine || (other == mine && o < t);
	}
	return before < top;
}

static double similarity_of(const float *weights, uint32_t n, uint32_t a, uint32_t b, uint32_t h, uint32_t other,
                            uint32_t top)
{
	double got = 0, own = 0;

	for (uint32_t t = 0; t < n; t++) {
		got += among_top(weights, n, a, other, t, top) * group_sum(weights, n, b, h, t);
		own += among_top(weights, n, b, h, t, top) * group_sum(weights, n, b, h, t);
	}
	return got / own;
}

static double shift_of(const float *x, const float *y, uint32_t n)
{
	double xy = 0, xx = 0, yy = 0;

	for (uint32_t i = 0; i < n; i++) {
		xy += (double)x[i] * y[i];
		xx += (double)x[i] * x[i];
		yy += (double)y[i] * y[i];
	}
	return 1 - xy / sqrt(xx * yy);
}

START_TEST(measures)
{
	const struct eng_measure_shape shape = {
		.n_layers = LAYERS, .n_heads = HEADS, .n_kv_heads = KV, .max_tokens = TOKENS, .top = 7};
	static float weights[LAYERS * HEADS * TOKENS];
	double shift[LAYERS] = {0}, sums[LAYERS][LAYERS][KV][KV] = {{{{0}}}}, least[LAYERS][LAYERS][KV][KV];
	struct eng_measure m;

	ck_assert_int_eq(eng_measure_init(&m, &shape), 0);
	for (uint32_t row = 0; row < 30; row++) {
		uint32_t n = row == 11 ? 3 : 1 + rnd_below(TOKENS); /* may be fewer than `top` */

		random_row(weights, n);
		eng_measure_row(&m, weights, n);
		for (uint32_t b = 1; b < LAYERS; b++)
			shift[b] += shift_of(weights + (b - 1) * HEADS * n, weights + b * HEADS * n, HEADS * n) / 30;
		for (uint32_t a = 0; a < LAYERS; a++)
			for (uint32_t b = a; b < LAYERS; b++)
				for (uint32_t h = 0; h < KV; h++)
					for (uint32_t o = 0; o < KV; o++) {
						double s = similarity_of(weights, n, a, b, h, o, shape.top);

						if (row % 10 == 0 || s < least[a][b][h][o])
							least[a][b][h][o] = s;
						if (row % 10 == 9)
							sums[a][b][h][o] += least[a][b][h][o] / 3;
					}
		if (row % 10 == 9)
			eng_measure_end_text(&m);
	}
	ck_assert_uint_eq(m.rows, 30);
	for (uint32_t b = 0; b < LAYERS; b++) {
		ck_assert_double_eq_tol(eng_measure_shift(&m, b), shift[b], 1e-5);
		for (uint32_t a = 0; a <= b; a++) {
			double worth = 0;

			for (uint32_t h = 0; h < KV; h++)
				worth += fmax(sums[a][b][h][0], sums[a][b][h][1]) / KV;
			for (uint32_t h = 0; h < KV * KV; h++)
				ck_assert_double_eq_tol(eng_measure_similarity(&m, a, b)[h], sums[a][b][h / KV][h % KV],
				                        1e-5);
			ck_assert_double_eq_tol(eng_measure_best_heads(&m, a, b), worth, 1e-5);
		}
	}
	eng_measure_deinit(&m);
}
END_TEST

START_TEST(changes)
{
	const struct eng_measure_shape shape = {
		.n_layers = 2, .n_heads = 1, .n_kv_heads = 1, .max_tokens = 1, .top = 1};
	float x[40], y[40], after[40];
	struct eng_measure m;
	double want = 0;

	ck_assert_int_eq(eng_measure_init(&m, &shape), 0);
	for (int row = 0; row < 20; row++) {
		for (int i = 0; i < 40; i++) {
			x[i] = (float)(rnd_unit() - 0.5);
			y[i] = (float)(rnd_unit() - 0.5);
			after[i] = x[i] + y[i];
		}
		eng_measure_change(&m, 1, x, y, 40);
		want += shift_of(x, after, 40) / 20;
	}
	ck_assert_double_eq_tol(eng_measure_change_mean(&m, 1), want, 1e-5);
	eng_measure_deinit(&m);
}
END_TEST

/* ---- error of sparse rows -------------------------------------------------------------------- */

#define ROWS 150u
#define WIDE 12u

static const struct eng_delta_error_shape differ = {.n_layers = LAYERS, .n_heads = HEADS, .n_kv_heads = KV, .head_dim = WIDE,
                                               .max_tokens = ROWS + 5, .sinks = 3, .window = 20, .gamma = 16};
static float queries[LAYERS][ROWS][HEADS][WIDE], keys[LAYERS][KV][ROWS + 5][WIDE], values[LAYERS][KV][ROWS + 5][WIDE];

static void fill(float *x, size_t n)
{
	for (size_t i = 0; i < n; i++)
		x[i] = (float)(4 * rnd_unit() - 2);
}

/* Dense (`all`) or sparse output of row p, in double precision. */
static void attend(uint32_t l, uint32_t p, uint32_t h, bool all, double *out)
{
	const uint32_t kv = h / (HEADS / KV);
	double sum = 0;

	memset(out, 0, WIDE * sizeof(*out));
	for (uint32_t t = 0; t <= p; t++) {
		double x = 0;

		if (!all && t >= differ.sinks && p - t >= differ.window)
			continue;
		for (uint32_t i = 0; i < WIDE; i++)
			x += (double)queries[l][p][h][i] * keys[l][kv][t][i];
		x = exp(x / sqrt(WIDE));
		sum += x;
		for (uint32_t i = 0; i < WIDE; i++)
			out[i] += x * values[l][kv][t][i];
	}
	for (uint32_t i = 0; i < WIDE; i++)
		out[i] /= sum;
}

/* Adds sums over heads: cosine, |d|^2, |d - d_0|^2, |dense|^2. */
static void row_by_hand(uint32_t l, uint32_t p, double sum[4])
{
	const uint32_t first = p - p % differ.gamma;

	for (uint32_t h = 0; h < HEADS; h++) {
		double a[WIDE], b[WIDE], c[WIDE], d[WIDE], both = 0, x = 0, y = 0;

		attend(l, first, h, true, a);
		attend(l, first, h, false, b);
		attend(l, p, h, true, c);
		attend(l, p, h, false, d);
		for (uint32_t i = 0; i < WIDE; i++) {
			both += (a[i] - b[i]) * (c[i] - d[i]);
			x += (a[i] - b[i]) * (a[i] - b[i]);
			y += (c[i] - d[i]) * (c[i] - d[i]);
			sum[2] += pow(c[i] - d[i] - (a[i] - b[i]), 2);
			sum[3] += c[i] * c[i];
		}
		sum[0] += both / sqrt(x * y);
		sum[1] += y;
	}
}

static void add_text(struct eng_delta_error *d, const uint8_t *mark)
{
	for (uint32_t p = 0; p < ROWS; p++)
		for (uint32_t l = 0; mark[p] && l < LAYERS; l++)
			eng_delta_error_add(d, &(struct eng_delta_error_row){.layer = l, .p = p, .mark = mark[p], .q = queries[l][p][0],
			                                           .k = keys[l][0][0], .v = values[l][0][0], .stride = ROWS + 5});
}

START_TEST(differences)
{
	double sum[LAYERS][5] = {{0}}, left = 0, whole = 0;
	struct eng_delta_error d;
	uint8_t mark[ROWS];

	ck_assert_int_eq(eng_delta_error_init(&d, &differ), 0);
	ck_assert(!eng_delta_error_any(&d));
	for (uint32_t text = 0; text < 4; text++) {
		fill(queries[0][0][0], sizeof(queries) / sizeof(float));
		fill(keys[0][0][0], sizeof(keys) / sizeof(float));
		fill(values[0][0][0], sizeof(values) / sizeof(float));
		eng_delta_error_choose(&d, ROWS, text ? 1 + rnd_below(40) : 0, mark);
		add_text(&d, mark);
		for (uint32_t l = 0; l < LAYERS; l++)
			for (uint32_t p = 0; p < ROWS; p++)
				if (mark[p] == ENG_DELTA_ERROR_ROW) {
					row_by_hand(l, p, sum[l]);
					sum[l][4] += HEADS;
				}
	}
	for (uint32_t l = 0; l < LAYERS; l++) {
		ck_assert_double_eq_tol(eng_delta_similarity_cosine(&d.layer[l]), sum[l][0] / sum[l][4], 1e-4);
		ck_assert_double_eq_tol(eng_delta_similarity_missed(&d.layer[l]), sum[l][1] / sum[l][3], 1e-4);
		ck_assert_double_eq_tol(eng_delta_similarity_left(&d.layer[l]), sum[l][2] / sum[l][1], 1e-4);
		left += sum[l][2] / sum[l][3];
		whole += sum[l][1] / sum[l][3];
	}
	ck_assert_double_eq_tol(eng_delta_error_left(&d), left / whole, 1e-4);
	eng_delta_error_deinit(&d);
}
END_TEST

/* First rows of windows precede the rows that they represent, and miss at least one token. */
START_TEST(rows_that_differ)
{
	struct eng_delta_error d = {.shape = {.sinks = 5, .window = 30}};
	static uint8_t mark[1000];

	for (int i = 0; i < 500; i++) {
		const uint32_t n = 1 + rnd_below(1000), rows = rnd_below(200), gamma = 2u << rnd_below(7);
		const uint32_t begin = (35 + gamma - 1) / gamma, end = n / gamma;
		const uint32_t most = begin < end ? (end - begin) * (gamma - 1) : 0;
		uint32_t found = 0, apart = 0;

		d.shape.gamma = gamma;
		eng_delta_error_choose(&d, n, rows, mark);
		for (uint32_t p = 0; p < n; p++) {
			const uint32_t first = p - p % gamma;

			found += mark[p] == ENG_DELTA_ERROR_ROW;
			ck_assert(mark[p] != ENG_DELTA_ERROR_FIRST || (p == first && p >= 35));
			ck_assert(mark[p] != ENG_DELTA_ERROR_ROW ||
			          (p != first && mark[first] == ENG_DELTA_ERROR_FIRST));
			apart += p == first && mark[p];
		}
		ck_assert_uint_le(found, rows && rows < most ? rows : most);
		if (!rows || rows > most)
			ck_assert_uint_eq(found, most);
		else if (most)
			ck_assert_uint_eq(apart, rows < end - begin ? rows : end - begin);
	}
}
END_TEST

/* ---- profiles -------------------------------------------------------------------------------- */

/*
 * No layer is chosen by a figure that is not finite, as a model has whose attention overflows; figures that no choice
 * needs may be so.
 */
START_TEST(not_finite)
{
	enum { N = 6 };
	static const struct skv_model model = {.n_layers = N};
	static const double bad[] = {NAN, INFINITY, -INFINITY};
	double similarity[N * N];
	struct eng_profile p = {.model = &model, .n_full = N, .similarity = similarity};
	struct eng_error err;

	for (uint32_t k = 0; k < ENG_KINDS; k++)
		p.choice[k] = (struct eng_choice){.n_layers = N, .first = 1, .n = 3};
	for (uint32_t i = 0; i < N; i++) {
		p.full[i] = i;
		p.weight[i] = rnd_unit();
		p.shift[i] = i > 1 ? rnd_unit() : NAN; /* of the first layer that may be chosen, there is no need */
		for (uint32_t k = 0; k < N; k++)
			similarity[i * N + k] = i >= 1 && k >= i ? rnd_unit() : NAN;
	}
	ck_assert_int_eq(eng_profile_choose(&p, &err), 0);
	for (uint32_t i = 0; i < 3; i++) {
		const struct eng_profile was = p;

		similarity[2 * N + 4] = bad[i];
		ck_assert_int_eq(eng_profile_choose(&p, &err), -EDOM);
		ck_assert_ptr_nonnull(strstr(err.text, "layers 2 and 4 is not finite"));
		similarity[2 * N + 4] = 0.5;
		p.weight[5] = bad[i];
		ck_assert_int_eq(eng_profile_choose(&p, &err), -EDOM);
		ck_assert_ptr_nonnull(strstr(err.text, "layers 1 and 5 is not finite"));
		p = was;
		p.shift[3] = bad[i];
		ck_assert_int_eq(eng_profile_choose(&p, &err), -EDOM);
		ck_assert_ptr_nonnull(strstr(err.text, "layer 3 is not finite"));
		p = was;
		ck_assert_int_eq(eng_profile_choose(&p, &err), 0);
	}
}
END_TEST

/* A chart with more series than there are styles is refused before its file is made. */
START_TEST(too_many_series)
{
	const char *x[] = {"1", "2"}, *names[CHART_SERIES_MAX + 1];
	double number[] = {1, 2}, value[2 * (CHART_SERIES_MAX + 1)];
	struct chart c = {.title = "many", .n_x = 2, .n_series = CHART_SERIES_MAX, .n_panels = 1, .x = x, .number = number,
	                  .x_label = "x", .series = names, .panel = {{.label = "y", .value = value}}};
	char *folder = fx_folder();
	struct eng_error err;

	for (int i = 0; i <= CHART_SERIES_MAX; i++) {
		names[i] = "series";
		value[2 * i] = value[2 * i + 1] = i;
	}
	ck_assert_int_eq(chart_draw(&c, fx_path(folder, "16.svg"), &err), 0);
	c.n_series++;
	ck_assert_int_eq(chart_draw(&c, fx_path(folder, "17.svg"), &err), -EINVAL);
	ck_assert_ptr_nonnull(strstr(err.text, "17 series, expected at most 16"));
	ck_assert_int_ne(access(fx_path(folder, "17.svg"), F_OK), 0);
	fx_remove(folder);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-calibrate");

	add_case(s, "calibrate", 60, NULL, NULL, anchors_against_all, shifts, heads, measures, changes,
	         differences, rows_that_differ, not_finite, too_many_series, NULL);
	return run_suite(s);
}
