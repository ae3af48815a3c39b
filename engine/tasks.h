/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/tasks.h - task files: one JSON object a line with id, task, size, prompt and answer.
 */
#ifndef ENG_TASKS_H
#define ENG_TASKS_H

#include <stddef.h>
#include <stdint.h>
#include "engine/error.h"

#define ENG_TASK_NAME 32

struct eng_case {
	char *id;
	char task[ENG_TASK_NAME];
	uint32_t size;
	char *prompt, *answer; /* bytes, NUL-terminated besides */
	size_t prompt_len, answer_len;
};

/* Which cases of a file are wanted. Empty lists: all. */
struct eng_task_filter {
	const uint32_t *sizes;
	uint32_t n_sizes;
	const char *const *tasks;
	uint32_t n_tasks;
	uint32_t limit; /* the first so many of each task and size; 0: all */
	uint32_t longest; /* prompt and answer, bytes; 0: any */
};

struct eng_cases {
	struct eng_case *list; /* in the file's order */
	size_t n;
};
#define ENG_CASES_NULL ((struct eng_cases){.list = NULL})

/* Read a file. -EINVAL with "file:line: …", or when the filter leaves nothing; -errno of the file. */
int eng_cases_load(struct eng_cases *ret, const char *path, const struct eng_task_filter *filter,
                   struct eng_error *err);
void eng_cases_deinit(struct eng_cases *cases);

#endif
