/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/unit/kernels/test-compress.c - records of compressed tokens against double precision, on every backend of this
 * machine.
 *
 * Each check starts from the stored result of the stage before: the choice of near references is checked with the
 * stored references, a code with the references that its record names. So no error hides another, and none is reported
 * twice.
 */
#include <check.h>
#include <math.h>
#include <string.h>
#include "tests/support/latent-case.h"
#include "tests/ref/attention.h"
#include "tests/support/suite.h"

#define WRONG(k, i, token, ...)                                                                               \
	ck_abort_msg("%s: sequence %u, token %u: %s %g, %s %g", (k)->c.on->name, i, token, __VA_ARGS__)

/*
 * The error of the backend's sums, as a share of the magnitudes of their summands. A device multiplies numbers that
 * were rounded to bf16: each is off by at most 2^-8 of itself, and over dozens of summands most of that cancels out.
 */
static double slack_of(const struct code_case *k)
{
	return k->c.on->device ? 0x1p-9 : 4e-6;
}

/* ---- one record ------------------------------------------------------------------------------ */

/* Half a unit in the last place, as a share. */
static double rounding(uint32_t dtype)
{
	return dtype == SKV_F32 ? 0x1p-24 : dtype == SKV_F16 ? 0x1p-11 : 0x1p-8;
}

/* Checks that the n stored numbers, of `bits` bits, are x, which may be off by off[]. */
static void check_numbers(const struct code_case *k, uint32_t i, uint32_t token, const uint8_t *at, uint32_t n,
                          uint32_t bits, uint32_t group, uint32_t dtype, const double *x, const double *off)
{
	double *stored = malloc(n * sizeof *stored);
	const double top = pow(2, bits) - 1;

	ref_numbers(at, n, bits, group, dtype, stored);
	for (uint32_t e = 0; e < n && bits == 16; e++)
		if (!(fabs(stored[e] - x[e]) <= off[e] + rounding(dtype) * fabs(x[e]) + 0x1p-24))
			WRONG(k, i, token, "a number is", stored[e], "should be", x[e]);
	for (uint32_t g = 0; g < n && bits != 16; g += group) {
		double least = x[g], most = x[g], loose = 0, scale, low;

		for (uint32_t e = g; e < g + group; e++) {
			least = fmin(least, x[e]);
			most = fmax(most, x[e]);
			loose = fmax(loose, off[e]);
		}
		ref_shared(at, g / group, &scale, &low);
		if (!(fabs(low - least) <= loose + 0x1p-8 * fabs(least)))
			WRONG(k, i, token, "the least is", low, "should be", least);
		if (!(fabs(scale * top - (most - least)) <= 2 * loose + 0x1p-8 * (most - least)))
			WRONG(k, i, token, "the range is", scale * top, "should be", most - least);
		for (uint32_t e = g; e < g + group; e++) {
			const uint32_t q = ref_number(at, n, bits, group, e);
			const double within = 0.5 * scale + off[e] + 1e-6 * (fabs(x[e]) + fabs(low));

			if (scale == 0 ? q != 0
			               : (q > 0 && x[e] - stored[e] < -within) || (q < top &&
					x[e] - stored[e] > within))
				WRONG(k, i, token, "a number is", stored[e], "should be", x[e]);
		}
	}
	free(stored);
}

/* Checks the padding of a record. */
static void check_end(const struct code_case *k, uint32_t i, uint32_t token, const uint8_t *record, uint32_t from,
                      uint32_t to)
{
	for (; from < to; from++)
		if (record[from])
			WRONG(k, i, token, "what fills the record up is", (double)record[from], "at byte",
			      (double)from);
}

static void check_reference(const struct code_case *k, uint8_t *pool, uint32_t layer, uint32_t i, uint32_t token)
{
	const struct ref_codec *c = &k->layer[layer].codec;
	const uint32_t d = ref_dims(c);
	const uint8_t *record = code_record(k, pool, layer, i, token);
	double *x = malloc(d * sizeof *x), *off = malloc(d * sizeof *off), most = 0;

	code_x(k, c, i, token, x);
	for (uint32_t e = 0; e < d; e++)
		most = fmax(most, fabs(x[e]));
	for (uint32_t e = 0; e < d; e++) /* the error of a rotated pair depends on the larger element */
		off[e] = e < d / 2 ? 1e-6 * most : 0;
	check_numbers(k, i, token, record, d, c->ref_bits, 64, c->dtype, x, off);
	check_end(k, i, token, record, ref_numbers_bytes(d, c->ref_bits, 64, c->dtype == SKV_F32 ? 4 : 2),
	          ref_reference_record(c));
	free(x);
	free(off);
}

