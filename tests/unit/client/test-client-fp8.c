/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys that fp8 cannot represent well enough are refused, and the reported share of attention that fp8 moves is that of
 * a plain computation in double precision. Keys with outliers have two elements of some thousands, the same in all
 * tokens but for a few percent, as biases make them in the first layers of Qwen 2.5.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ref/attention.h"
#include "tests/support/client-fixture.h"

enum { N_LAYERS = 2, N_HEADS = 4, N_KV_HEADS = 2, DIM = 64, MAX_TOKENS = 64, COMPARED = 16 };

static struct skv_model model;
static struct skv_session *s;
static struct devmem_rows rows;
static float q[MAX_TOKENS][N_HEADS][DIM], k[MAX_TOKENS][N_KV_HEADS][DIM];

static void setup(void)
{
	client_begin(NULL);
	skv_model_init(&model, sizeof(model));
	model.n_layers = N_LAYERS;
	model.n_heads = N_HEADS;
	model.n_kv_heads = N_KV_HEADS;
	model.head_dim = DIM;
	model.max_tokens = MAX_TOKENS;
	model.kv_dtype = SKV_FP8;
	model.device = devmem_is_device() ? SKV_DEVICE_CUDA(0) : SKV_DEVICE_HOST;
	strcpy(model.name, "outliers");
	OK(skv_open(client, &model, "full", &s));
	rows = devmem_rows_new(&model, MAX_TOKENS);
}

static void teardown(void)
{
	devmem_rows_free(&rows);
	client_end();
}

static float normal(void)
{
	return (float)(sqrt(-2 * log(1 - rnd_unit())) * cos(2 * M_PI * rnd_unit()));
}

/* Rows [first, first + n); `outlier`: the mean of two elements of each key. */
static void make_rows(uint32_t first, uint32_t n, float outlier)
{
	for (uint32_t t = first; t < first + n; t++) {
		for (uint32_t i = 0; i < N_HEADS * DIM; i++)
			q[t][i / DIM][i % DIM] = ref_round(SKV_F16, normal()); /* as a device gets them */
		for (uint32_t i = 0; i < N_KV_HEADS * DIM; i++)
			k[t][i / DIM][i % DIM] =
			        ref_round(SKV_F16, normal() + (i % DIM == 3 || i % DIM == 17 ? outlier * (1 + normal() / 50) : 0));
	}
}

/* ---- in double precision --------------------------------------------------------------------- */

/* The e4m3 number nearest to x, among all numbers. */
static double nearest(double x)
{
	double best = 0;

	for (int code = 0; code < 0x7f; code++) { /* 0x7f is NaN */
		const int exponent = code >> 3, mantissa = code & 7;
		const double y = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);

		if (fabs(fabs(x) - y) < fabs(fabs(x) - best) || (fabs(fabs(x) - y) == fabs(fabs(x) - best) && mantissa % 2 == 0))
			best = y;
	}
	return copysign(best, x);
}

static void as_fp8(const float *row, double *to)
{
	double most = 0, unit = 0x1p-40;

	for (int d = 0; d < DIM; d++)
		most = fmax(most, fabs(row[d]));
	while (448 * unit < most)
		unit *= 2;
	for (int d = 0; d < DIM; d++)
		to[d] = unit * nearest(row[d] / unit);
}

static void softmax(double *x, uint32_t n)
{
	double most = -INFINITY, sum = 0;

	for (uint32_t i = 0; i < n; i++)
		most = fmax(most, x[i]);
	for (uint32_t i = 0; i < n; i++)
		sum += x[i] = exp(x[i] - most);
	for (uint32_t i = 0; i < n; i++)
		x[i] /= sum;
}

static double moved_of_row(uint32_t first, uint32_t t, uint32_t head)
{
	double exact[COMPARED] = {0}, rounded[COMPARED] = {0}, moved = 0;
	uint32_t n = t - first + 1, kv = head / (N_HEADS / N_KV_HEADS);

	for (uint32_t i = 0; i < n; i++) {
		double fp8[DIM];

		as_fp8(k[first + i][kv], fp8);
		for (int d = 0; d < DIM; d++) {
			exact[i] += (double)q[t][head][d] * (double)k[first + i][kv][d] / sqrt(DIM);
			rounded[i] += (double)q[t][head][d] * fp8[d] / sqrt(DIM);
		}
	}
	softmax(exact, n);
	softmax(rounded, n);
	for (uint32_t i = 0; i < n; i++)
		moved += fabs(exact[i] - rounded[i]) / 2;
	return moved;
}

/* The share of attention that fp8 moves in the first rows of a prompt that begins at row `first`. */
static double moved(uint32_t first, uint32_t n, uint32_t head)
{
	double sum = 0;

	n = n < COMPARED ? n : COMPARED;
	for (uint32_t t = first + 1; t < first + n; t++)
		sum += moved_of_row(first, t, head);
	return sum / (n - 1);
}

