/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/kernel-case.h - a batch of sequences in a pool, beside the same K and V as plain arrays.
 *
 * Pages lie in the pool in random order; every byte of the pool that no token was written to is 0xff,
 * a NaN in all three dtypes, so that whatever reads too far shows. The kernels' scratch starts as
 * NaNs too, has exactly the size they asked for, and is checked for writes past its end.
 */
#ifndef SKV_KERNEL_CASE_H
#define SKV_KERNEL_CASE_H

#include "kernels/kernels.h"
#include "tests/random.h"

#define CASE_SEQS 8u

struct kernel_case {
	struct skv_shape sh;
	uint32_t n;
	struct skv_kseq seq[CASE_SEQS];
	skv_pte *table[CASE_SEQS]; /* seq[i].table, to write to */
	float *k[CASE_SEQS], *v[CASE_SEQS]; /* [len][n_kv_heads][head_dim], as the pool's dtype holds them */
	float *k_in[CASE_SEQS], *v_in[CASE_SEQS]; /* before rounding */
	uint32_t pool_pages;
	uint32_t rows, max_len; /* query rows of the batch, longest sequence */
	float *q;               /* [rows][n_heads][head_dim] */
};

/* Build it, pool empty. Lengths and query rows a sequence as given. */
void case_init(struct kernel_case *, uint32_t dtype, uint32_t heads, uint32_t kv_heads, uint32_t dim,
               uint32_t n, const uint32_t *len, const uint32_t *n_q);
void case_deinit(struct kernel_case *);

/* Write all tokens with the kernels, in calls of up to `step` tokens a sequence. */
void case_append(struct kernel_case *, const struct skv_kernels *, uint32_t step, int threads);

/* Evict about one page in `one_in`. Their bytes become NaNs, their entries carry junk ids. */
void case_punch(struct kernel_case *, uint32_t one_in);

/* Roughly normal, mean 0, variance 1. */
float rnd_normal(void);

bool case_resident(const struct kernel_case *, uint32_t i, uint32_t token);

/* Scratch for calls of this case, and the check that nothing was written past it. */
struct skv_work case_work(const struct kernel_case *, const struct skv_kernels *, int threads);
void case_work_done(struct skv_work *);

/* The names of the ISAs that this machine runs, NULL-terminated. */
const char *const *case_isas(void);

/* Fails the test where |x - ref| > tolerance, or where one is a NaN or infinite and the other is not the same. */
void case_compare(const char *what, const float *x, const double *ref, size_t n, double tolerance);

#endif
