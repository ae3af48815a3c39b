/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/unit/kernels/test-append.c - the bytes that the kernels write into pages, on every backend of this machine; the
 * choice of host kernels; and files that are no device module.
 */
#include "config.h"
#include "tests/support/kernel-case.h"
#include "tests/ref/attention.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <string.h>

/* Checks one stored number of a row with this unit. */
static void check_number(const struct kernel_case *c, const uint8_t *p, float unit, float in, float want)
{
	float x = ref_load(c->sh.dtype, p) * unit;
	if (isnan(want) ? !isnan(x) : x != want || !signbit(x) != !signbit(want))
		ck_abort_msg("%s: %.9g is stored as %.9g, should be %.9g", c->on->name, in, x, want);
}

/* The pool holds every token's K and V, rounded as the reference rounds, and nothing else. */
static void check_pool(const struct kernel_case *c)
{
	const struct skv_shape *sh = &c->sh;
	size_t each = skv_dtype_bytes(sh->dtype), row = sh->head_dim * each, rows = 16 * sh->n_kv_heads, half = rows * row;
	size_t bytes = c->pool_pages * sh->page_bytes;
	uint8_t *used = calloc(c->pool_pages, sh->page_bytes), *pool = malloc(bytes);

	case_from(c, pool, sh->pool, bytes);
	for (uint32_t i = 0; i < c->n; i++)
		for (uint32_t x = 0; x < c->seq[i].len * sh->n_kv_heads; x++) {
			uint32_t t = x / sh->n_kv_heads, h = x % sh->n_kv_heads;
			size_t page = skv_pte_id(c->table[i][t / 16]) * sh->page_bytes;
			uint32_t nth = h * 16 + t % 16;
			size_t at = page + nth * row, scale = page + 2 * half + nth;
			size_t src = (size_t)x * sh->head_dim;
			float k_unit = ref_unit_in_page(sh->dtype, pool + page, sh->n_kv_heads, sh->head_dim, nth);
			float v_unit = ref_unit_in_page(sh->dtype, pool + page, sh->n_kv_heads, sh->head_dim, (uint32_t)rows + nth);
			if (sh->dtype == SKV_FP8)
				used[scale] = used[scale + rows] = 1;
			memset(used + at, 1, row);
			memset(used + at + half, 1, row);
			for (uint32_t d = 0; d < sh->head_dim; d++) {
				check_number(c, pool + at + d * each, k_unit, c->k_in[i][src + d], c->k[i][src + d]);
				check_number(c, pool + at + half + d * each, v_unit, c->v_in[i][src + d], c->v[i][src + d]);
			}
		}
	for (size_t b = 0; b < bytes; b++)
		if (!used[b] && pool[b] != 0xff)
			ck_abort_msg("%s: byte %zu belongs to no token and was written", c->on->name, b);
	free(used);
	free(pool);
}

/* Makes a row with numbers close to rounding boundaries; about half of the rows have no very large ones. */
static void special_row(float *row, uint32_t dim)
{
	static const float special[] = {
		INFINITY, -INFINITY, NAN, 3.4e38f, 0x1.ffp127f, 0x1p120f, 0.0f, -0.0f, 1e-40f, -3e-8f, 5.9604645e-8f, 2.9802322e-8f,
		2.98023224e-8f * 1.001f, 6.1035156e-5f, 6.097555e-5f, 65504, 65519.996f, 65520,
		1.00390625f, 1.01171875f, 1.0004883f, 1.0014648f, -2049, 1e-7f, 0x1p-7f, 0x1.8p-16f, 1.0625f, 1.1875f, 0x1.cp8f, 465,
	};
	const uint32_t least = rnd_below(2) * 6, n = sizeof special / sizeof *special;

	for (uint32_t d = 0; d < dim; d++)
		row[d] = rnd_below(3) ? ldexpf(rnd_normal(), (int)rnd_below(60) - 40) : special[least + rnd_below(n - least)];
}

