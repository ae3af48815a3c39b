/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/recall-task.h - makes a continuation of any text that a model predicts well only if it attends to distant
 * tokens.
 *
 * The continuation consists of pieces of the text in another order. A model that has seen the first few tokens of a
 * piece can predict the rest if it attends to the place in the text from which the piece is taken. Shorter pieces test
 * more positions with the same number of tokens. A piece has 8 tokens, or 32 if each byte is a token, because a
 * sequence of a few bytes occurs at many positions of a text.
 */
#ifndef ENG_RECALL_TASK_H
#define ENG_RECALL_TASK_H

#include <stdint.h>

#define ENG_RECALL_TASK_PIECE 8u  /* tokens of a piece; a text must have at least two pieces */
#define ENG_RECALL_TASK_BYTES 32u /* tokens of a piece if each byte is a token */

/*
 * Writes `n` ids: pieces of `piece` tokens from the text, in a pseudo-random order that depends only on the number of
 * pieces in the text; the last piece may be cut. Returns 0 or -ENOMEM.
 */
int eng_recall_task(int32_t *to, uint32_t n, const int32_t *text, uint32_t n_text, uint32_t piece);

#endif
