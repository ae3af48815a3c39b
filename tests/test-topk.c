/* SPDX-License-Identifier: Apache-2.0 */
/* tests/test-topk.c - top-k against a plain selection, with many ties, infinities and NaNs. */
#include "tests/kernel-case.h"
#include "tests/ref-attention.h"
#include <check.h>
#include <math.h>
#include <string.h>

static float random_score(uint32_t kind)
{
	static const float special[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, -NAN, 1e-45f, -1e-45f, 0x1.fffffep127f};
	switch (kind) {
	case 0: /* softmax weights: positive, few exponents */
		return expf(3 * rnd_normal());
	case 1: /* ties everywhere */
		return (float)rnd_below(5) - 2;
	case 2:
		return special[rnd_below(sizeof special / sizeof *special)];
	default: { /* any bits, NaNs among them */
		uint32_t u = (uint32_t)rnd64();
		float x;
		memcpy(&x, &u, 4);
		return x;
	}
	}
}

START_TEST(random_scores)
{
	static const uint32_t lengths[] = {0, 1, 2, 15, 16, 17, 100, 1000};
	rnd_state += (uint64_t)_i;
	for (const char *const *isa = case_isas(); *isa; isa++)
		for (uint32_t kind = 0; kind < 4; kind++)
			for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
				uint32_t n = lengths[l], k = n ? rnd_below(n + n / 4 + 1) : 3;
				k = rnd_below(4) ? k : k % 4;
				/* exactly sized, so that a sanitizer sees a step too far */
				float *score = malloc(n * sizeof *score);
				uint32_t most = k < n ? k : n;
				uint32_t *ids = malloc(most * sizeof *ids), *ref = malloc((n + 1) * sizeof *ref);
				uint32_t *scratch = malloc(n * sizeof *scratch);
				for (uint32_t i = 0; i < n; i++)
					score[i] = random_score(kind);
				uint32_t m = skv_kernels_host(*isa)->topk(score, n, k, ids, scratch);
				ck_assert_uint_eq(m, ref_topk(score, n, k, ref));
				ck_assert(!m || !memcmp(ids, ref, m * sizeof *ids));
				free(score);
				free(ids);
				free(ref);
				free(scratch);
			}
}
END_TEST

START_TEST(nothing_to_choose)
{
	float score[20];
	uint32_t ids[20], scratch[20];
	for (const char *const *isa = case_isas(); *isa; isa++) {
		const struct skv_kernels *kern = skv_kernels_host(*isa);
		for (int i = 0; i < 20; i++)
			score[i] = i % 2 ? -INFINITY : NAN;
		ck_assert_uint_eq(kern->topk(score, 20, 5, ids, scratch), 0);
		score[7] = -1e30f;
		ck_assert_uint_eq(kern->topk(score, 20, 5, ids, scratch), 1);
		ck_assert_uint_eq(ids[0], 7);
		ck_assert_uint_eq(kern->topk(score, 20, 0, ids, scratch), 0);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("topk");
	TCase *tc = tcase_create("all");
	int failed;

	rnd_seed("test-topk");
	suite_add_tcase(suite, tc);
	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, random_scores, 0, getenv("SKV_VALGRIND") ? 2 : 20);
	tcase_add_test(tc, nothing_to_choose);

	SRunner *runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
