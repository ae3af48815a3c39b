/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/unit/kernels/test-select-topk.c - the host's top-k on every ISA of this machine, against a plain selection,
 * with many ties, infinities and NaNs.
 */
#include "config.h"
#include "kernels/host/runtime/host.h"
#include "tests/support/kernel-case.h"
#include "tests/ref/attention.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <string.h>

static const struct {
	const char *isa;
	skv_topk_fn *topk;
} topks[] = {
#ifdef SKV_ISA_GENERIC
	{"generic", skv_topk_generic},
#endif
#ifdef SKV_ISA_AVX2
	{"avx2", skv_topk_avx2},
#endif
#ifdef SKV_ISA_AVX512
	{"avx512", skv_topk_avx512},
#endif
};
#define N_TOPKS (sizeof topks / sizeof *topks)

static float random_score(uint32_t kind)
{
	static const float special[] = {0.0f, -0.0f,  INFINITY, -INFINITY,      NAN,
	                                -NAN, 1e-45f, -1e-45f,  0x1.fffffep127f};
	switch (kind) {
	case 0: /* softmax weights: positive, few exponents */
		return expf(3 * rnd_normal());
	case 1: /* ties everywhere */
		return (float)rnd_below(5) - 2;
	case 2:
		return special[rnd_below(sizeof special / sizeof *special)];
	default: { /* any bits, including NaNs */
		uint32_t u = (uint32_t)rnd64();
		float x;
		memcpy(&x, &u, 4);
		return x;
	}
	}
}

/* Checks the k best of n. If `step` is not 0, every step-th score is better than all others. */
static void check_topk(skv_topk_fn *topk, uint32_t kind, uint32_t n, uint32_t k, uint32_t step)
{
	/* exactly sized, so that a sanitizer detects an access past the end */
	float *score = malloc(n * sizeof *score);
	uint32_t most = k < n ? k : n;
	uint32_t *ids = malloc(most * sizeof *ids), *ref = malloc((n + 1) * sizeof *ref);
	uint32_t *scratch = malloc(n * sizeof *scratch);
	for (uint32_t i = 0; i < n; i++)
		score[i] = !step ? random_score(kind) : i % step ? -1 - (float)rnd_below(1000) : fabsf(random_score(kind));
	uint32_t m = topk(score, n, k, ids, scratch);
	ck_assert_uint_eq(m, ref_topk(score, n, k, ref));
	ck_assert(!m || !memcmp(ids, ref, m * sizeof *ids));
	free(score);
	free(ids);
	free(ref);
	free(scratch);
}

static void check_random(skv_topk_fn *topk, uint32_t kind, uint32_t n)
{
	const uint32_t k = n ? rnd_below(n + n / 4 + 1) : 3;

	check_topk(topk, kind, n, rnd_below(4) ? k : k % 4, 0);
}

START_TEST(random_scores)
{
	static const uint32_t lengths[] = {0, 1, 2, 15, 16, 17, 100, 1000};
	rnd_begin((uint64_t)_i);
	for (size_t t = 0; t < N_TOPKS; t++)
		for (uint32_t kind = 0; kind < 4 && skv_kernels_host(topks[t].isa); kind++)
			for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
				check_random(topks[t].topk, kind, lengths[l]);
}
END_TEST

/* Few of many, where a sample limits the candidates; also if the sample has only the best scores. */
START_TEST(few_of_many)
{
	rnd_begin((uint64_t)_i);
	for (size_t t = 0; t < N_TOPKS; t++)
		for (uint32_t kind = 0; kind < 4 && skv_kernels_host(topks[t].isa); kind++) {
			const uint32_t n = 4096 + rnd_below(2000);
			check_topk(topks[t].topk, kind, n, 1 + rnd_below(n / 4), 0);
			/* 512 scores, those of the sample, are better */
			check_topk(topks[t].topk, kind, 4096, 513 + rnd_below(500), 8);
		}
}
END_TEST

START_TEST(nothing_to_choose)
{
	float score[20];
	uint32_t ids[20], scratch[20];
	for (size_t t = 0; t < N_TOPKS; t++) {
		skv_topk_fn *topk = topks[t].topk;
		if (!skv_kernels_host(topks[t].isa))
			continue;
		for (int i = 0; i < 20; i++)
			score[i] = i % 2 ? -INFINITY : NAN;
		ck_assert_uint_eq(topk(score, 20, 5, ids, scratch), 0);
		score[7] = -1e30f;
		ck_assert_uint_eq(topk(score, 20, 5, ids, scratch), 1);
		ck_assert_uint_eq(ids[0], 7);
		ck_assert_uint_eq(topk(score, 20, 0, ids, scratch), 0);
	}
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-select-topk");
	TCase *t = add_case(s, "all", 60, NULL, NULL, nothing_to_choose, NULL);

	add_cases(t, random_scores, getenv("SKV_VALGRIND") ? 2 : 20);
	add_cases(t, few_of_many, getenv("SKV_VALGRIND") ? 2 : 20);
	return run_suite(s);
}
