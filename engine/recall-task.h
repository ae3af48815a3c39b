/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/recall-task.h - a continuation of any text, in which a model must look far back to do well.
 *
 * It is pieces of the text in another order. A few tokens into a piece the text says how it goes on, each time at
 * another position.
 */
#ifndef ENG_RECALL_TASK_H
#define ENG_RECALL_TASK_H

#include <stdint.h>

#define ENG_RECALL_TASK_PIECE 32u /* tokens; a text has two pieces at least */

/* Write `n` ids: whole pieces of the text, in an order that is the same for texts of one length; the last is cut. -ENOMEM. */
int eng_recall_task(int32_t *to, uint32_t n, const int32_t *text, uint32_t n_text);

#endif
