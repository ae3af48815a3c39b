/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/unit/kernels/test-compress-decode.c - attention to listed tokens of a layer that compresses, without
 * decompressed rows in memory, against double precision, on every backend of this machine that supports it. Records are
 * random; pages of compressed tokens hold NaNs.
 */
#include <check.h>
#include <math.h>
#include <string.h>
#include "tests/support/latent-case.h"
#include "tests/ref/attention.h"
#include "tests/support/suite.h"

#define PAGE SKV_PAGE_TOKENS

enum { SEQS = 4, LONG = 2500, ROOM = LONG + 2 };
static const uint32_t nothing[SEQS];

/* The listed tokens of each sequence, in list order. */
struct asked {
	uint32_t ids[SEQS * ROOM], count[SEQS];
};

/* ---- lists ----------------------------------------------------------------------------------- */

static void ask(struct asked *a, uint32_t i, uint32_t token)
{
	a->ids[i * ROOM + a->count[i]++] = token;
}

/* Lists about one token in `one_in`; if `rest` is below the stride, only tokens with this remainder. */
static void ask_some(struct asked *a, const struct code_case *k, uint32_t one_in, uint32_t rest)
{
	const struct ref_codec *c = &k->layer[0].codec;

	memset(a->count, 0, sizeof a->count);
	for (uint32_t i = 0; i < k->c.n; i++) {
		for (uint32_t t = 0; t < k->c.seq[i].len; t++)
			if (rnd_below(one_in) == 0 && (rest >= c->stride || (t >= c->first && (t - c->first) % c->stride == rest)))
				ask(a, i, t);
		for (uint32_t x = 0; x < i % 3 && a->count[i] < ROOM; x++) /* ids that do not exist */
			ask(a, i, x ? UINT32_MAX : k->c.seq[i].len);
	}
}

static struct skv_index_list list_to(struct code_case *k, const struct asked *a, uint32_t from, uint32_t n)
{
	struct skv_index_list list = {.rows = 1, .stride = ROOM, .max_count = 1};

	for (uint32_t i = from; i < from + n; i++)
		list.max_count = a->count[i] > list.max_count ? a->count[i] : list.max_count;
	list.max_count += rnd_below(3) * 60;
	list.max_count = list.max_count < ROOM ? list.max_count : ROOM;
	list.ids = case_to(&k->c, a->ids + from * ROOM, n * ROOM * sizeof *a->ids);
	list.count = case_to(&k->c, a->count + from, n * sizeof *a->count);
	return list;
}

/* ---- what should come of it ------------------------------------------------------------------ */

/*
 * Makes the rows of K and V of the listed tokens that exist, [half][kv head][dim] each. Returns the largest magnitude
 * of an element.
 */
static double rows_of(const struct code_case *k, uint8_t *pool, const struct asked *a, uint32_t i, uint32_t coded,
                      float *rows, uint32_t *ret_n)
{
	const uint32_t d = ref_dims(&k->layer[0].codec), half = d / 2;
	double *x = malloc(d * sizeof *x), *terms = malloc(d * sizeof *terms), most = 0;
	uint32_t n = 0;

	for (uint32_t u = 0; u < a->count[i]; u++) {
		const uint32_t t = a->ids[i * ROOM + u];
		if (t >= k->c.seq[i].len)
			continue;
		if (t >= k->layer[0].codec.first && t < coded)
			code_decompressed(k, pool, i, t, x, terms);
		for (uint32_t e = 0; e < d && (t < k->layer[0].codec.first || t >= coded); e++)
			x[e] = (e < half ? k->c.k : k->c.v)[i][(size_t)t * half + e % half];
		for (uint32_t e = 0; e < d; e++) {
			rows[(size_t)n * d + e] = (float)x[e];
			most = fmax(most, fabs(x[e]));
		}
		n++;
	}
	*ret_n = n;
	free(x);
	free(terms);
	return most;
}

/* A device multiplies numbers rounded to bf16, whatever the pool's dtype, and elements may be larger than 4. */
static double tolerance(const struct code_case *k, double most)
{
	const double rounding = k->c.on->device ? 4 * 0x1p-8 * (k->c.on->io_dtype == SKV_F32 ? 1 : 2) : 0;

	return 2 * (1e-3 + rounding) * fmax(1, most / 4);
}

