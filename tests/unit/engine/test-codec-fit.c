/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the accumulated residuals, the directions that a compressor takes from them, and its file as the client
 * library reads it.
 */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "engine/compressor.h"
#include "libclient/compress/codec.h"
#include "tests/support/engine-fixture.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

static char *folder;

static void setup(void)
{
	folder = fx_folder();
}

static void teardown(void)
{
	fx_remove(folder);
}

static double normal(void)
{
	double sum = -6;

	for (int i = 0; i < 12; i++)
		sum += rnd_unit();
	return sum;
}

/* ---- residuals ------------------------------------------------------------------------------- */

enum { LAYERS = 2, KV = 2, DIM = 16, HALF = KV * DIM, D = 2 * HALF, TOKENS = 200, MOST_NEAR = 4 };

static double x[LAYERS][TOKENS][D]; /* K before the rotary embedding, and V */
static double moment[LAYERS][D][D], square[LAYERS], sum[LAYERS][D];
static uint64_t packed;

static bool reference(uint32_t t, const struct eng_residuals_shape *s)
{
	return s->stride && (t < s->first || (t - s->first) % s->stride == 0);
}

static double away(const double *a, const double *b)
{
	double s = 0;

	for (int e = 0; e < D; e++)
		s += (a[e] - b[e]) * (a[e] - b[e]);
	return s;
}

/* Computes the mean of the nearest references; false if rounding could change which ones are nearest. */
static bool base(uint32_t layer, uint32_t t, const struct eng_residuals_shape *s, double *b)
{
	double before = -1;

	memset(b, 0, D * sizeof(*b));
	for (uint32_t k = 0; s->stride && k <= s->near; k++) {
		double least = INFINITY;
		uint32_t which = 0;

		for (uint32_t c = 0; c < t; c++) {
			double far = away(x[layer][t], x[layer][c]);

			if (reference(c, s) && far > before && far < least) {
				least = far;
				which = c;
			}
		}
		if (k == s->near)
			return least - before > 0.05;
		for (int e = 0; e < D; e++)
			b[e] += x[layer][which][e] / s->near;
		before = least;
	}
	return true;
}

/* Makes a token's x, and adds its residual to the expected sums. */
static void make_token(uint32_t layer, uint32_t t, const struct eng_residuals_shape *s)
{
	double *mine = x[layer][t], b[D];

	do
		for (int e = 0; e < D; e++)
			mine[e] = 1 + (e < 5 ? 3 : 1) * normal();
	while (t >= s->first && !reference(t, s) && !base(layer, t, s, b));
	if (t < s->first || reference(t, s))
		return;
	packed += layer == 0;
	for (int i = 0; i < D; i++) {
		for (int j = 0; j < D; j++)
			moment[layer][i][j] += (mine[i] - b[i]) * (mine[j] - b[j]);
		square[layer] += mine[i] * mine[i];
		sum[layer][i] += mine[i];
	}
}

/* K of a token with its rotary position, and V unchanged. */
static void rows_of(const struct skv_rope *rope, uint32_t layer, uint32_t t, float *k, float *v)
{
	double scale = rope->type == SKV_ROPE_YARN ? rope->attention : 1;

	for (int h = 0; h < KV; h++)
		for (int i = 0; i < DIM / 2; i++) {
			const double *pair = x[layer][t] + h * DIM + i;
			double angle = t * pow(rope->theta, -2. * i / DIM);

			if (rope->type == SKV_ROPE_LINEAR)
				angle /= rope->factor;
			k[h * DIM + i] = (float)(scale * (pair[0] * cos(angle) - pair[DIM / 2] * sin(angle)));
			k[h * DIM + DIM / 2 + i] = (float)(scale * (pair[0] * sin(angle) + pair[DIM / 2] * cos(angle)));
		}
	for (int e = 0; e < HALF; e++)
		v[e] = (float)x[layer][t][HALF + e];
}

