/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/test-kernels.c - every host kernel, on every ISA of this machine, against ref-attention.c.
 *
 * The kernels run first and the reference afterwards, so that no buffer can hold the right answer by
 * accident. One thread, two and three must give the same bits, and so must a sequence alone and in a
 * batch.
 */
#include "tests/kernel-case.h"
#include "tests/ref-attention.h"
#include <check.h>
#include <math.h>
#include <string.h>

#define TOLERANCE 3e-5

static const struct {
	uint32_t heads, kv_heads, dim;
} shapes[] = {
	{1, 1, 16}, {8, 2, 64}, {12, 2, 48}, {7, 7, 80}, {32, 1, 128}, {7, 1, 96}, {8, 2, 256}, {32, 8, 128}, {3, 1, 64},
};
#define N_SHAPES ((int)(sizeof shapes / sizeof *shapes))
#define N_CASES (3 * N_SHAPES) /* times the dtypes */

static void random_case(struct kernel_case *c, int i, uint32_t n, const uint32_t *len, const uint32_t *n_q)
{
	uint32_t dtype = (uint32_t)(i / N_SHAPES);
	i %= N_SHAPES;
	case_init(c, dtype, shapes[i].heads, shapes[i].kv_heads, shapes[i].dim, n, len, n_q);
}

static bool under_valgrind(void)
{
	return getenv("SKV_VALGRIND") != NULL;
}

/* ---- append ---------------------------------------------------------------------------------- */

/* The pool holds every token's K and V, rounded as the reference rounds, and nothing else. */
static void check_pool(const struct kernel_case *c)
{
	const struct skv_shape *sh = &c->sh;
	size_t row = sh->head_dim * skv_dtype_bytes(sh->dtype), half = sh->page_bytes / 2;
	uint8_t *used = calloc(c->pool_pages, sh->page_bytes);

	for (uint32_t i = 0; i < c->n; i++)
		for (uint32_t t = 0; t < c->seq[i].len; t++)
			for (uint32_t h = 0; h < sh->n_kv_heads; h++) {
				size_t at = skv_pte_id(c->table[i][t / 16]) * sh->page_bytes + (h * 16 + t % 16) * row;
				size_t src = ((size_t)t * sh->n_kv_heads + h) * sh->head_dim;
				memset(used + at, 1, row);
				memset(used + at + half, 1, row);
				for (uint32_t d = 0; d < sh->head_dim; d++)
					for (int kv = 0; kv < 2; kv++) {
						const uint8_t *p = sh->pool + at + kv * half;
						float want = (kv ? c->v : c->k)[i][src + d], x = 0;
						if (sh->dtype == SKV_F32) {
							memcpy(&x, p + 4 * d, 4);
						} else if (sh->dtype == SKV_BF16) {
							memcpy((uint8_t *)&x + 2, p + 2 * d, 2);
						} else {
							uint16_t f;
							memcpy(&f, p + 2 * d, 2);
							int e = f >> 10 & 31, m = f & 1023;
							x = e == 31 ? (m ? NAN : INFINITY)
							    : e ? ldexpf((float)(1024 + m), e - 25)
							        : ldexpf((float)m, -24);
							x = f >> 15 ? -x : x;
						}
						if (isnan(want) ? !isnan(x) : x != want || !signbit(x) != !signbit(want))
							ck_abort_msg("%.9g is stored as %.9g, should be %.9g",
							             (kv ? c->v_in : c->k_in)[i][src + d], x, want);
					}
			}
	for (size_t b = 0; b < c->pool_pages * sh->page_bytes; b++)
		if (!used[b] && sh->pool[b] != 0xff)
			ck_abort_msg("byte %zu belongs to no token and was written", b);
	free(used);
}