static void check_outputs(const struct code_case *k, uint8_t *pool, const struct asked *a, const uint32_t *coded,
                          const float *got)
{
	const struct skv_shape *sh = &k->c.sh;
	const uint32_t dim = sh->head_dim, d = ref_dims(&k->layer[0].codec), group = sh->n_heads / sh->n_kv_heads;
	const uint32_t each = sh->n_heads * dim;
	float *rows = malloc((size_t)ROOM * d * sizeof *rows), *q = case_q(&k->c, k->c.on);
	double *out = malloc(each * sizeof *out);
	bool visible[ROOM];
	char what[64];

	memset(visible, true, sizeof visible);
	for (uint32_t i = 0; i < k->c.n; i++) {
		uint32_t n;
		const double most = rows_of(k, pool, a, i, coded[i], rows, &n);

		for (uint32_t h = 0; h < sh->n_heads; h++)
			ref_attention(q + i * each + h * dim, rows + h / group * dim, rows + d / 2 + h / group * dim, n, d, dim,
			              case_softmax(&k->c, h), visible, out + h * dim, NULL);
		snprintf(what, sizeof what, "%s: out of sequence %u, %u tokens", k->c.on->name, i, n);
		case_compare(what, got + i * each, out, each, tolerance(k, most), 1e-3);
	}
	free(rows);
	free(q);
	free(out);
}

/* ---- on a backend ---------------------------------------------------------------------------- */

/* Puts the case on a backend, with random records of the first coded[i] tokens; false if it does not take the case. */
static bool begin(struct code_case *k, const struct test_backend *b, const uint32_t *coded, uint8_t **ret_pool)
{
	if (!code_on(k, b))
		return false;
	if (!b->kern->fuses_latent(&k->sh[0])) {
		code_off(k);
		return false;
	}
	*ret_pool = code_pool(k);
	for (uint32_t i = 0; i < k->c.n; i++)
		code_make_up(k, *ret_pool, i, coded[i]);
	code_pool_to(k, *ret_pool);
	return true;
}

/* Runs sequences [from, from + n) with out = q; returns the output rows, which the caller frees. */
static float *run(struct code_case *k, const struct asked *a, const uint32_t *coded, uint32_t from, uint32_t n)
{
	const size_t elements = (size_t)k->c.rows * k->c.sh.n_heads * k->c.sh.head_dim;
	const struct skv_batch batch = code_batch(k, from, n, coded, nothing);
	const struct skv_index_list list = list_to(k, a, from, n);
	struct skv_workspace w = case_work(&k->c, 1);
	void *rows = case_rows_to(&k->c, k->c.q, elements);
	float *got = malloc(elements * sizeof *got);

	k->c.on->kern->decode_latent(&k->sh[0], &batch, rows, rows, &list, &w);
	case_work_done(&k->c, &w);
	case_rows_from(&k->c, got, rows, elements);
	return got;
}

/* A sequence alone gives the same bits as in a batch. */
static void check_alone(struct code_case *k, const struct asked *a, const uint32_t *coded, const float *all)
{
	const uint32_t each = k->c.sh.n_heads * k->c.sh.head_dim;

	for (uint32_t i = 0; i < k->c.n; i++) {
		float *one = run(k, a, coded, i, 1);
		ck_assert_msg(!memcmp(one + i * each, all + i * each, each * sizeof *one), "%s: company shows in sequence %u",
		              k->c.on->name, i);
		free(one);
	}
}

/* Checks the counters of attended tokens, for each q head; each sequence has run twice. */
static void check_attended(const struct code_case *k, const struct asked *a)
{
	uint64_t counted[CASE_SEQS];

	case_from(&k->c, counted, k->c.attended, k->c.n * sizeof *counted);
	for (uint32_t i = 0; i < k->c.n; i++) {
		uint64_t n = 0;

		for (uint32_t u = 0; u < a->count[i]; u++)
			n += a->ids[i * ROOM + u] < k->c.seq[i].len;
		if (case_has_counter(i))
			ck_assert_uint_eq(counted[i], case_attended_before(i) + 2 * n * k->c.sh.n_heads);
	}
}

static void check(struct code_case *k, uint8_t *pool, const struct asked *a, const uint32_t *coded)
{
	float *got = run(k, a, coded, 0, k->c.n);

	check_outputs(k, pool, a, coded, got);
	check_alone(k, a, coded, got);
	check_attended(k, a);
	free(got);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static const uint32_t lengths[SEQS] = {370, 65, 20, 161}, packed[SEQS] = {304, 64, 0, 112};

/* The body of a test: gets a case on a backend, and lists to fill; `i` is the test's loop index. */
typedef void body(struct code_case *, uint8_t *pool, struct asked *, int i);

/*
 * Runs `with` on every backend that has the kernel, with random records. If `last` is not 0, sequence 0 may grow to
 * that length.
 */
static void on_backends(int i, int shape, int form, uint32_t n, const uint32_t *len, const uint32_t *coded,
                        uint32_t last, body *with)
{
	static struct asked a;

	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		struct code_case k;
		uint8_t *pool;

		if (!b->kern->fuses_latent)
			continue;
		code_init(&k, shape, form, n, len);
		if (last)
			code_far(&k, last);
		if (begin(&k, b, coded, &pool)) {
			with(&k, pool, &a, i);
			free(pool);
			code_off(&k);
		}
		code_deinit(&k);
	}
}