/* Adds a text of n tokens, in steps of random length. */
static void read_text(struct eng_residuals *r, uint32_t n)
{
	static float k[TOKENS * HALF], v[TOKENS * HALF];

	for (uint32_t at = 0, rows; at < n; at += rows) {
		rows = 1 + rnd_below(n - at < r->shape.rows ? n - at : r->shape.rows);
		eng_residuals_begin(r, at, rows);
		for (uint32_t layer = 0; layer < LAYERS; layer++) {
			for (uint32_t i = 0; i < rows; i++) {
				make_token(layer, at + i, &r->shape);
				rows_of(&r->shape.rope, layer, at + i, k + i * HALF, v + i * HALF);
			}
			eng_residuals_add(r, layer, k, v, rows);
		}
	}
}

static void compare(const struct eng_residuals *r)
{
	ck_assert_uint_eq(r->tokens, packed);
	for (uint32_t layer = 0; layer < LAYERS; layer++) {
		double left = 0, spread = square[layer];

		for (int i = 0; i < D; i++) {
			left += moment[layer][i][i];
			spread -= sum[layer][i] * sum[layer][i] / (double)packed;
			for (int j = 0; j <= i; j++)
				ck_assert_double_eq_tol(r->moment[((size_t)layer * D + i) * D + j], moment[layer][i][j],
				                        1e-3 * (double)packed);
		}
		ck_assert_double_eq_tol(eng_residuals_left(r, layer), left, 1e-4 * left);
		ck_assert_double_eq_tol(eng_residuals_spread(r, layer), spread, 1e-4 * spread);
	}
}

START_TEST(residuals_add_up)
{
	static const struct skv_rope ropes[] = {
		{.type = SKV_ROPE_DEFAULT, .theta = 10000},
		{.type = SKV_ROPE_LINEAR, .theta = 500, .factor = 4},
		/* factor 1 leaves the frequencies unchanged, so only the scale differs */
		{.type = SKV_ROPE_YARN, .theta = 10000, .factor = 1, .low = 1, .high = 32, .original = 64, .attention = 1.25},
	};
	static const uint32_t strides[] = {10, 0, 3, 255};
	struct eng_residuals_shape shape = {
		.n_layers = LAYERS, .n_kv_heads = KV, .head_dim = DIM, .rope = ropes[_i % 3], .max_tokens = TOKENS,
		.rows = 1 + rnd_below(80), .stride = strides[_i % 4]};
	struct eng_residuals r;

	shape.near = shape.stride ? 1 + rnd_below(MOST_NEAR) : 0;
	shape.first = shape.stride ? 16 : 16 * rnd_below(2);
	ck_assert_int_eq(eng_residuals_init(&r, &shape), 0);
	read_text(&r, TOKENS);
	read_text(&r, 1 + rnd_below(TOKENS));
	compare(&r);
	eng_residuals_deinit(&r);
}
END_TEST

/* ---- directions ------------------------------------------------------------------------------ */

#define WIDE 128u /* elements of x */

static double direction[WIDE][WIDE]; /* row i belongs to value[i] */
static double value[WIDE];

/* Makes n random orthogonal directions within elements [first, first + n); their values are far apart and unordered. */
static void make_directions(uint32_t first, uint32_t n)
{
	for (uint32_t i = first; i < first + n; i++) {
		double size = 0;

		memset(direction[i], 0, sizeof(direction[i]));
		value[i] = 1 + (double)((i - first) * 37 % n);
		for (uint32_t e = first; e < first + n; e++)
			direction[i][e] = normal();
		for (int twice = 0; twice < 2; twice++)
			for (uint32_t j = first; j < i; j++) {
				double dot = 0;

				for (uint32_t e = 0; e < WIDE; e++)
					dot += direction[i][e] * direction[j][e];
				for (uint32_t e = 0; e < WIDE; e++)
					direction[i][e] -= dot * direction[j][e];
			}
		for (uint32_t e = 0; e < WIDE; e++)
			size += direction[i][e] * direction[i][e];
		for (uint32_t e = 0; e < WIDE; e++)
			direction[i][e] /= sqrt(size);
	}
}

