/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/unit/kernels/test-compress-quant.c - KV quantization against double precision, on every backend of this
 * machine: records of blocks, and attention, attention scores, selections and decompressed rows over them.
 */
#include <check.h>
#include <math.h>
#include <string.h>
#include "tests/support/quant-case.h"
#include "tests/support/score-case.h"
#include "tests/ref/attention.h"
#include "tests/support/suite.h"

#define BLOCK 32u
#define TOLERANCE 3e-5

static const uint32_t nothing[CASE_SEQS];

/* ---- records --------------------------------------------------------------------------------- */

/*
 * Checks the n numbers x, x_step apart, and their values `said` in a record, said_step apart: is each value the nearest
 * representable one between the least and the most?
 */
static void check_group(const struct low_case *k, const char *what, const float *x, uint32_t x_step, const double *said,
                        uint32_t said_step, uint32_t n)
{
	const double top = (1u << k->code.bits) - 1;
	double least = x[0], most = x[0], scale, low;

	for (uint32_t i = 1; i < n; i++) {
		least = fmin(least, x[i * x_step]);
		most = fmax(most, x[i * x_step]);
	}
	low = ref_round(SKV_BF16, (float)least);
	scale = ref_round(SKV_BF16, (float)((float)(most - least) / top));
	for (uint32_t i = 0; i < n; i++) {
		const double is = said[i * said_step], was = x[i * x_step], off = is - was;
		const double within = 0.5 * scale + 1e-6 * (fabs(was) + fabs(low));

		if (fabs(remainder(is - low, scale)) > 1e-9 + 1e-9 * fabs(is) ||
		    (off < -within && is < low + (top - 0.5) * scale) || (off > within && is > low + 0.5 * scale))
			ck_abort_msg("%s: %s: %g became %g, of numbers from %g in steps of %g", k->c.on->name, what, was, is, low,
			             scale);
	}
}

/* Checks a block's record of a kv head. */
static void check_record(const struct low_case *k, uint8_t *pool, uint32_t layer, uint32_t i, uint32_t block,
                         uint32_t h)
{
	const uint32_t dim = k->c.sh.head_dim, row = k->c.sh.n_kv_heads * dim;
	const uint8_t *record = low_record(k, pool, layer, i, block * BLOCK, h);
	const float *keys = k->c.k[i] + (size_t)block * BLOCK * row + h * dim;
	const float *values = k->c.v[i] + (size_t)block * BLOCK * row + h * dim;
	double said[BLOCK * SKV_MAX_HEAD_DIM];

	for (uint32_t t = 0; t < BLOCK; t++)
		low_read(k, record, t, false, said + t * dim);
	for (uint32_t d = 0; d < dim; d++)
		check_group(k, "K", keys + d, row, said + d, dim, BLOCK);
	for (uint32_t t = 0; t < BLOCK; t++) {
		low_read(k, record, t, true, said);
		for (uint32_t d = 0; d < dim; d += k->code.scale_block)
			check_group(k, "V", values + (size_t)t * row + d, 1, said + d, 1, k->code.scale_block);
	}
}

/* Checks the records of [0, pack) of each sequence, and that nothing else was written since the pool was `was`. */
static void check_pool(const struct low_case *k, uint8_t *pool, const uint8_t *was, const uint32_t *pack)
{
	const size_t bytes = k->c.pool_pages * k->c.sh.page_bytes;
	uint8_t *rest = malloc(bytes);

	memcpy(rest, pool, bytes);
	for (uint32_t l = 0; l < LOW_LAYERS; l++)
		for (uint32_t i = 0; i < k->c.n; i++)
			for (uint32_t r = 0; r < pack[i] / BLOCK * k->c.sh.n_kv_heads; r++) {
				const uint32_t block = r / k->c.sh.n_kv_heads, h = r % k->c.sh.n_kv_heads;
				uint8_t *at = low_record(k, pool, l, i, block * BLOCK, h);

				memcpy(rest + (at - pool), was + (at - pool), low_record_bytes(k));
				check_record(k, pool, l, i, block, h);
			}
	if (memcmp(rest, was, bytes))
		ck_abort_msg("%s: bytes that belong to no record were written", k->c.on->name);
	free(rest);
}

