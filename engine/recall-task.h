/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/recall-task.h - a continuation of any text, in which a model must look far back to do well.
 *
 * It is pieces of the text in another order. A few tokens into a piece the text says how it goes on, each time at
 * another position. The shorter they are, the more positions are asked for in as many tokens: of 8 tokens they are, where
 * bytes are tokens, of 32, since fewer bytes stand at many places of a text.
 */
#ifndef ENG_RECALL_TASK_H
#define ENG_RECALL_TASK_H

#include <stdint.h>

#define ENG_RECALL_TASK_PIECE 8u  /* tokens; a text has two pieces at least */
#define ENG_RECALL_TASK_BYTES 32u /* where bytes are tokens */

/*
 * Write `n` ids: whole pieces of so many tokens of the text, in an order that is the same for texts of one length; the last
 * is cut. -ENOMEM.
 */
int eng_recall_task(int32_t *to, uint32_t n, const int32_t *text, uint32_t n_text, uint32_t piece);

#endif
