/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/reference-attention.h - the reference of the reference model (reference-model.c), as its steps
 * (reference-step.c) ask it.
 */
#ifndef SKV_TEST_REFERENCE_MODEL_REF_H
#define SKV_TEST_REFERENCE_MODEL_REF_H

#include "tests/support/device-helper.h"
#include "tests/support/reference-model.h"

enum what { ROW_Q, ROW_K, ROW_V };

/* One head's row of a token in a layer, in [-1, 1). */
void refmodel_row(uint64_t content, uint32_t layer, enum what what, uint32_t head, uint32_t dim, float *to);

/* Row `at` of a step's, of the token with this content. */
void refmodel_fill(const struct skv_model *m, struct devmem_rows *r, uint32_t at, uint64_t content, uint32_t layer);

/* What the sequence runs; its holes in a layer. */
const struct refmodel_policy *refmodel_policy_of(const struct refmodel *w, const struct refmodel_seq *q);
bool *refmodel_holes(const struct refmodel *w, const struct refmodel_seq *q, uint32_t layer);

/* Softmax weights of one q head over the visible of n tokens; weight[n]. */
void refmodel_weights(const struct refmodel *w, const struct refmodel_seq *q, uint32_t layer, uint32_t n, uint32_t head,
                   const bool *visible, double *weight);

/* K and V of token `at`; and the pages that go at the end of a decode step which brought the sequence to n tokens. */
void refmodel_put(struct refmodel *w, struct refmodel_seq *q, uint32_t at, uint64_t content);
void refmodel_evict(struct refmodel *w, struct refmodel_seq *q, uint32_t n);

/*
 * What the last rows of n tokens see in each layer, when they decode in one step: visible[layer][rows][n]. False: rounding
 * decides. Counts what is attended.
 */
bool refmodel_see(const struct refmodel *w, const struct refmodel_seq *q, uint32_t n, uint32_t rows, bool **visible,
                  uint64_t *attended);

#endif