START_TEST(append)
{
	const uint32_t len[] = {1, 15, 16, 17, 70}, n_q[] = {1, 1, 1, 1, 1};
	static const float special[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-40f, -3e-8f, 5.9604645e-8f, 2.9802322e-8f,
	                                2.98023224e-8f * 1.001f, 6.1035156e-5f, 6.097555e-5f, 65504, 65519.996f, 65520, 3.4e38f,
	                                1.00390625f, 1.01171875f, 1.0004883f, 1.0014648f, -2049, 1e-7f, 0x1.ffp127f};
	for (const char *const *isa = case_isas(); *isa; isa++)
		for (uint32_t step = 1; step <= 100; step += 33) {
			struct kernel_case c;
			random_case(&c, _i, 5, len, n_q);
			size_t floats = (size_t)70 * c.sh.n_kv_heads * c.sh.head_dim;
			for (size_t x = 0; x < floats; x++) {
				if (rnd_below(3))
					c.k_in[4][x] = ldexpf(rnd_normal(), (int)rnd_below(60) - 40);
				else
					c.k_in[4][x] = special[rnd_below(sizeof special / sizeof *special)];
				c.k[4][x] = ref_round(c.sh.dtype, c.k_in[4][x]);
			}
			case_append(&c, skv_kernels_host(*isa), step, step > 50 ? 2 : 1);
			check_pool(&c);
			case_deinit(&c);
		}
}
END_TEST

START_TEST(append_skips_holes_and_copies_pages)
{
	const uint32_t len[] = {50}, n_q[] = {1};
	struct kernel_case c;
	const struct skv_kernels *kern = skv_kernels_host(NULL);

	random_case(&c, _i, 1, len, n_q);
	skv_pte lost = c.table[0][1];
	c.table[0][1] = skv_pte_make(SKV_PTE_HOLE, SKV_PTE_ID_MASK);
	case_append(&c, kern, 50, 1);
	for (size_t b = 0; b < c.sh.page_bytes; b++)
		if (c.sh.pool[skv_pte_id(lost) * c.sh.page_bytes + b] != 0xff)
			ck_abort_msg("byte %zu of a page that is not there any more was written", b);

	uint32_t src[] = {skv_pte_id(c.table[0][0]), skv_pte_id(c.table[0][2])};
	uint32_t dst[] = {skv_pte_id(lost), skv_pte_id(c.table[0][3])};
	kern->copy_pages(&c.sh, dst, src, 2);
	for (int i = 0; i < 2; i++)
		ck_assert(!memcmp(c.sh.pool + dst[i] * c.sh.page_bytes, c.sh.pool + src[i] * c.sh.page_bytes,
		                  c.sh.page_bytes));
	case_deinit(&c);
}
END_TEST

/* ---- decode ---------------------------------------------------------------------------------- */

enum way { DENSE, WINDOW, PAGES, TOKENS };

/* One decode call of any kind. */
struct call {
	enum way way;
	uint32_t sinks[CASE_SEQS], start[CASE_SEQS];
	struct skv_list list;
	struct skv_evidence ev; /* rows = 0: none */
};

static void list_init(struct kernel_case *c, struct call *call, enum way way, uint32_t rows)
{
	uint32_t stride = (way == PAGES ? skv_pages_of(c->max_len) : c->max_len) + 3;
	call->way = way;
	call->list = (struct skv_list){.rows = rows, .stride = stride};
	call->list.ids = malloc((size_t)c->n * rows * stride * sizeof(uint32_t));
	call->list.count = calloc((size_t)c->n * rows, sizeof(uint32_t));
	for (uint32_t r = 0; r < c->n * rows; r++) {
		uint32_t len = c->seq[r / rows].len, one_in = 1 + rnd_below(5), *count = &call->list.count[r];
		/* now and then nothing; ids past the end do not count */
		uint32_t units = rnd_below(8) ? (way == PAGES ? skv_pages_of(len) : len + 2) : 0;
		for (uint32_t u = 0; u < units; u++)
			if (!rnd_below(one_in))
				call->list.ids[(size_t)r * stride + (*count)++] = u;
	}
}

static void list_deinit(struct call *call)
{
	free(call->list.ids);
	free(call->list.count);
}

static bool sees(const struct kernel_case *c, const struct call *call, uint32_t i, uint32_t h, uint32_t token)
{
	if (!case_resident(c, i, token))
		return false;
	if (call->way == DENSE)
		return true;
	if (call->way == WINDOW)
		return token < call->sinks[i] || token >= call->start[i];
	uint32_t r = i * call->list.rows + (call->list.rows > 1 ? h : 0);
	for (uint32_t x = 0; x < call->list.count[r]; x++)
		if (call->list.ids[(size_t)r * call->list.stride + x] == (call->way == PAGES ? token / 16 : token))
			return true;
	return false;
}