/* Compresses up to `goal` in steps of random size, some sequences at a time. */
static void pack_in_steps(struct low_case *k, const uint32_t *goal)
{
	uint32_t coded[CASE_SEQS] = {0}, pack[CASE_SEQS];

	for (bool more = true; more;) {
		const uint32_t from = rnd_below(k->c.n), n = 1 + rnd_below(k->c.n - from);

		for (uint32_t i = 0; i < k->c.n; i++) {
			pack[i] = coded[i] + BLOCK * rnd_below(4);
			pack[i] = pack[i] < goal[i] ? pack[i] : goal[i];
		}
		low_pack(k, from, n, coded, pack, 1 + (int)rnd_below(2));
		more = false;
		for (uint32_t i = 0; i < k->c.n; i++) {
			if (i >= from && i < from + n)
				coded[i] = pack[i];
			more |= coded[i] < goal[i];
		}
	}
}

START_TEST(records)
{
	static const uint32_t len[] = {190, 97, 20, 128}, goal[] = {160, 64, 0, 128};
	struct low_case k;

	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		if (!low_init(&k, (_i * 7 + 1) % LOW_SHAPES, _i % LOW_FORMS, 4, len))
			return;
		/* a block of equal numbers, and a part of the next */
		for (uint32_t x = 0; x < 40 * k.c.sh.n_kv_heads * k.c.sh.head_dim; x++)
			k.c.k[1][x] = k.c.k_in[1][x] = k.c.v[1][x] = k.c.v_in[1][x] = -0.75f;
		if (low_on(&k, b)) {
			const size_t bytes = k.c.pool_pages * k.c.sh.page_bytes;
			uint8_t *was = low_pool(&k), *at_once, *in_steps;

			low_pack(&k, 0, 4, nothing, goal, 3);
			at_once = low_pool(&k);
			check_pool(&k, at_once, was, goal);
			low_pool_to(&k, was);
			pack_in_steps(&k, goal);
			in_steps = low_pool(&k);
			ck_assert_msg(!memcmp(at_once, in_steps, bytes), "%s: in steps and at once differ", b->name);
			free(was);
			free(at_once);
			free(in_steps);
			low_off(&k);
		}
		low_deinit(&k);
	}
}
END_TEST

/* Record sizes are part of the format. Here: those of the reference model, and of a model of 8 B parameters. */
START_TEST(record_sizes)
{
	static const struct {
		uint32_t dim, bits, group, bytes;
	} known[] = {{64, 4, 32, 2560}, {64, 2, 32, 1536}, {128, 4, 64, 4864}, {128, 2, 32, 3072}};

	for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
		const struct skv_codec c = {.kind = SKV_COMPRESS_QUANT, .bits = known[i].bits,
		                            .scale_block = known[i].group};
		const struct skv_shape sh = {.n_heads = 8, .n_kv_heads = 2, .head_dim = known[i].dim, .codec = &c};

		ck_assert_uint_eq(skv_code_record_bytes(&sh), known[i].bytes);
		ck_assert_uint_eq(skv_code_records(&sh, 96), 6);
	}
}
END_TEST

START_TEST(unsupported)
{
	static const struct skv_codec good = {.kind = SKV_COMPRESS_QUANT, .bits = 2, .scale_block = 32};
	const struct skv_kernels *kern = skv_kernels_host(NULL);
	struct skv_codec bad[3] = {good, good, good};
	struct skv_shape sh = {.n_heads = 8, .n_kv_heads = 2, .head_dim = 96, .dtype = SKV_BF16, .codec = &good};

	ck_assert_ptr_null(kern->unsupported_codec(&sh));
	bad[0].bits = 8;
	bad[1].scale_block = 16;
	bad[2].scale_block = 64;
	for (int i = 0; i < 3; i++) {
		sh.codec = &bad[i];
		ck_assert_msg(kern->unsupported_codec(&sh), "case %d", i);
	}
}
END_TEST

/* ---- attention ------------------------------------------------------------------------------- */

/*
 * Compresses, and sets the case's K and V to the values that the records give. Rows of compressed tokens become NaNs.
 */
