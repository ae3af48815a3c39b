/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/fidelity.h - compares a layer's outputs with those of dense attention.
 *
 * It uses the measures of Delta Attention: the cosine of outputs (its Figure 3); for the queries and keys that follow
 * from them, Spearman's correlation of a query's scores for all keys (Figure 9); and for a single row the bound of
 * its Lemma 1.
 */
#ifndef SKV_BENCH_FIDELITY_H
#define SKV_BENCH_FIDELITY_H

#include "bench/synthetic-layers.h"
#include "engine/delta-similarity.h"

/* Cosine of two layers' outputs, averaged over rows [from, to) and heads. */
double fidelity_cosine(const struct synthetic_shape *, const float *out, const float *dense, uint32_t from,
                       uint32_t to);

/* Squared error of the outputs relative to the square of the dense outputs. */
double fidelity_error(const struct synthetic_shape *, const float *out, const float *dense, uint32_t from, uint32_t to);

/* Errors of rows in windows of gamma rows, for windows whose first row has an error. */
struct eng_delta_similarity fidelity_alike(const struct synthetic_shape *, const float *dense, const float *sparse,
                                           uint32_t gamma);

/*
 * Spearman's rank correlation of the scores of row p's query for all keys up to p in two runs, averaged over rows
 * [from, to). Each row uses one head, in turn.
 */
double fidelity_ranks(const struct synthetic_shape *, const struct synthetic_layer *, const struct synthetic_layer *dense,
                      uint32_t from, uint32_t to);

/*
 * Lemma 1. The difference dense - sparse of a row is the contribution of the unseen tokens, plus a rest: the weights
 * of seen tokens fall when the others are added. For element d of the rest the lemma says
 *     |rest_d| <= (weight of the unseen tokens) * max |v_d| over the seen tokens.
 * Returns the means of both sides over rows and elements, and the largest quotient. The seen tokens are streaming's,
 * or with `oracle` as many tokens with the largest weights. `out` is streaming's output, `layer->out` the dense
 * output.
 */
struct fidelity_lemma {
	double rest, bound, worst;
};
struct fidelity_lemma fidelity_lemma(const struct synthetic_shape *, const struct synthetic_layer *,
                                     const struct skv_prefill *,
                                     bool oracle, const float *out, uint32_t from, uint32_t to);

#endif
