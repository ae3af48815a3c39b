/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/tasks.h - reads task files: one JSON object a line with id, task, size, prompt and answer.
 *
 * Prompt and answer are text, or token ids ("prompt_ids", "answer_ids"). A prompt that is text begins with the tokens
 * that the model's texts begin with. An answer that is text ends with eos, unless the case has "eos": false.
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
	int32_t *prompt, *answer; /* ids; neither is empty */
	uint32_t n_prompt, n_answer;
};

/* Selects cases of a file. Empty lists: all. */
struct eng_task_filter {
	const uint32_t *sizes;
	uint32_t n_sizes;
	const char *const *tasks;
	uint32_t n_tasks;
	uint32_t limit; /* the first cases of each task and size; 0: all */
	/* most tokens of prompt and answer together, without the last one, which predicts nothing; 0: no limit */
	uint32_t longest;
};

struct eng_cases {
	struct eng_case *list; /* in the file's order */
	size_t n;
};
#define ENG_CASES_NULL ((struct eng_cases){.list = NULL})

/* Reads a file for a model. -EINVAL with "file:line: …", or if the filter leaves no case; -errno of the file. */
int eng_cases_load(struct eng_cases *ret, const char *path, const struct eng_task_filter *filter,
                   const struct eng_tokens *tokens, struct eng_error *err);
void eng_cases_deinit(struct eng_cases *cases);

#endif