static void pack_and_forget(struct low_case *k, const uint32_t *coded)
{
	const uint32_t dim = k->c.sh.head_dim, heads = k->c.sh.n_kv_heads;
	const bool rounds = case_rounds_q(&k->c, k->c.on);
	double x[SKV_MAX_HEAD_DIM];
	uint8_t *pool;

	low_pack(k, 0, k->c.n, nothing, coded, 2);
	pool = low_pool(k);
	for (uint32_t i = 0; i < k->c.n; i++) {
		for (uint32_t r = 0; r < coded[i] * heads * 2; r++) {
			const uint32_t token = r / heads / 2, h = r / 2 % heads;
			float *to = (r % 2 ? k->c.v : k->c.k)[i] + ((size_t)token * heads + h) * dim;

			low_read(k, low_record(k, pool, 1, i, token, h), token, r % 2, x);
			for (uint32_t d = 0; d < dim; d++)
				to[d] = rounds ? ref_round(k->c.sh.dtype, (float)x[d]) : (float)x[d];
		}
		for (uint32_t p = 0; p < coded[i] / SKV_PAGE_TOKENS; p++)
			memset(pool + skv_pte_id(k->c.table[i][p]) * k->c.sh.page_bytes, 0xff, k->c.sh.page_bytes);
	}
	low_pool_to(k, pool);
	free(pool);
}

static void check_attended(const struct low_case *k, int runs)
{
	uint64_t now[CASE_SEQS];

	case_from(&k->c, now, k->c.attended, k->c.n * sizeof *now);
	for (uint32_t i = 0; i < k->c.n; i++)
		ck_assert_msg(now[i] - case_attended_before(i) ==
		                      (case_has_counter(i) ? (uint64_t)runs * k->c.seq[i].len * k->c.sh.n_heads : 0),
		              "%s: sequence %u: %llu attended", k->c.on->name, i,
		              (unsigned long long)(now[i] - case_attended_before(i)));
}

static void decode(struct low_case *k, uint32_t from, uint32_t n, const uint32_t *coded, const void *q, void *out,
                   const struct skv_scores *ev, int threads)
{
	const struct skv_batch batch = low_batch(k, from, n, coded, nothing, true);
	struct skv_workspace w = case_work(&k->c, threads);

	k->c.on->kern->decode_dense(&k->sh[1], &batch, q, out, ev, &w);
	case_work_done(&k->c, &w);
}

#define VARIANTS 7 /* variants of requested scores; the last one has no output */

static void check_variant(struct low_case *k, const uint32_t *coded, int variant)
{
	struct kernel_case *c = &k->c;
	const bool keys = variant == VARIANTS - 1;
	const size_t floats = (size_t)c->rows * c->sh.n_heads * c->sh.head_dim;
	struct skv_scores scores = score_to(c, variant);
	void *q = case_rows_to(c, c->q, floats), *mem = case_to(c, NULL, case_rows_bytes(c, floats));
	float *out = malloc(floats * sizeof *out);
	struct score_ref ref = score_ref_of(c, &scores);

	decode(k, 0, c->n, coded, q, keys ? NULL : mem, &scores, 2);
	if (keys) {
		scores.lse = NULL;
	} else {
		case_rows_from(c, out, mem, floats);
		case_compare("output", out, ref.out, floats, case_tolerance(c, c->on, TOLERANCE), 0);
	}
	score_check(c, &scores, &ref);
	free(out);
	score_ref_free(&ref);
}

/* Outputs without scores have the same bits for any number of threads, any batch, and with out = q. */
static void check_outputs(struct low_case *k, const uint32_t *coded)
{
	struct kernel_case *c = &k->c;
	const size_t floats = (size_t)c->rows * c->sh.n_heads * c->sh.head_dim;
	const struct skv_scores none = {.rows = 1, .token_stride = k->stride * SKV_PAGE_TOKENS,
	                                .page_stride = k->stride};
	float *out = malloc(floats * sizeof *out), *again = malloc(floats * sizeof *again);
	void *q = case_rows_to(c, c->q, floats), *mem = case_to(c, NULL, case_rows_bytes(c, floats));
	struct score_ref ref = score_ref_of(c, &none);

	decode(k, 0, c->n, coded, q, mem, NULL, 1);
	case_rows_from(c, out, mem, floats);
	case_compare("output", out, ref.out, floats, case_tolerance(c, c->on, TOLERANCE), 0);
	mem = case_to(c, NULL, case_rows_bytes(c, floats));
	for (uint32_t i = 0; i < c->n; i++)
		decode(k, i, 1, coded, q, mem, NULL, 3);
	case_rows_from(c, again, mem, floats);
	ck_assert_msg(!memcmp(again, out, floats * sizeof *out), "%s: other bits for a sequence alone", c->on->name);
	decode(k, 0, c->n, coded, q, q, NULL, 2);
	case_rows_from(c, again, q, floats);
	ck_assert_msg(!memcmp(again, out, floats * sizeof *out), "%s: other bits in the place of q", c->on->name);
	check_attended(k, 3);
	free(out);
	free(again);
	score_ref_free(&ref);
}

