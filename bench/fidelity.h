/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/fidelity.h - compares a layer's outputs under sparse attention with its outputs under dense attention.
 *
 * The measures are those of the paper Delta Attention: the cosine between outputs (Figure 3 of the paper); for the
 * queries and keys of the next layer, which depend on the outputs, Spearman's correlation of a query's scores for all
 * keys (Figure 9); and for single rows the bound of Lemma 1.
 */
#ifndef SKV_BENCH_FIDELITY_H
#define SKV_BENCH_FIDELITY_H

#include "bench/synthetic-layers.h"
#include "engine/error-similarity.h"

/* Returns the cosine between the two outputs, averaged over heads and over rows [from, to). */
double fidelity_cosine(const struct synthetic_shape *, const float *out, const float *dense, uint32_t from,
                       uint32_t to);

/* Returns the squared error of `out`, relative to the square of `dense`. */
double fidelity_error(const struct synthetic_shape *, const float *out, const float *dense, uint32_t from, uint32_t to);

/* Compares the errors of the rows in windows of gamma rows, for windows whose first row has an error. */
struct eng_delta_similarity fidelity_alike(const struct synthetic_shape *, const float *dense, const float *sparse,
                                           uint32_t gamma);

/*
 * Returns Spearman's rank correlation, between two runs, of the scores of row p's query for all keys up to p, averaged
 * over the rows p in [from, to). For each row the correlation is that of one head; the heads take turns.
 */
double fidelity_ranks(const struct synthetic_shape *, const struct synthetic_layer *, const struct synthetic_layer *dense,
                      uint32_t from, uint32_t to);

/*
 * Checks Lemma 1 of Delta Attention. The difference between the dense and the sparse output of a row is the
 * contribution of the tokens that sparse attention does not see, plus a rest. The rest exists because the weights of
 * the seen tokens fall when the unseen tokens are added to the softmax. For element d of the rest the lemma says
 *     |rest_d| <= (weight of the unseen tokens) * max |v_d| over the seen tokens.
 * Returns the means of both sides over rows and elements, and the largest quotient of the left side and the right side.
 * The seen tokens are those of streaming attention (sinks and a window) or, if `oracle` is true, the same number of
 * tokens with the largest weights. `out` is the output of streaming attention, and `layer->out` the output of dense
 * attention.
 */
struct fidelity_lemma {
	double rest, bound, worst;
};
struct fidelity_lemma fidelity_lemma(const struct synthetic_shape *, const struct synthetic_layer *,
                                     const struct skv_prefill *,
                                     bool oracle, const float *out, uint32_t from, uint32_t to);

#endif