/* Sequences [from, from + n) of the case. */
static void run(const struct skv_kernels *kern, const struct kernel_case *c, const struct call *call, uint32_t from,
                uint32_t n, float *out, int threads)
{
	struct skv_work w = case_work(c, kern, threads);
	struct skv_list list = call->list;
	struct skv_evidence ev = call->ev;
	const struct skv_kseq *seq = c->seq + from;

	if (list.ids) {
		list.ids += (size_t)from * list.rows * list.stride;
		list.count += from * list.rows;
	}
	switch (call->way) {
	case DENSE:
		kern->decode_dense(&c->sh, seq, n, c->q, out, ev.rows ? &ev : NULL, &w);
		break;
	case WINDOW:
		kern->decode_window(&c->sh, seq, n, c->q, out, call->sinks + from, call->start + from, &w);
		break;
	case PAGES:
		kern->decode_pages(&c->sh, seq, n, c->q, out, &list, &w);
		break;
	case TOKENS:
		kern->decode_tokens(&c->sh, seq, n, c->q, out, &list, &w);
		break;
	}
	case_work_done(&w);
}

static void reference(const struct kernel_case *c, const struct call *call, double *out)
{
	const uint32_t dim = c->sh.head_dim, stride = c->sh.n_kv_heads * dim, group = c->sh.n_heads / c->sh.n_kv_heads;
	bool *visible = malloc(c->max_len);
	for (uint32_t i = 0; i < c->n; i++)
		for (uint32_t head = 0; head < c->sh.n_heads; head++) {
			size_t at = ((size_t)c->seq[i].row * c->sh.n_heads + head) * dim, h = head / group;
			for (uint32_t t = 0; t < c->seq[i].len && head % group == 0; t++)
				visible[t] = sees(c, call, i, (uint32_t)h, t);
			ref_attention(c->q + at, c->k[i] + h * dim, c->v[i] + h * dim, c->seq[i].len, stride, dim,
			              c->sh.scale, visible, out + at, NULL);
		}
	free(visible);
}

static void check_call(const char *what, const struct kernel_case *c, const struct call *call, double tolerance)
{
	size_t floats = (size_t)c->rows * c->sh.n_heads * c->sh.head_dim, bytes = floats * sizeof(float);
	float *out[4], *again = malloc(bytes);
	double *ref = malloc(floats * sizeof *ref);
	int n = 0;

	for (const char *const *isa = case_isas(); *isa; isa++, n++) {
		const struct skv_kernels *kern = skv_kernels_host(*isa);
		out[n] = malloc(bytes);
		memset(out[n], 0xff, bytes);
		run(kern, c, call, 0, c->n, out[n], 1);
		for (int threads = 2; threads <= 3; threads++) {
			memset(again, 0xff, bytes);
			run(kern, c, call, 0, c->n, again, threads);
			ck_assert_msg(!memcmp(again, out[n], bytes), "%s, %s: other bits on %d threads", what, *isa, threads);
		}
		memset(again, 0xff, bytes);
		for (uint32_t i = 0; i < c->n; i++)
			run(kern, c, call, i, 1, again, 1);
		ck_assert_msg(!memcmp(again, out[n], bytes), "%s, %s: other bits for a sequence alone", what, *isa);
	}
	reference(c, call, ref);
	for (int i = 0; i < n; i++) {
		char name[64];
		snprintf(name, sizeof name, "%s, %s", what, case_isas()[i]);
		case_compare(name, out[i], ref, floats, tolerance);
		free(out[i]);
	}
	free(again);
	free(ref);
}

static const uint32_t ones[CASE_SEQS] = {1, 1, 1, 1, 1, 1, 1, 1};

static void decode_case(struct kernel_case *c, int i, uint32_t one_in)
{
	uint32_t len[] = {1, 15, 16, 17, 33, 900, 40};
	rnd_state += (uint64_t)i;
	len[5] = under_valgrind() ? 530 : 513 + rnd_below(800);
	len[6] = 2 + rnd_below(200);
	random_case(c, i, 7, len, ones);
	case_append(c, skv_kernels_host(NULL), 400, 1);
	if (one_in)
		case_punch(c, one_in);
}

