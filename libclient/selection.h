/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/selection.h - memory for the attention scores and selections of the open step. */
#ifndef SKV_CLIENT_SELECTION_H
#define SKV_CLIENT_SELECTION_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/evict.h"
#include "kernels/kernels.h"
#include "kernels/select.h"

struct skv_plan;
struct skv_session;

/* Of a batch's sequences: scores of tokens, and ranks, have so many elements a row. */
static inline uint32_t selection_tokens(const struct skv_batch *b)
{
	return (b->max_len + 255) / 256 * 256;
}

/*
 * Are the layer's scores by sketches and its selection made by one kernel? If the backend has one, and the layer attends to
 * the tokens that it selects, a list a kv head by a row of scores a kv head: then no scores are in memory, and
 * score_sketches() leaves all to select_tokens(), in the same hook.
 */
bool selection_fuses_sketches(const struct skv_session *s, const struct skv_plan *plan, uint32_t layer);

/* Room for the decoding sequences of the step. 0, or -ENOMEM. */
int selections_prepare(struct skv_session *s);

#endif