static void any_tokens(struct code_case *k, uint8_t *pool, struct asked *a, int i)
{
	(void)i;
	ask_some(a, k, 1 + rnd_below(4), UINT32_MAX);
	check(k, pool, a, packed);
}

/* Lists with tokens of all kinds, in all forms of compression. */
START_TEST(outputs)
{
	const int shape = _i % 3 * (CODE_SHAPES / 3) + (_i / 3 % 2 ? 4 : 0);

	on_backends(_i, shape, _i / 6, SEQS, lengths, packed, 0, any_tokens);
}
END_TEST

static void of_a_kind(struct code_case *k, uint8_t *pool, struct asked *a, int n)
{
	ask_some(a, k, 1, n < 20 ? (uint32_t)n / 10 : UINT32_MAX); /* references, codes, or any */
	for (uint32_t i = 0; i < SEQS && n >= 20; i++)
		a->count[i] = i < a->count[i] ? i : a->count[i];
	check(k, pool, a, packed);
}

/* Lists of one kind of tokens, and lists of 0 to 3 tokens. */
START_TEST(kinds)
{
	static const uint32_t forms[] = {0, 1, 3, 4, 8};

	on_backends(_i, _i % 2 ? 6 : 16, forms[_i % 5], SEQS, lengths, packed, 0, of_a_kind);
}
END_TEST

static const uint32_t long_coded[] = {LONG / 32 * 32 - 112, 1392};

static void many_tokens(struct code_case *k, uint8_t *pool, struct asked *a, int i)
{
	ask_some(a, k, 1 + i / 2, UINT32_MAX);
	check(k, pool, a, long_coded);
}

/* Many chunks of several tiles each, and more tiles than the maximum number of chunks covers. */
START_TEST(long_lists)
{
	static const uint32_t len[] = {LONG, 1500};

	on_backends(_i, _i % 2 ? 6 : 16, 1, 2, len, long_coded, 0, many_tokens);
}
END_TEST

static void against_decompressed(struct code_case *k, uint8_t *pool, struct asked *a, int i)
{
	const size_t elements = (size_t)k->c.rows * k->c.sh.n_heads * k->c.sh.head_dim;
	const uint32_t pages = skv_pages_of(ROOM);
	struct skv_decompressed to = {.pool = case_to(&k->c, NULL, SEQS * pages * k->c.sh.page_bytes), .pages = pages,
	                              .seq = case_to(&k->c, NULL, SEQS * sizeof *to.seq),
	                              .table = case_to(&k->c, NULL, SEQS * pages * sizeof(skv_pte))};
	struct skv_batch batch = code_batch(k, 0, SEQS, packed, nothing);
	struct skv_workspace w = case_work(&k->c, 1);
	void *rows = case_rows_to(&k->c, k->c.q, elements);
	float *is = malloc(elements * sizeof *is), *got;
	double *was = malloc(elements * sizeof *was);
	struct skv_shape over = k->c.sh;

	(void)pool;
	(void)i;
	ask_some(a, k, 2, UINT32_MAX);
	const struct skv_index_list list = list_to(k, a, 0, SEQS);
	k->c.on->kern->decompress(&k->sh[0], &batch, &list, &to, &w);
	over.pool = to.pool;
	over.codec = NULL;
	batch.seq = to.seq;
	k->c.on->kern->decode_dense(&over, &batch, rows, rows, NULL, &w);
	case_work_done(&k->c, &w);
	case_rows_from(&k->c, is, rows, elements);
	for (size_t e = 0; e < elements; e++)
		was[e] = is[e];
	got = run(k, a, packed, 0, SEQS);
	case_compare("decompressed", got, was, elements, tolerance(k, 8), 1e-3);
	free(is);
	free(was);
	free(got);
}

/* The result equals attention over the rows of decompress(), up to rounding. */
START_TEST(as_decompressed)
{
	on_backends(_i, _i % 2 ? 6 : 16, _i / 2, SEQS, lengths, packed, 0, against_decompressed);
}
END_TEST

