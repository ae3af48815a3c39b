/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/recall-task.h - makes a continuation of any text that a model predicts well only if it attends to distant
 * tokens.
 *
 * The continuation consists of pieces of the text in another order. After the first few tokens of a piece, the rest
 * follows from the text, each time at another position. Shorter pieces test more positions with the same number of
 * tokens. Pieces have 8 tokens; if tokens are bytes they have 32, because a few bytes occur at many positions of a
 * text.
 */
#ifndef ENG_RECALL_TASK_H
#define ENG_RECALL_TASK_H

#include <stdint.h>

#define ENG_RECALL_TASK_PIECE 8u  /* tokens; a text must have at least two pieces */
#define ENG_RECALL_TASK_BYTES 32u /* if tokens are bytes */

/*
 * Writes `n` ids: pieces of `piece` tokens of the text, in an order that depends only on the text's length; the last
 * piece may be cut. -ENOMEM.
 */
int eng_recall_task(int32_t *to, uint32_t n, const int32_t *text, uint32_t n_text, uint32_t piece);

#endif