START_TEST(decode_dense)
{
	struct kernel_case c;
	decode_case(&c, _i, _i % 2 ? 4 : 0);
	check_call("dense", &c, &(struct call){.way = DENSE}, TOLERANCE);
	/* Scores of some hundreds: a softmax that does not subtract its maximum overflows. */
	for (size_t x = 0; x < (size_t)c.rows * c.sh.n_heads * c.sh.head_dim; x++)
		c.q[x] *= 100;
	check_call("dense, large scores", &c, &(struct call){.way = DENSE}, 2e-3);
	case_deinit(&c);
}
END_TEST

START_TEST(decode_window)
{
	struct kernel_case c;
	decode_case(&c, _i, _i % 2 ? 0 : 4);
	for (uint32_t round = 0; round < 3; round++) {
		struct call call = {.way = WINDOW};
		for (uint32_t i = 0; i < c.n; i++) {
			/* apart, touching, overlapping, in one page, past the end */
			call.sinks[i] = rnd_below(round == 1 ? 20 : c.seq[i].len + 20);
			call.start[i] = rnd_below(c.seq[i].len + (round == 2 ? 30 : 1));
		}
		check_call("window", &c, &call, TOLERANCE);
	}
	case_deinit(&c);
}
END_TEST

START_TEST(decode_lists)
{
	struct kernel_case c;
	decode_case(&c, _i, _i % 3 ? 6 : 0);
	for (int per_head = 0; per_head < 2; per_head++)
		for (enum way way = PAGES; way <= TOKENS; way++) {
			struct call call = {0};
			list_init(&c, &call, way, per_head ? c.sh.n_kv_heads : 1);
			check_call(way == PAGES ? "pages" : "tokens", &c, &call, TOLERANCE);
			list_deinit(&call);
		}
	case_deinit(&c);
}
END_TEST

START_TEST(all_pages_are_dense)
{
	struct kernel_case c;
	decode_case(&c, _i, 5);
	size_t bytes = (size_t)c.rows * c.sh.n_heads * c.sh.head_dim * sizeof(float);
	float *dense = malloc(bytes), *pages = malloc(bytes), *window = malloc(bytes);
	uint32_t stride = skv_pages_of(c.max_len), count[CASE_SEQS];
	uint32_t *ids = malloc((size_t)c.n * stride * sizeof *ids);
	for (uint32_t i = 0; i < c.n; i++) {
		count[i] = skv_pages_of(c.seq[i].len);
		for (uint32_t p = 0; p < count[i]; p++)
			ids[i * stride + p] = p;
	}
	for (const char *const *isa = case_isas(); *isa; isa++) {
		const struct skv_kernels *kern = skv_kernels_host(*isa);
		run(kern, &c, &(struct call){.way = DENSE}, 0, c.n, dense, 1);
		run(kern, &c, &(struct call){.way = PAGES, .list = {1, stride, ids, count}}, 0, c.n, pages, 1);
		run(kern, &c, &(struct call){.way = WINDOW}, 0, c.n, window, 1);
		ck_assert(!memcmp(dense, pages, bytes));
		ck_assert(!memcmp(dense, window, bytes));
	}
	free(dense);
	free(pages);
	free(window);
	free(ids);
	case_deinit(&c);
}
END_TEST

START_TEST(nothing_to_see)
{
	struct kernel_case c;
	decode_case(&c, _i, 1);
	size_t floats = (size_t)c.rows * c.sh.n_heads * c.sh.head_dim;
	float *out = malloc(floats * sizeof *out), lse[CASE_SEQS * SKV_MAX_HEADS];
	for (const char *const *isa = case_isas(); *isa; isa++) {
		struct call call = {.way = DENSE, .ev = {.rows = 1, .lse = lse}};
		memset(out, 0xff, floats * sizeof *out);
		run(skv_kernels_host(*isa), &c, &call, 0, c.n, out, 1);
		for (size_t x = 0; x < floats; x++)
			if (out[x] != 0)
				ck_abort_msg("element %zu is %g", x, out[x]);
		for (uint32_t x = 0; x < c.n * c.sh.n_heads; x++)
			ck_assert(lse[x] == -INFINITY);
		run(skv_kernels_host(*isa), &c, &(struct call){.way = DENSE}, 0, 0, out, 2);
	}
	free(out);
	case_deinit(&c);
}
END_TEST

