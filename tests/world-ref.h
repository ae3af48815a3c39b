/* SPDX-License-Identifier: Apache-2.0 */
/* tests/world-ref.h - the reference of a world (world.c), as its steps (world-step.c) ask it. */
#ifndef SKV_TEST_WORLD_REF_H
#define SKV_TEST_WORLD_REF_H

#include "tests/world.h"

enum what { ROW_Q, ROW_K, ROW_V };

/* One head's row of a token in a layer, in [-1, 1). */
void world_row(uint64_t content, uint32_t layer, enum what what, uint32_t head, uint32_t dim, float *to);

/* What the sequence runs; its holes in a layer. */
const struct world_policy *world_policy_of(const struct world *w, const struct world_seq *q);
bool *world_holes(const struct world *w, const struct world_seq *q, uint32_t layer);

/* Softmax weights of one q head over the visible of n tokens; weight[n]. */
void world_weights(const struct world *w, const struct world_seq *q, uint32_t layer, uint32_t n, uint32_t head,
                   const bool *visible, double *weight);

/* K and V of token `at`; and the pages that go at the end of a decode step which brought the sequence to n tokens. */
void world_put(struct world *w, struct world_seq *q, uint32_t at, uint64_t content);
void world_evict(struct world *w, struct world_seq *q, uint32_t n);

/* What a decode row sees in each layer: visible[layer][n]. False: rounding decides. Counts what is attended. */
bool world_see(const struct world *w, const struct world_seq *q, uint32_t n, bool **visible, uint64_t *attended);

#endif
