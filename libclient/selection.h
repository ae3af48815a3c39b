/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/selection.h - memory for the attention scores and selections of the open step. */
#ifndef SKV_CLIENT_SELECTION_H
#define SKV_CLIENT_SELECTION_H

#include <stdint.h>

#include "kernels/evict.h"
#include "kernels/kernels.h"
#include "kernels/select.h"

struct skv_session;

/* Of a batch's sequences: scores of tokens, and ranks, have so many elements a row. */
static inline uint32_t selection_tokens(const struct skv_batch *b)
{
	return (b->max_len + 255) / 256 * 256;
}

/* Room for the decoding sequences of the step. 0, or -ENOMEM. */
int selections_prepare(struct skv_session *s);

#endif
