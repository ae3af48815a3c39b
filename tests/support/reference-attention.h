/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/reference-attention.h - the reference of the reference model (reference-model.c), as its steps
 * (reference-step.c) use it.
 */
#ifndef SKV_TEST_REFERENCE_MODEL_REF_H
#define SKV_TEST_REFERENCE_MODEL_REF_H

#include "tests/support/device-helper.h"
#include "tests/support/reference-model.h"

enum what { ROW_Q, ROW_K, ROW_V };

/* One head's row of a token in a layer; values in [-1, 1). */
void refmodel_row(uint64_t content, uint32_t layer, enum what what, uint32_t head, uint32_t dim, float *to);

/* Fills row `at` of a step with the rows of the token with this content. */
void refmodel_fill(const struct skv_model *m, struct devmem_rows *r, uint32_t at, uint64_t content, uint32_t layer);

/* The policy that the sequence runs; its holes in a layer. */
const struct refmodel_policy *refmodel_policy_of(const struct refmodel *w, const struct refmodel_seq *q);
bool *refmodel_holes(const struct refmodel *w, const struct refmodel_seq *q, uint32_t layer);

/* Softmax weights of one q head over the visible tokens of n; weight[n]. */
void refmodel_weights(const struct refmodel *w, const struct refmodel_seq *q, uint32_t layer, uint32_t n, uint32_t head,
                   const bool *visible, double *weight);

/*
 * refmodel_put() stores K and V of token `at`. refmodel_evict() makes holes of the pages that are evicted at the end of
 * a decode step after which the sequence has n tokens.
 */
void refmodel_put(struct refmodel *w, struct refmodel_seq *q, uint32_t at, uint64_t content);
void refmodel_evict(struct refmodel *w, struct refmodel_seq *q, uint32_t n);

/*
 * Computes which tokens the last `rows` of n tokens attend to in each layer, if they decode in one step:
 * visible[layer][rows][n]. Returns false if rounding decides. Counts the attended tokens.
 */
bool refmodel_see(const struct refmodel *w, const struct refmodel_seq *q, uint32_t n, uint32_t rows, bool **visible,
                  uint64_t *attended);

#endif