/* Makes rows that the library must refuse. In some random rows fp8 moves too little attention; these are drawn again. */
static void make_outliers(uint32_t first, uint32_t n)
{
	double most;

	do {
		make_rows(first, n, 2000);
		most = 0;
		for (uint32_t head = 0; head < N_HEADS; head++)
			most = fmax(most, moved(first, n, head));
	} while (most < 0.3);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void begin(const uint32_t *n, uint32_t n_prompts, uint32_t total)
{
	struct skv_step_item items[8];

	for (uint32_t i = 0; i < n_prompts; i++) {
		struct skv_seq *seq;

		OK(skv_seq_new(s, NULL, 0, &seq));
		items[i] = SKV_STEP_ITEM(.seq = seq, .n_tokens = n[i], .flags = SKV_STEP_PROMPT);
	}
	OK(skv_step_begin(s, items, n_prompts, devmem_stream()));
	memcpy(rows.q, q, total * sizeof(*q));
	memcpy(rows.k, k, total * sizeof(*k));
	memset(rows.v, 0, total * sizeof(*k));
}

/* A step of several prompts, whose second layer has the rows. Returns the result of attending there. */
static int attend(const uint32_t *n, uint32_t n_prompts)
{
	uint32_t total = 0;
	int e;

	for (uint32_t i = 0; i < n_prompts; i++)
		total += n[i];
	begin(n, n_prompts, total);
	memset(rows.k, 0, total * sizeof(*k));
	OK(devmem_attend(s, 0, &rows, true));
	memcpy(rows.k, k, total * sizeof(*k));
	e = devmem_attend(s, 1, &rows, true);
	if (e < 0)
		skv_step_abort(s);
	else
		OK(skv_step_end(s, NULL, NULL));
	return e;
}

/* ---- tests ----------------------------------------------------------------------------------- */

START_TEST(outliers_are_refused)
{
	const uint32_t n[] = {24};
	unsigned layer, head, percent;

	make_outliers(0, n[0]);
	FAILS(attend(n, 1), EDOM, "outliers");
	ck_assert_int_eq(sscanf(skv_last_error(), "layer %u, head %u: fp8 moves %u %%", &layer, &head, &percent), 3);
	ck_assert_uint_eq(layer, 1);
	ck_assert_msg(fabs(percent - 100 * moved(0, n[0], head)) < 1, "%u %%, expected %g", percent, 100 * moved(0, n[0], head));
	FAILS(attend(n, 1), EDOM, "bfloat16"); /* and again */
}
END_TEST

START_TEST(others_are_not)
{
	const uint32_t n[] = {24};

	make_rows(0, n[0], 0);
	for (uint32_t head = 0; head < N_HEADS; head++)
		ck_assert_double_lt(moved(0, n[0], head), 0.1);
	OK(attend(n, 1));
}
END_TEST

/* The failing prompt comes behind one that is too short to be checked. */
START_TEST(any_prompt_of_a_step)
{
	const uint32_t n[] = {5, 20, 9};
	unsigned head;

	make_rows(0, 5, 2000);
	make_rows(5, 20, 0);
	make_outliers(25, 9);
	FAILS(attend(n, 3), EDOM, "first 9 rows");
	ck_assert_int_eq(sscanf(skv_last_error(), "layer 1, head %u", &head), 1);
	ck_assert_double_gt(moved(25, 9, head), 0.25);
	OK(attend(n, 2));
}
END_TEST

START_TEST(the_session_trusts_a_model_after_some_prompts)
{
	const uint32_t n[] = {16};

	make_rows(0, n[0], 0);
	for (int i = 0; i < 8; i++)
		OK(attend(n, 1));
	make_rows(0, n[0], 2000);
	OK(attend(n, 1));
}
END_TEST

/*
 * The last layer shares the first one's K and V, and is given none to check: prompts count all the same, or the session
 * would check them for ever.
 */
START_TEST(a_last_layer_that_shares)
{
	static struct skv_model_layer layers[N_LAYERS];
	const uint32_t n[] = {16};

	layers[0] = SKV_MODEL_LAYER(0);
	layers[1] = SKV_MODEL_LAYER(.shares_kv = 1);
	model.layers = layers;
	strcpy(model.name, "outliers-shared");
	OK(skv_open(client, &model, "full", &s));
	for (int i = 0; i <= 8; i++) {
		make_rows(0, n[0], i < 8 ? 0 : 2000);
		begin(n, 1, n[0]);
		OK(devmem_attend(s, 0, &rows, true));
		OK(skv_attend(s, 1, &SKV_ATTN(.q = rows.placed.q, .out = (void *)rows.placed.q)));
		OK(skv_step_end(s, NULL, NULL));
	}
}
END_TEST

START_TEST(other_dtypes_bear_them)
{
	const uint32_t n[] = {24};

	model.kv_dtype = SKV_BF16;
	strcpy(model.name, "outliers-bf16");
	OK(skv_open(client, &model, "full", &s));
	make_rows(0, n[0], 2000);
	OK(attend(n, 1));
}
END_TEST

/* Rows that are not finite are not checked. */
START_TEST(not_finite)
{
	const uint32_t n[] = {24};

	make_rows(0, n[0], 0);
	k[3][1][7] = NAN;
	OK(attend(n, 1));
}
END_TEST

int main(void)
{
	Suite *suite = begin_suite("test-client-fp8");

	add_case(suite, "fp8", 60, setup, teardown, outliers_are_refused, others_are_not, any_prompt_of_a_step,
	         the_session_trusts_a_model_after_some_prompts, a_last_layer_that_shares, other_dtypes_bear_them, not_finite, NULL);
	return run_suite(suite);
}
