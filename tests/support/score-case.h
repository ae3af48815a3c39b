/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/score-case.h - attention scores that decoding leaves of a case: asked for in several ways, and what
 * they are in double precision. (A layer's scores are a `struct skv_scores`.)
 */
#ifndef SKV_SCORE_CASE_H
#define SKV_SCORE_CASE_H

#include "tests/support/kernel-case.h"

/* Memory for them on the case's backend. Any of the outputs may be left out: each variant lacks another one. */
struct skv_scores score_to(struct kernel_case *, int variant);

/* Outputs [rows][n_heads][head_dim], and the scores of `shape`. What no sequence has is a NaN, as it was. */
struct score_ref {
	double *out, *token, *page, *lse;
};

/* Over the resident tokens, with q as the backend that the case is on rounds it. */
struct score_ref score_ref_of(const struct kernel_case *, const struct skv_scores *shape);
void score_ref_free(struct score_ref *);

/* Compares what the backend wrote of those that were asked for. */
void score_check(const struct kernel_case *, const struct skv_scores *, const struct score_ref *);

#endif
