/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/unit/kernels/test-decompress.c - decompressed rows against double precision, on every backend of this machine.
 * Records are random. The pages of compressed tokens hold NaNs, so that reads of them are noticed.
 */
#include <check.h>
#include <math.h>
#include <string.h>
#include "tests/support/latent-case.h"
#include "tests/ref/attention.h"
#include "tests/support/suite.h"

#define PAGE SKV_PAGE_TOKENS

/* ---- what a row should be -------------------------------------------------------------------- */

static double rounding(uint32_t dtype)
{
	return dtype == SKV_F32 ? 0x1p-24 : dtype == SKV_F16 ? 0x1p-11 : 0x1p-8;
}

/* The expected x of a compressed token; off[e] is the tolerance of element e. */
static void expected(const struct code_case *k, uint8_t *pool, uint32_t i, uint32_t token, double *x, double *off)
{
	const struct ref_codec *c = &k->layer[0].codec;
	uint32_t number;
	/* a device multiplies numbers rounded to bf16: see slack_of() in test-compress.c */
	const bool rounds = k->c.on->device && !ref_is_reference(c, token, &number) && c->bits;

	code_decompressed(k, pool, i, token, x, off);
	for (uint32_t e = 0; e < ref_dims(c); e++)
		off[e] = (rounds ? 0x1p-9 : 4e-6) * off[e] + rounding(c->dtype) * fabs(x[e]) + 0x1p-24;
}

/* Checks that row `slot` of a page is this token of sequence i. */
static void check_row(const struct code_case *k, uint8_t *pool, uint32_t i, uint32_t token, uint32_t coded,
                      const uint8_t *page, uint32_t slot)
{
	const struct skv_shape *sh = &k->c.sh;
	const uint32_t dim = sh->head_dim, half = sh->n_kv_heads * dim, each = (uint32_t)skv_dtype_bytes(sh->dtype);
	double *x = calloc(2 * half, sizeof *x), *off = calloc(2 * half, sizeof *off);

	if (token >= k->layer[0].codec.first && token < coded) {
		expected(k, pool, i, token, x, off);
	} else {
		for (uint32_t e = 0; e < half; e++) { /* a copy */
			x[e] = k->c.k[i][(size_t)token * half + e];
			x[half + e] = k->c.v[i][(size_t)token * half + e];
		}
	}
	for (uint32_t e = 0; e < 2 * half; e++) {
		const uint32_t h = e % half / dim;
		const size_t at = (e / half * sh->n_kv_heads + h) * PAGE * dim + slot * dim + e % dim;
		const double is = ref_load(sh->dtype, page + at * each);

		if (!(fabs(is - x[e]) <= off[e]))
			ck_abort_msg("%s: sequence %u, token %u, element %u of %u: %.9g, should be %.9g to %.3g",
			             k->c.on->name, i, token, e, 2 * half, is, x[e], off[e]);
	}
	free(x);
	free(off);
}

/* ---- decompressed ---------------------------------------------------------------------------------- */

enum { SEQS = 4, PAGES = 16, ROOM = PAGES * PAGE };
static const uint32_t lengths[SEQS] = {190, 65, 20, 161}, n_compressed[SEQS] = {160, 64, 0, 112};
static const uint32_t nothing[SEQS];

/* The requested tokens of each sequence. */
struct asked {
	bool listed;
	uint32_t ids[SEQS * ROOM], count[SEQS];
};

static void ask(struct asked *a, bool listed)
{
	a->listed = listed;
	for (uint32_t i = 0; i < SEQS; i++) {
		const uint32_t one_in = 1 + rnd_below(6);
		uint32_t n = 0;

		for (uint32_t t = 0; t < lengths[i] && (i != 1 || rnd_below(2)); t++)
			if (!listed || rnd_below(one_in) == 0 || t + 1 == lengths[i])
				a->ids[i * ROOM + n++] = t;
		a->count[i] = n;
		if (listed && n + 2 < ROOM) { /* ids that do not exist */
			a->ids[i * ROOM + n] = lengths[i];
			a->ids[i * ROOM + n + 1] = UINT32_MAX;
		}
	}
}

struct decompressed {
	struct skv_decompressed to;
	uint8_t *pool; /* a copy of to.pool */
	struct skv_kseq seq[SEQS];
};