/* The named references must be possible nearest ones, and ascend. x and the references are in double precision. */
static void check_ids(const struct code_case *k, uint8_t *pool, uint32_t layer, uint32_t i, uint32_t token,
                      const double *x)
{
	const struct ref_codec *c = &k->layer[layer].codec;
	const uint32_t d = ref_dims(c), n = ref_usable(c, token);
	const uint8_t *record = code_record(k, pool, layer, i, token);
	double *r = malloc(d * sizeof *r), worst = INFINITY, best = -INFINITY;
	bool *named = calloc(n, sizeof *named);

	for (uint32_t j = 0; j < c->near; j++) {
		const uint32_t id = ref_id(c, record, j);

		if (id >= n || (j && id <= ref_id(c, record, j - 1)))
			WRONG(k, i, token, "it names reference", (double)id, "of usable ones", (double)n);
		named[id] = true;
	}
	for (uint32_t j = 0; j < n; j++) {
		double score = 0, terms = 0;

		code_reference(k, pool, layer, i, j, r);
		for (uint32_t e = 0; e < d; e++) {
			score += 2 * x[e] * r[e] - r[e] * r[e];
			terms += 2 * fabs(x[e] * r[e]) + r[e] * r[e];
		}
		if (named[j])
			worst = fmin(worst, score + slack_of(k) * terms);
		else
			best = fmax(best, score - slack_of(k) * terms);
	}
	if (worst < best)
		WRONG(k, i, token, "it names a reference that scores at most", worst, "left out one of at least", best);
	free(r);
	free(named);
}

static void check_code(const struct code_case *k, uint8_t *pool, uint32_t layer, uint32_t i, uint32_t token)
{
	const struct ref_codec *c = &k->layer[layer].codec;
	const uint32_t d = ref_dims(c), w = c->width + 1;
	const uint8_t *record = code_record(k, pool, layer, i, token);
	double *x = malloc(d * sizeof *x), *b = malloc(d * sizeof *b), *sizes = malloc(d * sizeof *sizes);
	double *z = malloc(w * sizeof *z), *z_b = malloc(w * sizeof *z), *off = malloc(w * sizeof *z),
	       *off_b = malloc(w * sizeof *z);

	code_x(k, c, i, token, x);
	check_ids(k, pool, layer, i, token, x);
	code_base(k, pool, layer, i, token, b, sizes);
	check_end(k, i, token, record, c->near * c->id_bytes + ref_numbers_bytes(c->width, c->bits, c->group, 2),
	          ref_code_record(c));
	if (c->bits) {
		ref_encode(c, x, z, off);
		ref_encode(c, b, z_b, off_b);
		for (uint32_t e = 0; e < c->width; e++) {
			z[e] -= z_b[e];
			off[e] = slack_of(k) * (off[e] + off_b[e]);
		}
		check_numbers(k, i, token, record + c->near * c->id_bytes, c->width, c->bits, c->group, SKV_BF16, z,
		              off);
	}
	free(x);
	free(b);
	free(sizes);
	free(z);
	free(z_b);
	free(off);
	free(off_b);
}

/* ---- whole sequences ------------------------------------------------------------------------- */

/* Checks the records of [0, pack) of each sequence, and that nothing else was written since the pool was `was`. */
static void check_pool(const struct code_case *k, uint8_t *pool, const uint8_t *was, const uint32_t *pack)
{
	const size_t bytes = k->c.pool_pages * k->c.sh.page_bytes;
	uint8_t *rest = malloc(bytes);

	memcpy(rest, pool, bytes);
	for (uint32_t l = 0; l < CODE_LAYERS; l++) {
		const struct ref_codec *c = &k->layer[l].codec;

		for (uint32_t i = 0; i < k->c.n; i++)
			/* nothing is compressed if only tokens before `first` would be */
			for (uint32_t t = 0; t < pack[i] && pack[i] > c->first; t++) {
				uint32_t number;
				const bool is = ref_is_reference(c, t, &number);
				const uint32_t n = is ? ref_reference_record(c) : ref_code_record(c);
				uint8_t *at;

				if (t < c->first && !is)
					continue;
				at = code_record(k, pool, l, i, t);
				memcpy(rest + (at - pool), was + (at - pool), n);
				if (is)
					check_reference(k, pool, l, i, t);
				else
					check_code(k, pool, l, i, t);
			}
	}
	if (memcmp(rest, was, bytes))
		ck_abort_msg("%s: bytes that belong to no record were written", k->c.on->name);
	free(rest);
}

