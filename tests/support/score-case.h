/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/score-case.h - attention scores that decoding a case writes: requested in several ways, and compared
 * with double precision. (A layer's scores are a `struct skv_scores`.)
 */
#ifndef SKV_SCORE_CASE_H
#define SKV_SCORE_CASE_H

#include "tests/support/kernel-case.h"

/* Allocates memory for the scores on the case's backend. Any output may be left out: each variant lacks another one. */
struct skv_scores score_to(struct kernel_case *, int variant);

/* Outputs [rows][n_heads][head_dim], and the scores of `shape`. Scores beyond a sequence's end are NaN. */
struct score_ref {
	double *out, *token, *page, *lse;
};

/* Computed over the resident tokens, with q rounded as on the current backend. */
struct score_ref score_ref_of(const struct kernel_case *, const struct skv_scores *shape);
void score_ref_free(struct score_ref *);

/* Compares the requested scores that the backend wrote. */
void score_check(const struct kernel_case *, const struct skv_scores *, const struct score_ref *);

#endif