/* Decompresses sequences [from, from + n) on `threads` threads. */
static struct decompressed run(struct code_case *k, const struct asked *a, uint32_t from, uint32_t n, int threads)
{
	const size_t bytes = SEQS * PAGES * k->c.sh.page_bytes;
	struct skv_index_list list = {.rows = 1, .stride = ROOM, .max_count = ROOM};
	struct decompressed r = {.to = {.pool = case_to(&k->c, NULL, bytes), .pages = PAGES,
	                           .seq = case_to(&k->c, NULL, SEQS * sizeof *r.to.seq),
	                           .table = case_to(&k->c, NULL, SEQS * PAGES * sizeof(skv_pte))},
	                    .pool = malloc(bytes)};
	struct skv_batch b = code_batch(k, from, n, n_compressed, nothing);
	struct skv_workspace w = case_work(&k->c, threads);
	uint32_t count[SEQS];

	for (uint32_t i = 0; i < SEQS; i++) /* some lists contain ids that do not exist */
		count[i] = a->count[i] + (i % 2 ? 2 : 0);
	list.ids = case_to(&k->c, a->ids + from * ROOM, n * ROOM * sizeof *a->ids);
	list.count = case_to(&k->c, count + from, n * sizeof *count);
	k->c.on->kern->decompress(&k->sh[0], &b, a->listed ? &list : NULL, &r.to, &w);
	case_work_done(&k->c, &w);
	case_from(&k->c, r.pool, r.to.pool, bytes);
	case_from(&k->c, r.seq, r.to.seq, n * sizeof *r.seq);
	return r;
}

/* Attention works on the rows as decompress() describes them. */
static void check_attention(struct code_case *k, const struct decompressed *r)
{
	struct skv_shape sh = k->c.sh;
	const uint32_t heads = sh.n_heads, dim = sh.head_dim, half = sh.n_kv_heads * dim;
	const struct skv_batch b = {.seq = r->to.seq, .n = SEQS, .max_len = k->c.max_len, .max_q = 1};
	float *q = case_q(&k->c, k->c.on), *got = malloc(SEQS * heads * dim * sizeof *got);
	float *rows = malloc(2 * ROOM * half * sizeof *rows);
	double *out = malloc(heads * dim * sizeof *out);
	void *there = case_rows_to(&k->c, k->c.q, (size_t)SEQS * heads * dim);
	struct skv_workspace w = case_work(&k->c, 1);
	bool visible[ROOM];

	sh.pool = r->to.pool;
	sh.codec = NULL;
	memset(visible, true, sizeof visible);
	k->c.on->kern->decode_dense(&sh, &b, there, there, NULL, &w);
	case_work_done(&k->c, &w);
	case_rows_from(&k->c, got, there, (size_t)SEQS * heads * dim);
	for (uint32_t i = 0; i < SEQS; i++) {
		const uint32_t n = r->seq[i].len;
		const uint8_t *pages = r->pool + (size_t)i * PAGES * sh.page_bytes;
		double most = 0;

		for (uint32_t e = 0; e < 2 * n * half; e++) {
			const uint32_t row = e % (n * half) / half, h = e % half / dim, which = e / (n * half);
			const size_t at = ((which * sh.n_kv_heads + h) * PAGE + row % PAGE) * dim + e % dim;

			const float x = ref_load(sh.dtype, pages + row / PAGE * sh.page_bytes + at * skv_dtype_bytes(sh.dtype));
			rows[which * ROOM * half + e % (n * half)] = x;
			most = fmax(most, fabs(x));
		}
		for (uint32_t h = 0; h < heads; h++) {
			const uint32_t kv = h / (heads / sh.n_kv_heads) * dim;

			ref_attention(q + (i * heads + h) * dim, rows + kv, rows + ROOM * half + kv, n, half, dim, case_softmax(&k->c, h),
			              visible, out + h * dim, NULL);
		}
		/*
		 * Rows decompressed from random records are larger than the rows of other tests, which hardly exceed 4.
		 */
		case_compare("out", got + i * heads * dim, out, heads * dim,
		             case_tolerance(&k->c, k->c.on, 1e-3) * fmax(1, most / 4), 1e-3);
	}
	free(q);
	free(got);
	free(rows);
	free(out);
}