/* NaN and infinity of a token that takes part show where they must, and nowhere else. */
START_TEST(specials_stay_where_they_are)
{
	static const float special[] = {NAN, INFINITY, -INFINITY};
	const uint32_t len[] = {600, 600, 600, 600}, dim = shapes[_i % N_SHAPES].dim;
	struct kernel_case c;
	random_case(&c, _i, 4, len, ones);
	for (uint32_t i = 0; i < 4; i++) {
		uint32_t t = rnd_below(600), h = rnd_below(c.sh.n_kv_heads), d = rnd_below(dim);
		size_t at = ((size_t)t * c.sh.n_kv_heads + h) * dim + d;
		(i % 2 ? c.k : c.v)[i][at] = (i % 2 ? c.k_in : c.v_in)[i][at] = special[rnd_below(3)];
	}
	case_append(&c, skv_kernels_host(NULL), 600, 1);
	check_call("specials", &c, &(struct call){.way = DENSE}, TOLERANCE);
	case_deinit(&c);
}
END_TEST

/* ---- evidence -------------------------------------------------------------------------------- */

static void reference_evidence(const struct kernel_case *c, const struct call *call, uint32_t i, uint32_t row, double *token,
                               double *page, double *lse)
{
	const struct skv_shape *sh = &c->sh;
	const uint32_t dim = sh->head_dim, group = sh->n_heads / sh->n_kv_heads, len = c->seq[i].len;
	const uint32_t heads = sh->n_heads / call->ev.rows;
	double *weight = malloc(len * sizeof *weight), out[SKV_MAX_HEAD_DIM];
	bool *visible = malloc(len);

	for (uint32_t t = 0; t < call->ev.token_stride; t++)
		token[t] = 0;
	for (uint32_t p = 0; p < call->ev.page_stride; p++)
		page[p] = 0;
	for (uint32_t t = 0; t < len; t++)
		visible[t] = case_resident(c, i, t);
	for (uint32_t head = row * heads; head < (row + 1) * heads; head++) {
		size_t q = ((size_t)c->seq[i].row * sh->n_heads + head) * dim, kv = head / group * dim;
		lse[head] = ref_attention(c->q + q, c->k[i] + kv, c->v[i] + kv, len, sh->n_kv_heads * dim, dim, sh->scale,
		                          visible, out, weight);
		for (uint32_t t = 0; t < len; t++)
			token[t] = call->ev.sum ? token[t] + weight[t] : fmax(token[t], weight[t]);
	}
	for (uint32_t t = 0; t < len; t++)
		page[t / 16] += token[t];
	free(weight);
	free(visible);
}