/* Runs n ranks, each with its kv heads, and collects their outputs in `got`, [rows][heads of all ranks][dim]. */
static void run_ranks(struct code_case *k, const struct skv_batch *batch, const struct skv_index_list *list, uint32_t n, float *got)
{
	const struct skv_shape all = k->sh[0];
	const uint32_t own = all.n_heads / n * all.head_dim;

	for (uint32_t r = 0; r < n; r++) {
		struct skv_codec codec = *all.codec;
		struct skv_shape sh = all;
		struct skv_workspace w = case_work(&k->c, 1);
		const size_t elements = (size_t)k->c.rows * own;
		float *q = malloc(elements * sizeof *q);
		void *rows;

		codec.rank = r;
		codec.n_ranks = n;
		sh.codec = &codec;
		sh.n_heads /= n;
		sh.n_kv_heads /= n;
		if (sh.sinks)
			sh.sinks += r * sh.n_heads;
		for (size_t e = 0; e < elements; e++)
			q[e] = k->c.q[(e / own * n + r) * own + e % own];
		rows = case_rows_to(&k->c, q, elements);
		k->c.on->kern->decode_latent(&sh, batch, rows, rows, list, &w);
		case_work_done(&k->c, &w);
		case_rows_from(&k->c, q, rows, elements);
		for (size_t e = 0; e < elements; e++)
			got[(e / own * n + r) * own + e % own] = q[e];
		free(q);
	}
}

static void as_ranks(struct code_case *k, uint8_t *pool, struct asked *a, int i)
{
	const size_t elements = (size_t)k->c.rows * k->c.sh.n_heads * k->c.sh.head_dim;
	struct skv_batch batch = code_batch(k, 0, SEQS, packed, nothing);
	float *all, *got = malloc(elements * sizeof *got);

	(void)pool;
	memset(a->count, 0, sizeof a->count);
	/* a rank's pages of rows have the layout of its own heads, those of the case that of all heads */
	for (uint32_t s = 0; s < SEQS; s++)
		for (uint32_t t = k->layer[0].codec.first; t < packed[s]; t++)
			if (rnd_below(2))
				ask(a, s, t);
	const struct skv_index_list list = list_to(k, a, 0, SEQS);
	all = run(k, a, packed, 0, SEQS);
	run_ranks(k, &batch, &list, i % 2 ? 2 : 4, got);
	for (uint32_t s = 0; s < SEQS; s++) {
		const size_t each = elements / k->c.rows;

		ck_assert_msg(!memcmp(got + s * each, all + s * each, each * sizeof *got), "%s: sequence %u differs", k->c.on->name, s);
	}
	free(all);
	free(got);
}

/* Ranks give the same bits as one rank with all heads. */
START_TEST(ranks)
{
	on_backends(_i, (_i % 2 ? 4 : 0) + _i / 2 % 3 * (CODE_SHAPES / 3), _i / 2, SEQS, lengths, packed, 0, as_ranks);
}
END_TEST

enum { LAST = 1 << 24 };

static void far_tokens(struct code_case *k, uint8_t *pool, struct asked *a, int n)
{
	enum { N = 90 };
	static const uint32_t coded[] = {LAST - PAGE};

	(void)n;
	code_far_records(k, pool, LAST);
	a->count[0] = 0;
	for (uint32_t i = 0; i < N; i++)
		ask(a, 0, (uint32_t)((uint64_t)(coded[0] - 64) * (i + 1) / N) + rnd_below(64));
	k->seq[0].len = k->c.seq[0].len = k->c.max_len = LAST;
	check(k, pool, a, coded);
}

START_TEST(far_positions)
{
	static const uint32_t len[] = {64};

	on_backends(_i, _i % 2 ? 6 : 16, _i / 2, 1, len, nothing, LAST, far_tokens);
}
END_TEST

int main(void)
{
	Suite *s = case_suite("test-compress-decode");
	TCase *t = add_case(s, "all", 120, NULL, NULL, NULL);

	add_cases(t, outputs, rnd_hurried() ? 6 : 6 * CODE_FORMS);
	add_cases(t, kinds, rnd_hurried() ? 5 : 30);
	add_cases(t, long_lists, rnd_hurried() ? 1 : 4);
	add_cases(t, as_decompressed, rnd_hurried() ? 2 : 2 * CODE_FORMS);
	add_cases(t, ranks, rnd_hurried() ? 4 : 2 * CODE_FORMS);
	add_cases(t, far_positions, rnd_hurried() ? 2 : 4);
	return run_suite(s);
}