static void check_decompressed(struct code_case *k, uint8_t *pool, const struct asked *a, const struct decompressed *r)
{
	const struct skv_shape *sh = &k->c.sh;
	const uint32_t row_bytes = sh->head_dim * (uint32_t)skv_dtype_bytes(sh->dtype);

	for (uint32_t i = 0; i < SEQS; i++) {
		const uint8_t *pages = r->pool + (size_t)i * PAGES * sh->page_bytes;
		const uint32_t n = a->listed ? a->count[i] : lengths[i];

		ck_assert_uint_eq(r->seq[i].len, n);
		ck_assert(r->seq[i].n_compressed == 0 && r->seq[i].n_q == 1 && r->seq[i].row == k->seq[i].row);
		for (uint32_t row = 0; row < n; row++)
			check_row(k, pool, i, a->listed ? a->ids[i * ROOM + row] : row, n_compressed[i],
			          pages + row / PAGE * sh->page_bytes, row % PAGE);
		for (size_t at = 0; at < PAGES * sh->page_bytes; at++) {
			const size_t row = at / sh->page_bytes * PAGE + at % sh->page_bytes / row_bytes % PAGE;

			if (row >= n && pages[at] != 0xff)
				ck_abort_msg("%s: sequence %u: row %zu was written, of %u", k->c.on->name, i, row, n);
		}
	}
	check_attention(k, r);
}

START_TEST(rows)
{
	static struct asked a;
	struct code_case k;

	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		code_init(&k, (_i * 7 + 1) % CODE_SHAPES, _i % CODE_FORMS, SEQS, lengths);
		if (code_on(&k, b)) {
			const size_t each = PAGES * k.c.sh.page_bytes;
			uint8_t *pool = code_pool(&k);

			for (uint32_t i = 0; i < SEQS; i++)
				code_make_up(&k, pool, i, n_compressed[i]);
			code_pool_to(&k, pool);
			for (int listed = 0; listed < 2; listed++) {
				struct decompressed all, one;

				ask(&a, listed);
				all = run(&k, &a, 0, SEQS, 1);
				check_decompressed(&k, pool, &a, &all);
				one = run(&k, &a, 3, 1, 2); /* alone */
				ck_assert_msg(!memcmp(one.pool, all.pool + 3 * each, each), "%s: company shows",
				              b->name);
				free(all.pool);
				free(one.pool);
			}
			free(pool);
			code_off(&k);
		}
		code_deinit(&k);
	}
}
END_TEST

/* Decompresses all compressed tokens in place, and writes nothing else. */
START_TEST(in_place)
{
	struct code_case k;

	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		code_init(&k, (_i * 5 + 2) % CODE_SHAPES, _i % CODE_FORMS, SEQS, lengths);
		if (code_on(&k, b)) {
			const size_t bytes = k.c.pool_pages * k.c.sh.page_bytes;
			uint8_t *pool = code_pool(&k), *now;
			struct skv_batch batch = code_batch(&k, 0, SEQS, n_compressed, nothing);
			struct skv_decompressed to = {.pool = NULL};
			struct skv_workspace w;

			for (uint32_t i = 0; i < SEQS; i++)
				code_make_up(&k, pool, i, n_compressed[i]);
			code_pool_to(&k, pool);
			w = case_work(&k.c, 2);
			b->kern->decompress(&k.sh[0], &batch, NULL, &to, &w);
			case_work_done(&k.c, &w);
			now = code_pool(&k);
			for (uint32_t i = 0; i < SEQS; i++)
				for (uint32_t p = k.layer[0].codec.first / PAGE; p < n_compressed[i] / PAGE; p++) {
					const size_t at = skv_pte_id(k.c.table[i][p]) * k.c.sh.page_bytes;

					for (uint32_t slot = 0; slot < PAGE; slot++)
						check_row(&k, pool, i, p * PAGE + slot, n_compressed[i], now + at,
						          slot);
					memcpy(now + at, pool + at, k.c.sh.page_bytes);
				}
			ck_assert_msg(!memcmp(now, pool, bytes), "%s: more was written", b->name);
			free(pool);
			free(now);
			code_off(&k);
		}
		code_deinit(&k);
	}
}
END_TEST