START_TEST(evidence)
{
	struct kernel_case c;
	decode_case(&c, _i, _i % 2 ? 5 : 0);
	uint32_t pages = skv_pages_of(c.max_len) + 1, tokens = pages * 16;
	size_t floats = (size_t)c.rows * c.sh.n_heads * c.sh.head_dim;
	float *plain = malloc(floats * sizeof *plain), *out = malloc(floats * sizeof *out);
	for (int variant = 0; variant < 4; variant++) {
		uint32_t rows = variant & 1 ? c.sh.n_kv_heads : 1;
		size_t nt = (size_t)c.n * rows * tokens, np = (size_t)c.n * rows * pages;
		struct call call = {.ev = {.rows = rows, .sum = variant & 2, .token_stride = tokens, .page_stride = pages}};
		float *token = calloc(nt, sizeof *token), *page = calloc(np, sizeof *page), lse[CASE_SEQS * SKV_MAX_HEADS];
		double *rt = calloc(nt, sizeof *rt), *rp = calloc(np, sizeof *rp), rl[CASE_SEQS * SKV_MAX_HEADS];

		for (const char *const *isa = case_isas(); *isa; isa++) {
			const struct skv_kernels *kern = skv_kernels_host(*isa);
			/* Any of the outputs may be left out. */
			call.ev.token = token;
			call.ev.page = variant == 1 ? NULL : page;
			call.ev.lse = variant == 2 ? NULL : lse;
			run(kern, &c, &call, 0, c.n, out, 2);
			run(kern, &c, &(struct call){.way = DENSE}, 0, c.n, plain, 1);
			ck_assert_msg(!memcmp(plain, out, floats * sizeof *out), "evidence changes the output");
			for (uint32_t i = 0; i < c.n && isa == case_isas(); i++)
				for (uint32_t r = 0; r < rows; r++)
					reference_evidence(&c, &call, i, r, rt + ((size_t)i * rows + r) * tokens,
					                   rp + ((size_t)i * rows + r) * pages, rl + i * c.sh.n_heads);
			case_compare("token weights", token, rt, nt, 2e-6 * (call.ev.sum ? c.sh.n_heads : 1));
			if (call.ev.page)
				case_compare("page weights", page, rp, np, 1e-5 * (call.ev.sum ? c.sh.n_heads : 1));
			if (call.ev.lse)
				case_compare("log-sum-exp", lse, rl, c.n * c.sh.n_heads, 1e-5);
			/* Every element is written anew. */
			for (uint32_t i = 0; i < c.n * rows; i++)
				for (uint32_t t = 0; t < skv_pages_of(c.seq[i / rows].len) * 16; t++)
					token[(size_t)i * tokens + t] = NAN;
		}
		free(token);
		free(page);
		free(rt);
		free(rp);
	}
	free(plain);
	free(out);
	case_deinit(&c);
}
END_TEST

START_TEST(dispatch)
{
	struct skv_shape sh = {.n_heads = 8, .n_kv_heads = 2, .head_dim = 64, .dtype = SKV_BF16};
	unsetenv("SPARSEKV_ISA");
	ck_assert_ptr_nonnull(skv_kernels_host(NULL));
	ck_assert_ptr_eq(skv_kernels_host(""), skv_kernels_host(NULL));
	ck_assert_str_eq(skv_kernels_host("generic")->name, "generic");
	ck_assert_ptr_null(skv_kernels_host("avx1024"));
	setenv("SPARSEKV_ISA", "generic", 1);
	ck_assert_str_eq(skv_kernels_host(NULL)->name, "generic");
	setenv("SPARSEKV_ISA", "nonsense", 1);
	ck_assert_ptr_null(skv_kernels_host(NULL));
	ck_assert_str_eq(skv_kernels_host("generic")->name, "generic");

	ck_assert_ptr_null(skv_shape_unsupported(&sh));
	sh.head_dim = 72;
	ck_assert_ptr_nonnull(skv_shape_unsupported(&sh));
	sh.head_dim = 272;
	ck_assert_ptr_nonnull(skv_shape_unsupported(&sh));
	sh.head_dim = 64;
	sh.n_kv_heads = 3;
	ck_assert_ptr_nonnull(skv_shape_unsupported(&sh));
	sh.n_kv_heads = 0;
	ck_assert_ptr_nonnull(skv_shape_unsupported(&sh));
	sh.n_kv_heads = 2;
	sh.dtype = 3;
	ck_assert_ptr_nonnull(skv_shape_unsupported(&sh));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("kernels");
	TCase *tc = tcase_create("all");
	int failed, cases = under_valgrind() ? 3 : N_CASES;

	rnd_seed("test-kernels");
	suite_add_tcase(suite, tc);
	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, append, 0, cases);
	tcase_add_loop_test(tc, append_skips_holes_and_copies_pages, 0, cases);
	tcase_add_loop_test(tc, decode_dense, 0, cases);
	tcase_add_loop_test(tc, decode_window, 0, cases);
	tcase_add_loop_test(tc, decode_lists, 0, cases);
	tcase_add_loop_test(tc, all_pages_are_dense, 0, cases);
	tcase_add_loop_test(tc, nothing_to_see, 0, cases);
	tcase_add_loop_test(tc, specials_stay_where_they_are, 0, cases);
	tcase_add_loop_test(tc, evidence, 0, cases);
	tcase_add_test(tc, dispatch);

	SRunner *runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