static void run_pack(struct code_case *k, uint32_t from, uint32_t n, const uint32_t *coded, const uint32_t *pack,
                     int threads)
{
	struct skv_workspace w = case_work(&k->c, threads);
	struct skv_batch b = code_batch(k, from, n, coded, pack);

	k->c.on->kern->compress(k->sh, CODE_LAYERS, &b, NULL, &w);
	case_work_done(&k->c, &w);
}

/* Compresses up to `goal` in steps of random size, some sequences at a time. */
static void pack_in_steps(struct code_case *k, const uint32_t *goal)
{
	uint32_t coded[CASE_SEQS] = {0}, pack[CASE_SEQS];

	for (bool more = true; more;) {
		const uint32_t from = rnd_below(k->c.n), n = 1 + rnd_below(k->c.n - from);

		for (uint32_t i = 0; i < k->c.n; i++) {
			pack[i] = coded[i] + SKV_PAGE_TOKENS * rnd_below(5);
			pack[i] = pack[i] < goal[i] ? pack[i] : goal[i];
		}
		run_pack(k, from, n, coded, pack, 1 + (int)rnd_below(2));
		more = false;
		for (uint32_t i = 0; i < k->c.n; i++) {
			if (i >= from && i < from + n && pack[i] > k->layer[0].codec.first)
				coded[i] = pack[i];
			more |= coded[i] < goal[i] && goal[i] > k->layer[0].codec.first;
		}
	}
}

static const uint32_t lengths[] = {190, 97, 20, 128}, goals[] = {176, 64, 16, 128};

START_TEST(records)
{
	const size_t n = sizeof lengths / sizeof *lengths;
	const uint32_t none[CASE_SEQS] = {0};
	struct code_case k;

	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		code_init(&k, (_i * 7 + 3) % CODE_SHAPES, _i % CODE_FORMS, n, lengths);
		if (code_on(&k, b)) {
			const size_t bytes = k.c.pool_pages * k.c.sh.page_bytes;
			uint8_t *was = code_pool(&k), *at_once, *in_steps;

			run_pack(&k, 0, n, none, goals, 1);
			at_once = code_pool(&k);
			check_pool(&k, at_once, was, goals);
			code_pool_to(&k, was);
			pack_in_steps(&k, goals);
			in_steps = code_pool(&k);
			ck_assert_msg(!memcmp(at_once, in_steps, bytes), "%s: in steps and at once differ", b->name);
			free(was);
			free(at_once);
			free(in_steps);
			code_off(&k);
		}
		code_deinit(&k);
	}
}
END_TEST

/* Integers without rotation are scored exactly, so the choice of references is exact, too. Few rows differ. */
START_TEST(ties)
{
	enum { LEN = 300, FORM = 7 };
	const uint32_t len[] = {LEN}, none[] = {0}, all[] = {LEN / 16 * 16};

	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		struct code_case k;

		code_init(&k, _i, FORM, 1, len);
		const struct ref_codec *c = &k.layer[0].codec;
		const uint32_t half = c->kv_heads * c->dim;
		for (uint32_t e = 0; e < LEN * half; e++) {
			const uint32_t like = e / half % 7;
			k.c.k[0][e] = k.c.k_in[0][e] = (float)((e % half * (like + 1)) % 5) - 2;
			k.c.v[0][e] = k.c.v_in[0][e] = (float)((e % half * (like + 2)) % 3) - 1;
		}
		if (code_on(&k, b)) {
			uint8_t *pool;

			run_pack(&k, 0, 1, none, all, 1);
			pool = code_pool(&k);
			for (uint32_t t = c->first; t < all[0]; t++) {
				const uint32_t n = ref_usable(c, t);
				double x[8192], r[8192];
				float score[64];
				uint32_t number, best[SKV_MAX_REFS];

				if (ref_is_reference(c, t, &number))
					continue;
				code_x(&k, c, 0, t, x);
				for (uint32_t j = 0; j < n; j++) {
					score[j] = 0;
					code_reference(&k, pool, 0, 0, j, r);
					for (uint32_t e = 0; e < 2 * half; e++)
						score[j] += (float)(2 * x[e] * r[e] - r[e] * r[e]);
				}
				ck_assert_uint_eq(ref_topk(score, n, c->near, best), c->near);
				for (uint32_t j = 0; j < c->near; j++) {
					const uint32_t id = ref_id(c, code_record(&k, pool, 0, 0, t), j);

					if (id != best[j])
						WRONG(&k, 0, t, "it names", (double)id, "should name", (double)best[j]);
				}
			}
			free(pool);
			code_off(&k);
		}
		code_deinit(&k);
	}
}
END_TEST