/* Compressed elements come back, up to rounding, if codes store them as they are. */
START_TEST(there_and_back)
{
	enum { FORM = 7, LEN = 112 };
	const uint32_t len[] = {LEN}, none[] = {0}, all[] = {LEN};
	struct code_case k;

	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		code_init(&k, _i, FORM, 1, len);
		struct ref_codec *c = &k.layer[0].codec;
		const uint32_t d = ref_dims(c);

		for (uint32_t l = 0; l < CODE_LAYERS; l++) { /* z is the first `width` elements of x */
			struct ref_codec *each = &k.layer[l].codec;

			free(each->gate);
			free(each->up);
			each->gate = each->up = NULL;
			each->hidden = 0;
			free(each->down);
			each->down = calloc(each->width * d, sizeof *each->down);
			memset(each->out, 0, d * each->width * sizeof *each->out);
			for (uint32_t e = 0; e < each->width; e++)
				each->down[e * d + e] = each->out[e * each->width + e] = 1;
		}
		if (code_on(&k, b)) {
			struct skv_batch batch = code_batch(&k, 0, 1, none, all);
			struct skv_decompressed to = {.pool = NULL};
			struct skv_workspace w = case_work(&k.c, 1);
			uint8_t *now;

			b->kern->compress(k.sh, CODE_LAYERS, &batch, NULL, &w);
			batch = code_batch(&k, 0, 1, all, none);
			b->kern->decompress(&k.sh[0], &batch, NULL, &to, &w);
			case_work_done(&k.c, &w);
			now = code_pool(&k);
			for (uint32_t t = c->first; t < LEN; t++)
				for (uint32_t e = 0; e < c->width && e < c->dim; e++) {
					const size_t page = skv_pte_id(k.c.table[0][t / PAGE]) * k.c.sh.page_bytes;
					const size_t at = (t % PAGE * c->dim + e) * skv_dtype_bytes(c->dtype);
					const double is = ref_load(c->dtype, now + page + at);
					const double was = k.c.k[0][(size_t)t * d / 2 + e];

					if (fabs(is - was) > 24 * rounding(SKV_BF16)) /* numbers are below 6 */
						ck_abort_msg("%s: token %u, element %u: %g came back as %g", b->name, t, e,
						             was, is);
				}
			free(now);
			code_off(&k);
		}
		code_deinit(&k);
	}
}
END_TEST

/* ---- far out --------------------------------------------------------------------------------- */

START_TEST(far_positions)
{
	enum { LAST = 1 << 24, N = 40 };
	static const int forms[] = {2, 4};
	const uint32_t len[] = {64};

	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		struct code_case k;

		code_init(&k, (_i * 5) % CODE_SHAPES, forms[_i % 2], 1, len);
		code_far(&k, LAST);
		if (code_on(&k, b)) {
			const uint32_t coded[] = {LAST - PAGE}, none[] = {0};
			const size_t bytes = 3 * k.c.sh.page_bytes;
			uint8_t *pool = code_pool(&k), *got = malloc(bytes);
			uint32_t ids[N], count = N;
			struct skv_decompressed to = {.pool = case_to(&k.c, NULL, bytes), .pages = 3};
			struct skv_batch batch;
			struct skv_workspace w;

			code_far_records(&k, pool, LAST);
			for (uint32_t i = 0; i < N; i++)
				ids[i] = i + 1 < N ? (uint32_t)((uint64_t)(coded[0] - 64) * (i + 1) / N) + rnd_below(64)
				                   : coded[0] - 1;
			k.seq[0].len = k.c.max_len = LAST;
			batch = code_batch(&k, 0, 1, coded, none);
			to.seq = case_to(&k.c, NULL, sizeof *to.seq);
			to.table = case_to(&k.c, NULL, 3 * sizeof *to.table);
			struct skv_index_list list = {.rows = 1, .stride = N, .max_count = N, .ids = case_to(&k.c, ids, sizeof ids),
			                        .count = case_to(&k.c, &count, sizeof count)};
			w = case_work(&k.c, 1);
			b->kern->decompress(&k.sh[0], &batch, &list, &to, &w);
			case_work_done(&k.c, &w);
			case_from(&k.c, got, to.pool, bytes);
			for (uint32_t i = 0; i < N; i++)
				check_row(&k, pool, 0, ids[i], coded[0], got + i / PAGE * k.c.sh.page_bytes, i % PAGE);
			free(pool);
			free(got);
			code_off(&k);
		}
		code_deinit(&k);
	}
}
END_TEST

int main(void)
{
	Suite *s = case_suite("test-decompress");
	TCase *t = add_case(s, "all", 120, NULL, NULL, NULL);
	int cases = rnd_hurried() ? 3 : 2 * CODE_FORMS;

	add_cases(t, rows, cases);
	add_cases(t, in_place, rnd_hurried() ? 1 : CODE_FORMS);
	add_cases(t, there_and_back, rnd_hurried() ? 1 : CODE_SHAPES);
	add_share(t, far_positions, rnd_hurried() ? 1 : 6, rnd_hurried() ? 1 : 6);
	return run_suite(s);
}
