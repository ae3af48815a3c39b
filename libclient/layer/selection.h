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

/* Scores of tokens, and ranks, have so many elements a row for a batch's sequences. */
static inline uint32_t selection_tokens(const struct skv_batch *b)
{
	return (b->max_len + 255) / 256 * 256;
}

/*
 * Does one kernel make the layer's scores by sketches and select? It does if the backend has such a kernel, and the
 * layer attends to the tokens that it selects, with one list and one row of scores a kv head. Then no scores are
 * stored, and score_sketches() leaves all to select_tokens(), in the same hook.
 */
bool selection_fuses_sketches(const struct skv_session *s, const struct skv_plan *plan, uint32_t layer);

#endif
