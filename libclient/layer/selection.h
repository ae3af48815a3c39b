/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/layer/selection.h - memory for the attention scores and selections of the open step. */
#ifndef SKV_CLIENT_LAYER_SELECTION_H
#define SKV_CLIENT_LAYER_SELECTION_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/evict.h"
#include "kernels/kernels.h"
#include "kernels/select.h"

struct skv_plan;
struct skv_session;

/* The number of elements in a row of token scores, or of ranks, for a batch's sequences: max_len rounded up to 256. */
static inline uint32_t selection_tokens(const struct skv_batch *b)
{
	return (b->max_len + 255) / 256 * 256;
}

/*
 * Does one kernel score the layer's sketches and select by the scores? It does if the backend has such a kernel, and
 * the layer attends to the tokens that it selects, with one list and one row of scores for each kv head. Then no scores
 * are stored: score_sketches() does nothing, and select_tokens(), in the same hook, scores and selects.
 */
bool selection_fuses_sketches(const struct skv_session *s, const struct skv_plan *plan, uint32_t layer);

#endif
