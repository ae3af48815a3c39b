/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rotary position embedding. The numbers were computed with 40 digits from published code: Llama 3.1's model code, and
 * for YaRN the authors' code, which differs from the paper's formulas.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sparsekv/client.h>
#include "common/rope.h"
#include "tests/support/suite.h"

static const struct skv_rope llama3 = {
	.type = SKV_ROPE_LLAMA3, .theta = 500000, .factor = 8, .low = 1, .high = 4, .original = 8192};
static const struct skv_rope qwen = {
	.type = SKV_ROPE_YARN, .theta = 1000000, .factor = 4, .low = 1, .high = 32, .original = 32768};
static const struct skv_rope small = {
	.type = SKV_ROPE_YARN, .theta = 10000, .factor = 16, .low = 1, .high = 32, .original = 4096};

static const struct {
	const struct skv_rope *rope;
	uint32_t head_dim, i;
	double radians;
} known[] = {
	/* the transition is from 29 to 35 */
	{&llama3, 128, 0, 1},
	{&llama3, 128, 20, 0.016560440080994446},
	{&llama3, 128, 29, 0.0021665707635033587},
	{&llama3, 128, 30, 0.0013718935677611381},
	{&llama3, 128, 33, 0.0003126937503840651},
	{&llama3, 128, 34, 0.0001785078127679964},
	{&llama3, 128, 35, 9.556212353964683e-05},
	{&llama3, 128, 36, 7.78465527393245e-05},
	{&llama3, 128, 63, 3.068925988914511e-07},
	/* the transition is from 23 to 40 */
	{&qwen, 128, 0, 1},
	{&qwen, 128, 23, 0.006978305848598663},
	{&qwen, 128, 24, 0.005375321490790102},
	{&qwen, 128, 30, 0.0010643609812470017},
	{&qwen, 128, 39, 6.490394320837029e-05},
	{&qwen, 128, 40, 4.445698525097307e-05},
	{&qwen, 128, 63, 3.102344401879299e-07},
	/* the transition is from 10 to 23 */
	{&small, 64, 10, 0.05623413251903491},
	{&small, 64, 15, 0.008526843772967408},
	{&small, 64, 22, 0.00023938376673600883},
	{&small, 64, 31, 8.334508951020775e-06},
};

START_TEST(frequencies)
{
	const double got = skv_rope_frequency(known[_i].rope, known[_i].head_dim, known[_i].i);

	ck_assert_double_eq_tol(got / known[_i].radians, 1, 1e-13);
}
END_TEST

START_TEST(plain_ones)
{
	const struct skv_rope none = {.type = SKV_ROPE_NONE}, unknown = {.type = SKV_ROPE_UNKNOWN};
	const struct skv_rope plain = {.type = SKV_ROPE_DEFAULT, .theta = 10000};
	const struct skv_rope part = {.type = SKV_ROPE_DEFAULT, .theta = 10000, .dims = 32};
	const struct skv_rope linear = {.type = SKV_ROPE_LINEAR, .theta = 10000, .factor = 4};

	ck_assert_double_eq_tol(skv_rope_frequency(&plain, 64, 16), 0.01, 1e-15);
	ck_assert_double_eq_tol(skv_rope_frequency(&part, 64, 8), 0.01, 1e-15);
	ck_assert_double_eq_tol(skv_rope_frequency(&linear, 64, 16), 0.0025, 1e-15);
	ck_assert_double_eq(skv_rope_frequency(&none, 64, 0), 0);
	ck_assert_double_eq(skv_rope_frequency(&unknown, 64, 0), 0);
	ck_assert_double_eq(skv_rope_scale(&plain), 1);
	ck_assert_double_eq(skv_rope_scale(&llama3), 1);
}
END_TEST

START_TEST(scale_of_yarn)
{
	struct skv_rope r = qwen;

	ck_assert_double_eq_tol(skv_rope_scale(&r), 1.138629436111989, 1e-14);
	r.attention = 0.75;
	ck_assert_double_eq(skv_rope_scale(&r), 0.75);
	r = (struct skv_rope){.type = SKV_ROPE_YARN, .factor = 0.5};
	ck_assert_double_eq(skv_rope_scale(&r), 1);
}
END_TEST

static const struct {
	struct skv_rope rope;
	const char *word; /* in the refusal; NULL: accepted */
} described[] = {
	{{.type = SKV_ROPE_UNKNOWN, .theta = -1}, NULL},
	{{.type = SKV_ROPE_NONE}, NULL},
	{{.type = SKV_ROPE_DEFAULT, .theta = 10000, .dims = 64, .interleaved = 1}, NULL},
	{{.type = SKV_ROPE_LLAMA3, .theta = 5e5, .factor = 8, .low = 1, .high = 4, .original = 8192}, NULL},
	{{.type = 6, .theta = 10000}, "rope.type"},
	{{.type = SKV_ROPE_DEFAULT, .theta = 10000, .dims = 66}, "rope.dims"},
	{{.type = SKV_ROPE_DEFAULT, .theta = 10000, .dims = 31}, "rope.dims"},
	{{.type = SKV_ROPE_DEFAULT, .theta = 10000, .interleaved = 2}, "rope.interleaved"},
	{{.type = SKV_ROPE_DEFAULT, .theta = 10000, .reserved = 1}, "rope.interleaved"},
	{{.type = SKV_ROPE_DEFAULT, .theta = 1}, "rope.theta"},
	{{.type = SKV_ROPE_DEFAULT, .theta = NAN}, "rope.theta"},
	{{.type = SKV_ROPE_LINEAR, .theta = 10000}, "rope.factor"},
	{{.type = SKV_ROPE_LLAMA3, .theta = 5e5, .factor = 8, .low = 4, .high = 4, .original = 8192}, "rope.high"},
	{{.type = SKV_ROPE_YARN, .theta = 5e5, .factor = 8, .low = 1, .high = 32}, "rope.original"},
	{{.type = SKV_ROPE_YARN, .theta = 5e5, .factor = 8, .high = 32, .original = 8192}, "rope.low"},
	{{.type = SKV_ROPE_YARN, .theta = 5e5, .factor = 8, .low = 1, .high = INFINITY, .original = 8192}, "rope.high"},
	{{.type = SKV_ROPE_DEFAULT, .theta = 5e5, .attention = -1}, "rope.attention"},
};

START_TEST(descriptions)
{
	const char *wrong = skv_rope_check(&described[_i].rope, 64);

	if (!described[_i].word) {
		ck_assert_msg(!wrong, "%s", wrong);
		return;
	}
	ck_assert_ptr_nonnull(wrong);
	ck_assert_msg(strstr(wrong, described[_i].word), "%s: expected %s", wrong, described[_i].word);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-rope");
	TCase *t = add_case(s, "all", 60, NULL, NULL, plain_ones, scale_of_yarn, NULL);

	tcase_add_loop_test(t, frequencies, 0, sizeof(known) / sizeof(*known));
	tcase_add_loop_test(t, descriptions, 0, sizeof(described) / sizeof(*described));
	return run_suite(s);
}