/* Random lengths, from nothing to all whole blocks. */
static void some_coded(const uint32_t *len, uint32_t n, uint32_t *coded)
{
	for (uint32_t i = 0; i < n; i++)
		coded[i] = rnd_below(3) ? BLOCK * rnd_below(len[i] / BLOCK + 1) : len[i] / BLOCK * BLOCK;
}

START_TEST(attention)
{
	uint32_t len[] = {1, 32, 33, 64, 900, 200, 40}, coded[CASE_SEQS];
	const uint32_t n = sizeof len / sizeof *len;

	len[4] = rnd_hurried() ? 530 : 513 + rnd_below(500);
	len[5] = 100 + rnd_below(300);
	some_coded(len, n, coded);
	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		struct low_case k;

		if (!low_init(&k, _i % LOW_SHAPES, _i / LOW_SHAPES * 2 + _i % 2, n, len))
			return;
		if (low_on(&k, b)) {
			pack_and_forget(&k, coded);
			check_outputs(&k, coded);
			for (int variant = 0; variant < VARIANTS; variant++)
				check_variant(&k, coded, variant);
			low_off(&k);
		}
		low_deinit(&k);
	}
}
END_TEST

/* ---- selections ------------------------------------------------------------------------------ */

/*
 * Selections of compressed tokens equal those of rows, for any scores: their holes in the page table do not count as
 * holes.
 */
START_TEST(selections)
{
	enum { LEN = 200, CODED = 160, PAGES = (LEN + 15) / 16, STRIDE = PAGES * 16 };
	static const uint32_t len[] = {LEN}, coded[] = {CODED};

	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		struct low_case k;

		ck_assert(low_init(&k, _i * (LOW_SHAPES / 3), 0, 1, len));
		k.c.max_len = LEN;
		for (int what = 0; what < 3 && low_on(&k, b); what++, low_off(&k)) { /* pages, tokens, a union */
			const struct skv_select sel = {.budget.count = 9, .recent = 2, .pin = 3};
			const uint32_t rows = what == 2 ? k.c.sh.n_heads : 1;
			const struct skv_batch as_rows = low_batch(&k, 0, 1, nothing, nothing, false);
			const struct skv_batch packed = low_batch(&k, 0, 1, coded, nothing, true);
			float score[64 * STRIDE];
			uint32_t ids[2][STRIDE], count[2];

			for (uint32_t x = 0; x < rows * STRIDE; x++)
				score[x] = rnd_unit();
			for (int i = 0; i < 2; i++) {
				const struct skv_scores ev = {.rows = rows, .token_stride = STRIDE, .page_stride = PAGES + 3,
				                                .token = case_to(&k.c, score, rows * STRIDE * sizeof *score),
				                                .page = case_to(&k.c, score, rows * (PAGES + 3) * sizeof *score)};
				struct skv_index_list list = {.rows = 1, .stride = STRIDE, .ids = case_to(&k.c, NULL, sizeof ids[0]),
				                        .count = case_to(&k.c, NULL, sizeof count[0])};
				struct skv_workspace w = case_work(&k.c, 1);

				if (what == 2)
					b->kern->select_union(&k.sh[0], i ? &packed : &as_rows, &ev, &sel, &list, &w);
				else
					b->kern->select(&k.sh[0], i ? &packed : &as_rows, &ev, what == 1, &sel, &list,
					                &w);
				case_work_done(&k.c, &w);
				case_from(&k.c, ids[i], list.ids, sizeof ids[i]);
				case_from(&k.c, &count[i], list.count, sizeof count[i]);
			}
			ck_assert_uint_eq(count[0], 12);
			ck_assert_uint_eq(count[1], 12);
			ck_assert_msg(!memcmp(ids[0], ids[1], 12 * sizeof ids[0][0]), "%s: what is %d", b->name, what);
		}
		low_deinit(&k);
	}
}
END_TEST

