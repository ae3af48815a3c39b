/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/fidelity.h - how near what a layer gives is to what dense attention gives.
 *
 * As Delta Attention measures it: of outputs the cosine (its Figure 3), of the queries and keys that follow from them
 * Spearman's correlation of a query's scores of all keys (Figure 9), and of a single row the bound of its Lemma 1.
 */
#ifndef SKV_BENCH_FIDELITY_H
#define SKV_BENCH_FIDELITY_H

#include "bench/synthetic-layers.h"
#include "engine/delta-similarity.h"

/* Mean over rows [from, to) and heads of the cosine of two layers' outputs. */
double fidelity_cosine(const struct synthetic_shape *, const float *out, const float *dense, uint32_t from,
                       uint32_t to);

/* Sum of the squares of what the outputs differ by, over that of the dense ones. */
double fidelity_error(const struct synthetic_shape *, const float *out, const float *dense, uint32_t from, uint32_t to);

/* What rows of windows of gamma miss: of those windows whose first row does. */
struct eng_delta_similarity fidelity_alike(const struct synthetic_shape *, const float *dense, const float *sparse,
                                           uint32_t gamma);

/*
 * Spearman's rank correlation of the scores that row p's query gives all keys up to it, in two runs, mean over rows
 * [from, to), each in one head, in turns.
 */
double fidelity_ranks(const struct synthetic_shape *, const struct synthetic_layer *, const struct synthetic_layer *dense,
                      uint32_t from, uint32_t to);

/*
 * Lemma 1. The difference dense - sparse of a row is what the tokens that are left out add, and a rest: of the tokens
 * that are seen, for their weights fall when others come in. Of element d of the rest it says
 *     |rest_d| <= (weight of those left out) * max |v_d| of those seen.
 * Mean over the rows, heads and elements of both sides, and the largest quotient. Of streaming's tokens, or with
 * `oracle` of as many that weigh most. `out` is what streaming gives, `layer->out` dense.
 */
struct fidelity_lemma {
	double rest, bound, worst;
};
struct fidelity_lemma fidelity_lemma(const struct synthetic_shape *, const struct synthetic_layer *,
                                     const struct skv_prefill *,
                                     bool oracle, const float *out, uint32_t from, uint32_t to);

#endif