START_TEST(append)
{
	const uint32_t len[] = {1, 15, 16, 17, 70}, n_q[] = {1, 1, 1, 1, 1};
	for (const struct test_backend *b = case_backends(); b->kern; b++)
		for (uint32_t step = 1; step <= 100; step += 33) {
			struct kernel_case c;
			case_of_shape(&c, _i, 5, len, n_q);
			size_t floats = (size_t)70 * c.sh.n_kv_heads * c.sh.head_dim;
			for (size_t x = 0; x < floats; x += c.sh.head_dim)
				special_row(c.k_in[4] + x, c.sh.head_dim);
			memcpy(c.k[4], c.k_in[4], floats * sizeof(float));
			for (size_t x = 0; x < floats; x += c.sh.head_dim)
				ref_round_row(c.sh.dtype, c.k[4] + x, c.sh.head_dim);
			if (case_on(&c, b)) {
				case_append(&c, step, step > 50 ? 2 : 1);
				check_pool(&c);
				case_off(&c);
			}
			case_deinit(&c);
		}
}
END_TEST

/* Checks that the page equals `src` byte for byte, or is all 0xff if src is NULL. */
static void check_page(const struct kernel_case *c, uint32_t page, const uint8_t *src)
{
	uint8_t *now = malloc(c->sh.page_bytes);
	case_from(c, now, c->sh.pool + page * c->sh.page_bytes, c->sh.page_bytes);
	for (size_t x = 0; x < c->sh.page_bytes; x++)
		if (now[x] != (src ? src[x] : 0xff))
			ck_abort_msg("%s: byte %zu of page %u is wrong", c->on->name, x, page);
	free(now);
}

START_TEST(append_skips_holes_and_copies_pages)
{
	const uint32_t len[] = {50}, n_q[] = {1};
	struct kernel_case c;

	case_of_shape(&c, _i, 1, len, n_q);
	uint32_t lost = skv_pte_id(c.table[0][1]);
	uint32_t src[] = {skv_pte_id(c.table[0][0]), skv_pte_id(c.table[0][2])};
	uint32_t dst[] = {lost, skv_pte_id(c.table[0][3])};
	uint8_t *was[] = {malloc(c.sh.page_bytes), malloc(c.sh.page_bytes)};
	c.table[0][1] = skv_pte_make(SKV_PTE_HOLE, SKV_PTE_ID_MASK);
	for (const struct test_backend *b = case_backends(); b->kern; b++) {
		if (!case_load(&c, b))
			continue;
		check_page(&c, lost, NULL);
		for (int i = 0; i < 2; i++)
			case_from(&c, was[i], c.sh.pool + src[i] * c.sh.page_bytes, c.sh.page_bytes);
		struct skv_workspace w = case_work(&c, 1);
		b->kern->copy_pages(&c.sh, dst, src, 2, &w);
		case_work_done(&c, &w);
		for (int i = 0; i < 2; i++)
			check_page(&c, dst[i], was[i]);
		case_off(&c);
	}
	free(was[0]);
	free(was[1]);
	case_deinit(&c);
}
END_TEST

/* ---- the host's kernels ---------------------------------------------------------------------- */

START_TEST(dispatch)
{
	unsetenv("SPARSEKV_ISA");
	ck_assert_ptr_nonnull(skv_kernels_host(NULL));
	ck_assert_ptr_eq(skv_kernels_host(""), skv_kernels_host(NULL));
	ck_assert_str_eq(skv_kernels_host(SKV_FIRST_ISA)->name, SKV_FIRST_ISA);
	ck_assert_ptr_null(skv_kernels_host("avx1024"));
	setenv("SPARSEKV_ISA", SKV_FIRST_ISA, 1);
	ck_assert_str_eq(skv_kernels_host(NULL)->name, SKV_FIRST_ISA);
	setenv("SPARSEKV_ISA", "nonsense", 1);
	ck_assert_ptr_null(skv_kernels_host(NULL));
	ck_assert_str_eq(skv_kernels_host(SKV_FIRST_ISA)->name, SKV_FIRST_ISA);
	unsetenv("SPARSEKV_ISA");
}
END_TEST