/* Rows of NaNs and infinities: records are written, and name existing references. */
START_TEST(no_numbers)
{
	const uint32_t len[] = {128}, none[] = {0};

	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		struct code_case k;

		code_init(&k, 0, _i, 1, len);
		for (uint32_t e = 0; e < 128 * k.c.sh.n_kv_heads * k.c.sh.head_dim; e++)
			k.c.k_in[0][e] = e % 3 ? NAN : INFINITY;
		if (code_on(&k, b)) {
			const struct ref_codec *c = &k.layer[0].codec;
			uint8_t *pool;

			run_pack(&k, 0, 1, none, len, 2);
			pool = code_pool(&k);
			for (uint32_t t = c->first; t < 128; t++) {
				uint32_t number;

				for (uint32_t j = 0; j < c->near && !ref_is_reference(c, t, &number); j++)
					ck_assert_uint_lt(ref_id(c, code_record(&k, pool, 0, 0, t), j),
					                  ref_usable(c, t));
			}
			free(pool);
			code_off(&k);
		}
		code_deinit(&k);
	}
}
END_TEST

/* Record sizes are part of the format. Here: those of the reference model, and of a model of 8 B parameters. */
START_TEST(record_sizes)
{
	static const struct {
		uint32_t d, bits, width, ref_bits, code, ref;
	} known[] = {
		{256, 16, 64, 16, 144, 512},     {256, 8, 64, 8, 80, 272},       {256, 4, 64, 4, 48, 144},
		{2048, 16, 512, 16, 1040, 4096}, {2048, 4, 512, 8, 304, 2176}, {2048, 4, 512, 4, 304, 1152},
	};

	for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
		const struct skv_codec c = {.first = 16, .stride = 10, .n_refs = 4, .id_bytes = 2, .scale_block = 64,
		                            .bits = known[i].bits, .width = known[i].width, .ref_bits = known[i].ref_bits};

		ck_assert_uint_eq(skv_code_bytes(&c), known[i].code);
		ck_assert_uint_eq(skv_ref_bytes(&c, known[i].d, SKV_BF16), known[i].ref);
	}
}
END_TEST

START_TEST(unsupported)
{
	static const struct skv_codec good = {.first = 16, .stride = 10, .n_refs = 4, .ref_bits = 16, .id_bytes = 2,
	                                      .bits = 4, .width = 64, .scale_block = 64, .rope_scale = 1};
	const struct skv_kernels *kern = skv_kernels_host(NULL);
	static const struct {
		size_t field;
		uint32_t value;
	} bad[] = {
		{offsetof(struct skv_codec, stride), 0},
		{offsetof(struct skv_codec, stride), 1},
		{offsetof(struct skv_codec, n_refs), 5},
		{offsetof(struct skv_codec, ref_bits), 2},
		{offsetof(struct skv_codec, id_bytes), 3},
		{offsetof(struct skv_codec, first), 24},
		{offsetof(struct skv_codec, rope_dims), 66},
		{offsetof(struct skv_codec, bits), 5},
		{offsetof(struct skv_codec, scale_block), 16},
		{offsetof(struct skv_codec, width), 96},
		{offsetof(struct skv_codec, enc_hidden), 32},
		{offsetof(struct skv_codec, spans), 4},
		{offsetof(struct skv_codec, width), 320},
	};
	struct skv_codec codec;
	struct skv_shape sh = {.n_heads = 8, .n_kv_heads = 2, .head_dim = 64, .dtype = SKV_BF16, .codec = &good};

	ck_assert_ptr_null(kern->unsupported_codec(&sh));
	sh.codec = &codec;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		codec = good;
		memcpy((char *)&codec + bad[i].field, &bad[i].value, sizeof bad[i].value);
		ck_assert_msg(kern->unsupported_codec(&sh), "case %zu", i);
	}
	sh.codec = &good;
	sh.head_dim = 80;
	sh.n_kv_heads = sh.n_heads = 7;
	ck_assert_ptr_nonnull(kern->unsupported_codec(&sh));
}
END_TEST

int main(void)
{
	Suite *s = case_suite("test-compress");
	TCase *t = add_case(s, "all", 120, NULL, NULL, record_sizes, unsupported, NULL);
	int cases = rnd_hurried() ? 3 : 2 * CODE_FORMS;

	add_cases(t, records, cases);
	add_cases(t, ties, rnd_hurried() ? 1 : CODE_SHAPES);
	add_cases(t, no_numbers, CODE_FORMS);
	return run_suite(s);
}
