/* SPDX-License-Identifier: Apache-2.0 */
/* Compares sets of numbers with arrays of bytes. */
#include <check.h>
#include <stdlib.h>
#include "daemon/core/state/bitset.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

static void compare(const struct skv_bitset *b, const uint8_t *in, uint32_t n, uint32_t from)
{
	uint32_t next = from, last = n;

	while (next < n && !in[next])
		next++;
	while (last > 0 && !in[last - 1])
		last--;
	ck_assert_uint_eq(skv_bitset_next(b, from), next < n ? next : SKV_BITSET_NONE);
	ck_assert_uint_eq(skv_bitset_last(b), last ? last - 1 : SKV_BITSET_NONE);
}

START_TEST(as_a_row_of_bytes)
{
	static const uint32_t sizes[] = {1, 2, 63, 64, 65, 4095, 4096, 4097, 262144, 300000};
	uint32_t n = sizes[_i];
	uint8_t *in = calloc(n, 1);
	struct skv_bitset b;

	rnd_begin((uint64_t)_i);
	ck_assert_int_eq(skv_bitset_init(&b, n), 0);
	compare(&b, in, n, 0);
	for (uint32_t round = 0; round < 2000; round++) {
		/* mostly single numbers, sometimes many adjacent ones */
		uint32_t at = rnd_below(n), run = rnd_below(10) ? 1 : 1 + rnd_below(200);
		bool put = rnd_below(2);

		for (uint32_t i = at; i < n && i < at + run; i++) {
			skv_bitset_put(&b, i, put);
			in[i] = put;
		}
		ck_assert(skv_bitset_has(&b, at) == put);
		compare(&b, in, n, rnd_below(n));
		compare(&b, in, n, at);
	}
	ck_assert_uint_eq(skv_bitset_next(&b, n), SKV_BITSET_NONE);
	for (uint32_t i = 0; i < n; i++)
		skv_bitset_put(&b, i, false);
	ck_assert_uint_eq(skv_bitset_last(&b), SKV_BITSET_NONE);
	skv_bitset_deinit(&b);
	free(in);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-core-bitset");

	tcase_add_loop_test(add_case(s, "bitset", 60, NULL, NULL, NULL), as_a_row_of_bytes, 0, 10);
	return run_suite(s);
}