/* Rows of every dtype and stride are converted to fp32 rows and back, and nothing is written between rows. */
START_TEST(rows_of_other_kinds)
{
	const uint32_t n = 1 + rnd_below(100), width = 16 * (1 + rnd_below(20)), stride = width + rnd_below(3) * 5;

	for (const struct test_backend *b = case_backends(); b->kern; b++)
		for (uint32_t dtype = SKV_F32; b->kern->load_rows && dtype <= SKV_BF16; dtype++) {
			const struct skv_workspace work = {.threads = 2};
			const size_t bytes = skv_dtype_bytes(dtype);
			uint8_t *rows = malloc(n * stride * bytes), *back = malloc(n * stride * bytes);
			float *plain = malloc(n * width * sizeof *plain);

			memset(rows, 0xa5, n * stride * bytes);
			memset(back, 0xa5, n * stride * bytes);
			for (uint32_t x = 0; x < n * width; x++)
				ref_store(dtype, rows + (x / width * stride + x % width) * bytes, (float)(rnd_unit() - 0.5));
			b->kern->load_rows(dtype, n, width, stride, rows, plain, &work);
			for (uint32_t x = 0; x < n * width; x++)
				if (plain[x] != ref_load(dtype, rows + (x / width * stride + x % width) * bytes))
					ck_abort_msg("%s, dtype %u: element %u is %g", b->name, dtype, x, (double)plain[x]);
			for (uint32_t x = 0; x < n * width; x++) {
				plain[x] = (float)(1e-3 * (rnd_unit() - 0.5));
				ref_store(dtype, rows + (x / width * stride + x % width) * bytes, plain[x]);
			}
			b->kern->store_rows(dtype, n, width, stride, plain, back, &work);
			ck_assert_msg(!memcmp(rows, back, n * stride * bytes), "%s, dtype %u: rows differ", b->name, dtype);
			free(rows);
			free(back);
			free(plain);
		}
}
END_TEST

/* Every fault of a shape is found, and a good shape is accepted. */
START_TEST(unsupported)
{
	static const struct skv_shape good = {.n_heads = 8, .n_kv_heads = 2, .head_dim = 64,
	                                      .dtype = SKV_BF16};
	const struct skv_kernels *kern = skv_kernels_host(NULL);
	struct skv_shape bad[] = {good, good, good, good, good, good, good};

	ck_assert_ptr_null(kern->unsupported(&good));
	bad[0].head_dim = 72;
	bad[1].head_dim = 272;
	bad[2].n_kv_heads = 3;
	bad[3].n_kv_heads = 0;
	bad[4].dtype = 4;
	bad[5].io_dtype = SKV_BF16;
	bad[6].k_stride = 2 * 64;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		ck_assert_msg(kern->unsupported(&bad[i]), "shape %zu", i);
	ck_assert_ptr_nonnull(strstr(kern->unsupported(&bad[5]), "fp32 on host memory"));
}
END_TEST

/*
 * A module file that does not exist, is something else, or has another version gives no backend and a text that says
 * so.
 */
START_TEST(modules_that_are_none)
{
	static const struct {
		const char *name, *why;
	} modules[] = {
		{"kernels/nothing.so", "No such file"},
		{"policies/.libs/full.so", "has no skv_cuda_backend"},
		{"tests/support/plugins/.libs/old-backend.so", " of 8 bytes, expected "},
	};
	const char *moved = getenv("SKV_BUILDDIR");
	char path[512], why[512];
	void *stream;

	if (case_device(&stream)) /* a loaded backend stays, so loading cannot be tested */
		return;
	snprintf(path, sizeof path, "%s/%s", moved ? moved : SKV_BUILDDIR, modules[_i].name);
	setenv("SPARSEKV_CUDA_MODULE", path, 1);
	ck_assert_ptr_null(skv_backend_cuda(why, sizeof why));
	ck_assert_msg(strstr(why, path) && strstr(why, modules[_i].why), "%s", why);
}
END_TEST

int main(void)
{
	Suite *s = case_suite("test-append");
	TCase *t = add_case(s, "all", 60, NULL, NULL, dispatch, rows_of_other_kinds, unsupported, NULL);
	int cases = rnd_hurried() ? 3 : CASE_SHAPES;

	add_cases(t, append, cases);
	add_cases(t, append_skips_holes_and_copies_pages, cases);
	add_cases(t, modules_that_are_none, 3);
	return run_suite(s);
}
