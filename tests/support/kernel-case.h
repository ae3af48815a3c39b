/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/kernel-case.h - a batch of sequences in a backend's pool, beside the same K and V as plain arrays.
 *
 * A case is made once. It is then put on one backend after the other: whatever the kernels see lies in
 * that backend's memory, and the tests reach it through case_to() and case_from() alone. So what a test
 * says of one backend it says of all.
 *
 * Pages lie in the pool in random order; every byte of the pool that no token was written to is 0xff,
 * a NaN in all dtypes, so that whatever reads too far shows. Tables have several layers, and
 * those that are not meant lead to such pages. Outputs start as NaNs too. Scratch has exactly the size
 * that the kernels asked for, and is checked for writes past its end. A batch's bounds are not tight.
 */
#ifndef SKV_KERNEL_CASE_H
#define SKV_KERNEL_CASE_H

#include "kernels/compress.h"
#include "kernels/evict.h"
#include "kernels/kernels.h"
#include "kernels/select.h"
#include "tests/ref/attention.h"
#include "tests/support/kernel-backend.h"
#include "tests/support/random.h"

#define CASE_SEQS 8u
struct kernel_case {
	struct skv_shape sh; /* pool and io_dtype: of the backend that the case is on */
	uint32_t n;
	struct skv_kseq seq[CASE_SEQS]; /* the pointers are NULL */
	skv_pte *table[CASE_SEQS];      /* of the layer that is meant, to write to before case_on() */
	skv_pte *state[CASE_SEQS];      /* and of its state pages */
	skv_pte *slot_meta[CASE_SEQS];      /* and of the pages of its slot metadata */
	skv_pte *kept[CASE_SEQS];       /* and of what prompts keep: NULL before case_keep() */
	float *k[CASE_SEQS], *v[CASE_SEQS]; /* [len][n_kv_heads][head_dim], as the pool's dtype holds them */
	float *k_in[CASE_SEQS], *v_in[CASE_SEQS]; /* before rounding */
	uint32_t pool_pages;
	uint32_t rows;    /* query rows of the batch */
	uint32_t max_len; /* at least the longest sequence */
	uint32_t max_q;
	float *q; /* [rows][n_heads][head_dim] */
	float *sinks; /* [n_heads], or NULL: sh.sinks on the backend */

	const struct test_backend *on;
	struct skv_batch batch; /* the sequences, in the backend's memory */
	uint64_t *attended;     /* [n], the backend's: from case_attended_before() on */
	void **held;            /* memory of the backend that case_off() gives back */
	size_t n_held;
};

/* Build it. Lengths and query rows a sequence as given. Some have a softcap, some have sinks. */
void case_init(struct kernel_case *, uint32_t dtype, uint32_t heads, uint32_t kv_heads, uint32_t dim,
               uint32_t n, const uint32_t *len, const uint32_t *n_q);

/* The same with one of CASE_SHAPES head counts, dimensions and dtypes: every other one of fp32 is of fp8 instead. */
#define CASE_SHAPES 33
void case_of_shape(struct kernel_case *, int shape, uint32_t n, const uint32_t *len, const uint32_t *n_q);

void case_deinit(struct kernel_case *);

/* Let element `at` of sequence i's K, or V, be x, and its row what the pool makes of it. Before case_on(). */
void case_set(struct kernel_case *, uint32_t i, bool v, size_t at, float x);

/* Evict about one page in `one_in`: their entries carry junk ids. Before case_on(). */
void case_punch(struct kernel_case *, uint32_t one_in);
bool case_resident(const struct kernel_case *, uint32_t i, uint32_t token);

/* So many pages of each sequence for what prompts keep. Before case_on(), once. */
void case_keep(struct kernel_case *, uint32_t pages);

/* Put it on the backend, pool empty. False: the backend does not support the shape. */
bool case_on(struct kernel_case *, const struct test_backend *);
void case_off(struct kernel_case *);

/* Write all tokens with the backend's kernels, in calls of up to `step` tokens a sequence. */
void case_append(struct kernel_case *, uint32_t step, int threads);

/* case_on() and case_append() in one go. */
bool case_load(struct kernel_case *, const struct test_backend *);

/* Sequences [from, from + n) of the case as a batch. */
struct skv_batch case_part(const struct kernel_case *, uint32_t from, uint32_t n);

/* Memory of the backend until case_off(): a copy of what lies at src, or, if that is NULL, 0xff bytes. */
void *case_to(struct kernel_case *, const void *src, size_t bytes);
/* Read it when all work is done. */
void case_from(const struct kernel_case *, void *dst, const void *src, size_t bytes);
/* The same for n elements of the io dtype. */
void *case_rows_to(struct kernel_case *, const float *src, size_t n);
void case_rows_from(const struct kernel_case *, float *dst, const void *src, size_t n);
size_t case_rows_bytes(const struct kernel_case *, size_t n);

/* What sequence i's counter shows before a kernel added to it. Some sequences have none; theirs stay. */
uint64_t case_attended_before(uint32_t i);
bool case_has_counter(uint32_t i);

/* Scratch for a call of this case, or so much of it; then it ends, and nothing may have been written past it. */
struct skv_workspace case_work(const struct kernel_case *, int threads);
struct skv_workspace case_work_of(const struct kernel_case *, size_t bytes, int threads);
void case_work_done(const struct kernel_case *, const struct skv_workspace *);

/* The softmax of a q head in double precision. */
struct ref_softmax case_softmax(const struct kernel_case *, uint32_t head);

/* Let the kernels write the rows' log-sum-exp, and compare it with ref[rows][n_heads]: after case_on(), before case_off(). */
void case_lse_begin(struct kernel_case *);
void case_lse_check(struct kernel_case *, const char *what, const double *ref, double tolerance);

/* Roughly normal, mean 0, variance 1. */
float rnd_normal(void);

/*
 * How a backend's arithmetic differs from the host's. Devices multiply 16-bit K and V with q and softmax
 * weights rounded to the same 16 bits, fp8 to fp16: the reference gets q as they see it, and outputs may be off by the
 * rounding of weights (and their own, where io is 16-bit).
 */
bool case_rounds_q(const struct kernel_case *, const struct test_backend *);
float case_rounded_q(const struct kernel_case *, const struct test_backend *, float q);
float *case_q(const struct kernel_case *, const struct test_backend *); /* the caller's to free */
double case_tolerance(const struct kernel_case *, const struct test_backend *, double host);
/* And reduced weights by this share of them: scores are kept in 16 bits until they become weights. */
double case_weight_slack(const struct kernel_case *, const struct test_backend *);

/*
 * Fails the test where |x - ref| > tolerance + slack |ref|, or one is a NaN or infinite and the other is not
 * the same.
 */
void case_compare(const char *what, const float *x, const double *ref, size_t n, double tolerance,
                  double slack);

#endif
