/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/tasks.h - reads task files: one JSON object a line with id, task, size, prompt and answer.
 *
 * Prompt and answer are text, or token ids ("prompt_ids", "answer_ids"). A prompt given as text gets the tokens that
 * all texts of the model begin with (bos). An answer given as text gets eos at its end, unless the case has "eos":
 * false.
 */
#ifndef ENG_TASKS_H
#define ENG_TASKS_H

#include <stddef.h>
#include <stdint.h>
#include "engine/tokens.h"

#define ENG_TASK_NAME 32

struct eng_case {
	char *id;
	char task[ENG_TASK_NAME];
	uint32_t size;
	int32_t *prompt, *answer; /* token ids; neither list is empty */
	uint32_t n_prompt, n_answer;
};

/* Selects cases of a file by their size and task. An empty list selects all sizes or all tasks. */
struct eng_task_filter {
	const uint32_t *sizes;
	uint32_t n_sizes;
	const char *const *tasks;
	uint32_t n_tasks;
	uint32_t limit; /* only the first `limit` cases of each task and size; 0: all */
	/*
	 * most tokens of prompt and answer together, without the answer's last token, which is never an input; 0: no
	 * limit
	 */
	uint32_t longest;
};

struct eng_cases {
	struct eng_case *list; /* in the file's order */
	size_t n;
};
#define ENG_CASES_NULL ((struct eng_cases){.list = NULL})

/*
 * Reads the cases of a file. Returns 0; -EINVAL with "file:line: …", or if the filter leaves no case; or the negative
 * errno of reading the file.
 */
int eng_cases_load(struct eng_cases *ret, const char *path, const struct eng_task_filter *filter,
                   const struct eng_tokens *tokens, struct eng_error *err);
void eng_cases_deinit(struct eng_cases *cases);

#endif
