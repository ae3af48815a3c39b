/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/kernel-case.h - a batch of sequences in a backend's pool, and the same K and V as plain arrays.
 *
 * A case is made once and then put on one backend after the other. All that kernels read and write is in that backend's
 * memory, which tests access only through case_to() and case_from(). So one test covers all backends.
 *
 * Pages are in random order in the pool. Every byte of the pool that holds no token is 0xff, a NaN in all dtypes, so
 * that reads out of bounds show. Tables have several layers, and those of other layers lead to such pages. Outputs also
 * start as NaNs. Workspaces have exactly the size that the kernels asked for, and are checked for writes past the end.
 * A batch's upper bounds are not tight.
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
	struct skv_shape sh; /* pool and io_dtype: those of the current backend */
	uint32_t n;
	struct skv_kseq seq[CASE_SEQS]; /* the pointers are NULL */
	skv_pte *table[CASE_SEQS];      /* of the layer under test; may be changed before case_on() */
	skv_pte *state[CASE_SEQS];      /* and of its state pages */
	skv_pte *slot_meta[CASE_SEQS];      /* and of its pages of slot metadata */
	skv_pte *kept[CASE_SEQS];       /* and of its saved prefill queries: NULL before case_keep() */
	float *k[CASE_SEQS], *v[CASE_SEQS]; /* [len][n_kv_heads][head_dim], rounded to the pool's dtype */
	float *k_in[CASE_SEQS], *v_in[CASE_SEQS]; /* before rounding */
	uint32_t pool_pages;
	uint32_t rows;    /* query rows of the batch */
	uint32_t max_len; /* at least the longest sequence */
	uint32_t max_q;
	float *q; /* [rows][n_heads][head_dim] */
	float *sinks; /* [n_heads], or NULL: sh.sinks on the backend */

	const struct test_backend *on;
	struct skv_batch batch; /* the sequences, in the backend's memory */
	uint64_t *attended;     /* [n], in the backend's memory; starts with case_attended_before() */
	void **held;            /* the backend's memory that case_off() frees */
	size_t n_held;
};

/* Makes a case with the given lengths and query rows of each sequence. Some cases have a softcap, some have sinks. */
void case_init(struct kernel_case *, uint32_t dtype, uint32_t heads, uint32_t kv_heads, uint32_t dim,
               uint32_t n, const uint32_t *len, const uint32_t *n_q);

/*
 * The same with one of CASE_SHAPES combinations of head counts, dimensions and dtypes; every other fp32 one is fp8
 * instead.
 */
#define CASE_SHAPES 33
void case_of_shape(struct kernel_case *, int shape, uint32_t n, const uint32_t *len, const uint32_t *n_q);

void case_deinit(struct kernel_case *);

/* Sets element `at` of sequence i's K, or V, to x, and the row to the pool's rounding of it. Before case_on(). */
void case_set(struct kernel_case *, uint32_t i, bool v, size_t at, float x);

/* Evicts about one page in `one_in`: their entries have random ids. Before case_on(). */
void case_punch(struct kernel_case *, uint32_t one_in);
bool case_resident(const struct kernel_case *, uint32_t i, uint32_t token);

/* Gives each sequence this many pages for saved prefill queries. Before case_on(), once. */
void case_keep(struct kernel_case *, uint32_t pages);

/* Puts the case on the backend, with an empty pool. Returns false if the backend does not support the shape. */
bool case_on(struct kernel_case *, const struct test_backend *);
void case_off(struct kernel_case *);

/* Writes all tokens with the backend's kernels, in calls of up to `step` tokens per sequence. */
void case_append(struct kernel_case *, uint32_t step, int threads);

/* case_on() and case_append(). */
bool case_load(struct kernel_case *, const struct test_backend *);

/* Returns sequences [from, from + n) of the case as a batch. */
struct skv_batch case_part(const struct kernel_case *, uint32_t from, uint32_t n);

/* Allocates memory of the backend until case_off(): a copy of src, or 0xff bytes if src is NULL. */
void *case_to(struct kernel_case *, const void *src, size_t bytes);
/* Waits for all work, then copies to dst. */
void case_from(const struct kernel_case *, void *dst, const void *src, size_t bytes);
/* The same for n elements of the io dtype. */
void *case_rows_to(struct kernel_case *, const float *src, size_t n);
void case_rows_from(const struct kernel_case *, float *dst, const void *src, size_t n);
size_t case_rows_bytes(const struct kernel_case *, size_t n);

/*
 * Initial value of sequence i's counter, to which kernels add. Some sequences have no counter; theirs must not change.
 */
uint64_t case_attended_before(uint32_t i);
bool case_has_counter(uint32_t i);

/*
 * Workspace for a call of this case, or of the given size. case_work_done() frees it, and checks that nothing was
 * written past its end.
 */
struct skv_workspace case_work(const struct kernel_case *, int threads);
struct skv_workspace case_work_of(const struct kernel_case *, size_t bytes, int threads);
void case_work_done(const struct kernel_case *, const struct skv_workspace *);

/* The softmax of a q head in double precision. */
struct ref_softmax case_softmax(const struct kernel_case *, uint32_t head);

/*
 * Lets the kernels write the rows' log-sum-exp, and compares it with ref[rows][n_heads]. Between case_on() and
 * case_off().
 */
void case_lse_begin(struct kernel_case *);
void case_lse_check(struct kernel_case *, const char *what, const double *ref, double tolerance);

/* Roughly normal, mean 0, variance 1. */
float rnd_normal(void);

/*
 * How a backend's arithmetic differs from the host's. Devices multiply 16-bit K and V with q and softmax weights that
 * are rounded to the same 16 bits (fp8: to fp16). The reference therefore gets the rounded q, and outputs may differ by
 * the rounding of weights, and by their own if io is 16-bit.
 */
bool case_rounds_q(const struct kernel_case *, const struct test_backend *);
float case_rounded_q(const struct kernel_case *, const struct test_backend *, float q);
float *case_q(const struct kernel_case *, const struct test_backend *); /* the caller frees it */
double case_tolerance(const struct kernel_case *, const struct test_backend *, double host);
/* Relative error of reduced weights: scores are stored in 16 bits until they become weights. */
double case_weight_slack(const struct kernel_case *, const struct test_backend *);

/* Have the outputs of two runs the same bits? Any NaN equals any other: sign and payload depend on how a compiler orders operands. */
bool case_same_bits(const float *, const float *, size_t n);
/* Fails the test if |x - ref| > tolerance + slack |ref|, or if one is NaN or infinite and the other is not the same. */
void case_compare(const char *what, const float *x, const double *ref, size_t n, double tolerance,
                  double slack);

#endif