/* Residuals of one layer with these directions. Moments between different parts are random and must not matter. */
static void make_residuals(struct eng_residuals *r, uint32_t parts)
{
	const struct eng_residuals_shape shape = {
		.n_layers = 1, .n_kv_heads = 4, .head_dim = 16, .rope = {.type = SKV_ROPE_DEFAULT, .theta = 10000},
		.max_tokens = 16, .rows = 1, .stride = parts > 1 ? 0 : 10, .near = parts > 1 ? 0 : 4};
	uint32_t n = WIDE / parts;

	ck_assert_int_eq(eng_residuals_init(r, &shape), 0);
	ck_assert_uint_eq(r->d, WIDE);
	for (uint32_t i = 0; i < parts; i++)
		make_directions(i * n, n);
	for (uint32_t i = 0; i < WIDE; i++)
		for (uint32_t j = 0; j <= i; j++) {
			double *to = r->moment + i * WIDE + j;

			*to = i / n == j / n ? 0 : 5 * normal();
			for (uint32_t k = 0; k < WIDE; k++)
				*to += value[k] * direction[k][i] * direction[k][j];
		}
}

/* Returns the part of a direction that is left after down and out: 1 all, 0 nothing. */
static double kept(const struct eng_compressor *c, uint32_t k)
{
	const float *down = c->weights, *out = down + (size_t)c->width * WIDE;
	double back = 0;

	for (uint32_t i = 0; i < c->width; i++) {
		double z = 0;

		for (uint32_t e = 0; e < WIDE; e++)
			z += down[i * WIDE + e] * direction[k][e];
		for (uint32_t e = 0; e < WIDE; e++)
			back += z * out[e * c->width + i] * direction[k][e];
	}
	return back;
}

/* Returns the residuals' second moment of number i of the code. */
static double in_number(const struct eng_compressor *c, uint32_t i)
{
	double all = 0;

	for (uint32_t k = 0; k < WIDE; k++) {
		double z = 0;

		for (uint32_t e = 0; e < WIDE; e++)
			z += c->weights[i * WIDE + e] * direction[k][e];
		all += value[k] * z * z;
	}
	return all;
}

/* The largest directions of each part are kept, the others are lost; numbers of a scale block are equally large. */
START_TEST(largest_directions)
{
	static const struct {
		uint32_t spans, width;
	} cases[] = {{0, 32}, {0, 64}, {0, 96}, {0, 128}, {1, 64}, {1, 128}, {2, 128}};
	uint32_t spans = cases[_i].spans, width = cases[_i].width, parts = spans ? 2 * spans : 1;
	uint32_t n = WIDE / parts, each = width / parts, group = each % 64 ? 32 : 64;
	struct eng_compressor c;
	struct eng_residuals r;
	struct eng_error err;
	double lost = 0;

	make_residuals(&r, parts);
	ck_assert_int_eq(eng_compressor_check(WIDE, width, spans, &err), 0);
	ck_assert_int_eq(eng_compressor_make(&c, &r, spans ? "palu" : "deltakv", width, spans, &err), 0);
	for (uint32_t k = 0; k < WIDE; k++) {
		bool large = value[k] > n - each;

		ck_assert_double_eq_tol(kept(&c, k), large, 1e-5);
		lost += large ? 0 : value[k];
	}
	ck_assert_double_eq_tol(c.lost[0], lost, 1e-6 * (1 + lost));
	for (uint32_t i = 0; i < width; i++)
		ck_assert_double_eq_tol(in_number(&c, i), in_number(&c, i / group * group), 1e-4 * value[0] * n);
	for (uint32_t i = 0; i < width; i++)
		for (uint32_t e = 0; e < WIDE; e++)
			ck_assert(i / each == e / n || c.weights[i * WIDE + e] == 0);
	eng_compressor_deinit(&c);
	eng_residuals_deinit(&r);
}
END_TEST