/* ---- rows again ------------------------------------------------------------------------------ */

/* Checks that the rows [0, n) of sequence i, in these pages of a copy of a pool, are those of the case. */
static void check_rows(const struct low_case *k, const uint8_t *pool, const skv_pte *table, uint32_t i, uint32_t n)
{
	const struct skv_shape *sh = &k->c.sh;
	const uint32_t dim = sh->head_dim;
	const size_t each = skv_dtype_bytes(sh->dtype), half = sh->page_bytes / 2;
	/* half a unit in the last place, and the fp32 rounding of a product and a sum */
	const double rounding = sh->dtype == SKV_F32 ? 0x1p-22 : sh->dtype == SKV_F16 ? 0x1p-11 : 0x1p-8;

	for (uint32_t x = 0; x < n * sh->n_kv_heads * dim; x++) {
		const uint32_t t = x / dim / sh->n_kv_heads, h = x / dim % sh->n_kv_heads;
		const uint8_t *at = pool + skv_pte_id(table[t / SKV_PAGE_TOKENS]) * sh->page_bytes +
		                    ((h * SKV_PAGE_TOKENS + t % SKV_PAGE_TOKENS) * dim + x % dim) * each;
		const double key = ref_load(sh->dtype, at), value = ref_load(sh->dtype, at + half);

		if (!(fabs(key - k->c.k[i][x]) <= rounding * (1 + fabs(key))) ||
		    !(fabs(value - k->c.v[i][x]) <= rounding * (1 + fabs(value))))
			ck_abort_msg("%s: sequence %u, token %u, element %u: %g and %g, should be %g and %g", k->c.on->name, i, t,
			             x % dim, key, value, (double)k->c.k[i][x], (double)k->c.v[i][x]);
	}
}

/* Rows are decompressed into other pages, and into their own. */
START_TEST(rows_again)
{
	static const uint32_t len[] = {190, 97, 20, 128}, coded[] = {160, 32, 0, 128};
	enum { PAGES = 13, N = 4 };

	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		struct low_case k;
		skv_pte table[N * PAGES];

		if (!low_init(&k, (_i * 5 + 2) % LOW_SHAPES, _i % LOW_FORMS, N, len))
			return;
		if (low_on(&k, b)) {
			struct skv_decompressed to = {.pool = NULL};
			struct skv_batch batch;
			struct skv_workspace w = case_work(&k.c, 2);
			uint8_t *pool;

			pack_and_forget(&k, coded);
			batch = low_batch(&k, 0, N, coded, nothing, true);
			to = (struct skv_decompressed){.pages = PAGES, .pool = case_to(&k.c, NULL, N * PAGES * k.c.sh.page_bytes),
			                          .seq = case_to(&k.c, NULL, N * sizeof(struct skv_kseq)),
			                          .table = case_to(&k.c, NULL, sizeof table)};
			b->kern->decompress(&k.sh[1], &batch, NULL, &to, &w);
			pool = malloc(N * PAGES * k.c.sh.page_bytes);
			case_from(&k.c, pool, to.pool, N * PAGES * k.c.sh.page_bytes);
			case_from(&k.c, table, to.table, sizeof table);
			for (uint32_t i = 0; i < N; i++)
				check_rows(&k, pool, table + i * PAGES, i, len[i]);
			free(pool);
			to = (struct skv_decompressed){.pool = NULL};
			batch = low_batch(&k, 0, N, coded, nothing, false);
			b->kern->decompress(&k.sh[1], &batch, NULL, &to, &w);
			case_work_done(&k.c, &w);
			pool = low_pool(&k);
			for (uint32_t i = 0; i < N; i++)
				check_rows(&k, pool, k.c.table[i], i, len[i]);
			free(pool);
			low_off(&k);
		}
		low_deinit(&k);
	}
}
END_TEST

int main(void)
{
	Suite *s = case_suite("test-compress-quant");
	TCase *t = add_case(s, "all", 120, NULL, NULL, record_sizes, unsupported, NULL);

	add_cases(t, records, rnd_hurried() ? 3 : LOW_SHAPES);
	add_cases(t, attention, rnd_hurried() ? 3 : LOW_SHAPES * LOW_FORMS / 2);
	add_cases(t, selections, 3);
	add_cases(t, rows_again, rnd_hurried() ? 3 : LOW_SHAPES);
	return run_suite(s);
}
