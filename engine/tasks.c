/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/tasks.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int bad(const char *where, const char *key, const char *expected, struct eng_error *err)
{
	return eng_fail(err, -EINVAL, "%s: \"%s\": %s expected", where, key, expected);
}

/* A copy of the string under `key`, with its length. NULL when there is none, or no memory. */
static char *take_string(const json_t *object, const char *key, size_t *ret_len)
{
	const json_t *v = json_object_get(object, key);
	size_t n = json_string_length(v);
	char *s = json_is_string(v) ? malloc(n + 1) : NULL;

	if (!s)
		return NULL;
	memcpy(s, json_string_value(v), n + 1);
	*ret_len = n;
	return s;
}

static void case_deinit(struct eng_case *c)
{
	free(c->id);
	free(c->prompt);
	free(c->answer);
	*c = (struct eng_case){.id = NULL};
}

static int parse_case(const char *where, const json_t *object, struct eng_case *c, struct eng_error *err)
{
	const char *task = json_string_value(json_object_get(object, "task"));
	const json_t *size = json_object_get(object, "size");
	size_t id_len;

	if (!json_is_object(object))
		return eng_fail(err, -EINVAL, "%s: a JSON object expected", where);
	c->id = take_string(object, "id", &id_len);
	if (!c->id)
		return bad(where, "id", "a string", err);
	if (!task || !*task || strlen(task) >= sizeof(c->task))
		return bad(where, "task", "a name shorter than 32 bytes", err);
	strcpy(c->task, task);
	if (!json_is_integer(size) || json_integer_value(size) < 1 || json_integer_value(size) > UINT32_MAX)
		return bad(where, "size", "a whole number above 0", err);
	c->size = (uint32_t)json_integer_value(size);
	c->prompt = take_string(object, "prompt", &c->prompt_len);
	if (!c->prompt || !c->prompt_len)
		return bad(where, "prompt", "a string that is not empty", err);
	c->answer = take_string(object, "answer", &c->answer_len);
	return c->answer ? 0 : bad(where, "answer", "a string", err);
}

static bool wanted(const struct eng_task_filter *f, const struct eng_cases *so_far, const struct eng_case *c)
{
	bool size = !f->n_sizes, task = !f->n_tasks;
	uint32_t before = 0;

	for (size_t i = 0; i < f->n_sizes; i++)
		size |= f->sizes[i] == c->size;
	for (size_t i = 0; i < f->n_tasks; i++)
		task |= !strcmp(f->tasks[i], c->task);
	if (!size || !task || (f->longest && c->prompt_len + c->answer_len > f->longest))
		return false;
	for (size_t i = 0; f->limit && i < so_far->n; i++)
		before += so_far->list[i].size == c->size && !strcmp(so_far->list[i].task, c->task);
	return !f->limit || before < f->limit;
}

/* Takes over the case if it is wanted, frees it if not. */
static int keep(struct eng_cases *cases, const struct eng_task_filter *filter, struct eng_case *c,
                struct eng_error *err)
{
	struct eng_case *list;

	if (!wanted(filter, cases, c)) {
		case_deinit(c);
		return 0;
	}
	list = reallocarray(cases->list, cases->n + 1, sizeof(*list));
	if (!list) {
		case_deinit(c);
		return eng_fail(err, -ENOMEM, "no memory for %zu cases", cases->n + 1);
	}
	list[cases->n] = *c;
	cases->list = list;
	cases->n++;
	return 0;
}

static int parse_line(struct eng_cases *cases, const char *where, const char *line, size_t n,
                      const struct eng_task_filter *filter, struct eng_error *err)
{
	struct eng_case c = {.id = NULL};
	json_error_t je;
	json_t *object = json_loadb(line, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &je);
	int r;

	if (!object)
		return eng_fail(err, -EINVAL, "%s: column %d: %s", where, je.column, je.text);
	r = parse_case(where, object, &c, err);
	json_decref(object);
	if (r) {
		case_deinit(&c);
		return r;
	}
	return keep(cases, filter, &c, err);
}

int eng_cases_load(struct eng_cases *ret, const char *path, const struct eng_task_filter *filter,
                   struct eng_error *err)
{
	struct eng_cases cases = ENG_CASES_NULL;
	FILE *f = fopen(path, "re");
	char *line = NULL, where[300];
	size_t room = 0, number = 0;
	ssize_t n;
	int r = 0;

	if (!f)
		return eng_fail(err, -errno, "%s: %s", path, strerror(errno));
	while (!r && (n = getline(&line, &room, f)) >= 0) {
		snprintf(where, sizeof(where), "%.250s:%zu", path, ++number);
		if (line[strspn(line, " \t\r\n")])
			r = parse_line(&cases, where, line, (size_t)n, filter, err);
	}
	if (!r && ferror(f))
		r = eng_fail(err, -EIO, "%s: cannot be read to its end", path);
	if (!r && !cases.n)
		r = eng_fail(err, -EINVAL,
		             number ? "%s: no case is left of the tasks, sizes and lengths asked for" : "%s: is empty",
		             path);
	free(line);
	fclose(f);
	if (r) {
		eng_cases_deinit(&cases);
		return r;
	}
	*ret = cases;
	return 0;
}

void eng_cases_deinit(struct eng_cases *cases)
{
	for (size_t i = 0; i < cases->n; i++)
		case_deinit(&cases->list[i]);
	free(cases->list);
	*cases = ENG_CASES_NULL;
}
