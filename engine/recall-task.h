/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/recall-task.h - cases made of any text, in which a model must look far back to do well.
 *
 * The prompt is a stretch of the text, the answer its pieces in another order. A few tokens into a piece the stretch
 * says how it goes on, each time at another position.
 */
#ifndef ENG_RECALL_TASK_H
#define ENG_RECALL_TASK_H

#include "engine/tasks.h"

struct eng_recall_task {
	uint32_t n;              /* cases, evenly spread over the text */
	uint32_t prompt, answer; /* tokens of each, without what begins and ends them */
};
#define ENG_RECALL_TASK_PIECE 32u /* tokens; a prompt has two pieces at least */

/*
 * The text, n ids, has a prompt's length at least; the same text gives the same cases. eng_cases_deinit() frees. -ENOMEM.
 */
int eng_recall_task_cases(struct eng_cases *ret, const int32_t *ids, size_t n, const struct eng_recall_task *echo,
                          const struct eng_tokens *tokens, struct eng_error *err);

#endif