START_TEST(widths)
{
	struct eng_error err;

	ck_assert_int_eq(eng_compressor_check(WIDE, 0, 0, &err), -EINVAL);
	ck_assert_int_eq(eng_compressor_check(WIDE, 48, 0, &err), -EINVAL);
	ck_assert_int_eq(eng_compressor_check(WIDE, 160, 0, &err), -EINVAL);
	ck_assert_int_eq(eng_compressor_check(WIDE, 32, 1, &err), -EINVAL);
	ck_assert_int_eq(eng_compressor_check(WIDE, 64, 2, &err), -EINVAL);
	ck_assert_ptr_nonnull(
		strstr(err.text, "--width 64: of the model's 128 elements of K and V a multiple of 128"));
}
END_TEST

/* ---- the file -------------------------------------------------------------------------------- */

static void make_small(struct eng_residuals *r, struct eng_compressor *c)
{
	struct eng_error err;

	make_residuals(r, 1);
	ck_assert_int_eq(eng_compressor_make(c, r, "deltakv", 64, 0, &err), 0);
}

/* Rounds to 8 bits, as bf16 does. */
static double rounded(double a)
{
	int exponent;

	a = frexp(a, &exponent);
	return ldexp(nearbyint(ldexp(a, 8)), exponent - 8);
}

START_TEST(the_library_reads_it)
{
	const struct skv_layer_set packs = {.bits = {1}};
	const char *path = fx_path(folder, "made.safetensors");
	struct eng_compressor c;
	struct eng_residuals r;
	struct eng_error err;
	struct codec *read;
	char text[256] = "";

	fx_text(path, "what was there before");
	make_small(&r, &c);
	ck_assert_int_eq(eng_compressor_write(&c, path, &err), 0);
	ck_assert_msg(codec_read(path, WIDE, 16, 1, &packs, &read, text, sizeof(text)) == 0, "%s", text);
	ck_assert_uint_eq(read->width, 64);
	ck_assert_uint_eq(read->hidden, 0);
	ck_assert_uint_eq(read->wide, 0);
	ck_assert_uint_eq(read->stride, 10);
	ck_assert_uint_eq(read->near, 4);
	for (uint32_t i = 0; i < 64 * WIDE; i++) {
		ck_assert(read->layer[0].down[i] == rounded(c.weights[i]));
		ck_assert(read->layer[0].out[i] == rounded(c.weights[64 * WIDE + i]));
	}
	codec_free(read);
	eng_compressor_deinit(&c);
	eng_residuals_deinit(&r);
}
END_TEST

/* Only regular files are replaced, and no temporary file is left (fx_remove() would fail). */
START_TEST(what_cannot_be_written)
{
	const char *dir = fx_path(folder, "dir"), *absent = fx_path(folder, "absent/file");
	struct eng_compressor c;
	struct eng_residuals r;
	struct eng_error err;

	make_small(&r, &c);
	ck_assert_int_eq(eng_compressor_write(&c, absent, &err), -ENOENT);
	ck_assert_ptr_nonnull(strstr(err.text, absent));
	ck_assert_int_eq(mkdir(dir, 0700), 0);
	ck_assert_int_eq(eng_compressor_write(&c, dir, &err), -EEXIST);
	ck_assert_int_eq(rmdir(dir), 0);
	ck_assert_int_eq(eng_compressor_write(&c, "/dev/null", &err), -EEXIST);
	eng_compressor_deinit(&c);
	eng_residuals_deinit(&r);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-codec-fit");
	TCase *t = add_case(s, "compress", 30, setup, teardown, widths, the_library_reads_it,
	                    what_cannot_be_written, NULL);

	omp_set_num_threads(1); /* matrices are small: threads would mostly wait for each other */
	tcase_add_loop_test(t, residuals_add_up, 0, 12);
	tcase_add_loop_test(t, largest_directions, 0, 7);
	return run_suite(s);
}
