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

/* Returns a copy of the string under `key`, and its length. NULL: there is no such string, or no memory. */
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

/* Appends a JSON list of token ids to `to`. */
static int take_ids(const char *where, const char *key, const json_t *list, uint32_t vocab, struct skv_ids *to,
                    struct eng_error *err)
{
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *v = json_array_get(list, i);
		int32_t id = (int32_t)json_integer_value(v);

		if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= (json_int_t)vocab)
			return eng_fail(err, -EINVAL, "%s: \"%s\": number %zu: an id below %u expected", where, key, i + 1, vocab);
		if (skv_ids_add(to, &id, 1))
			return eng_fail(err, -ENOMEM, "%s: no memory", where);
	}
	return json_array_size(list) ? 0 : bad(where, key, "a list of ids that is not empty", err);
}

/*
 * Reads tokens from the text under `key` or the ids under `key`_ids; exactly one of the two keys must exist. *ret_text
 * tells whether it was text.
 */
static int take_tokens(const char *where, const json_t *object, const char *key, const struct eng_tokens *tokens,
                       struct skv_ids *to, bool *ret_text, struct eng_error *err)
{
	const json_t *text = json_object_get(object, key), *ids;
	char both[32], why[sizeof(err->text)];
	int r;

	snprintf(both, sizeof(both), "%s_ids", key);
	ids = json_object_get(object, both);
	*ret_text = text;
	if (text && ids)
		return eng_fail(err, -EINVAL, "%s: \"%s\" and \"%s\": one of them expected", where, key, both);
	if (ids)
		return take_ids(where, both, ids, tokens->vocab, to, err);
	if (!json_is_string(text))
		return bad(where, key, "a string", err);
	r = eng_tokens_encode(tokens, json_string_value(text), json_string_length(text), to, err);
	if (r) {
		memcpy(why, err->text, sizeof(why));
		eng_fail(err, r, "%s: \"%s\": %.400s", where, key, why);
	}
	return r;
}

static int parse_texts(const char *where, const json_t *object, const struct eng_tokens *tokens, struct skv_ids *prompt,
                       struct skv_ids *answer, struct eng_error *err)
{
	const json_t *text = json_object_get(object, "prompt"), *eos = json_object_get(object, "eos");
	bool is_text;
	int r = 0;

	if (text && !json_string_length(text))
		return bad(where, "prompt", "a string that is not empty", err);
	if (eos && !json_is_boolean(eos))
		return bad(where, "eos", "true or false", err);
	if (text && skv_ids_add(prompt, tokens->begin.id, tokens->begin.n))
		return eng_fail(err, -ENOMEM, "%s: no memory", where);
	r = take_tokens(where, object, "prompt", tokens, prompt, &is_text, err);
	r = r ? r : take_tokens(where, object, "answer", tokens, answer, &is_text, err);
	if (r)
		return r;
	if (is_text && tokens->eos >= 0 && !json_is_false(eos) && skv_ids_add(answer, &tokens->eos, 1))
		return eng_fail(err, -ENOMEM, "%s: no memory", where);
	if (!prompt->n || !answer->n)
		return bad(where, prompt->n ? "answer" : "prompt", "a token at least", err);
	return 0;
}

static int parse_case(const char *where, const json_t *object, const struct eng_tokens *tokens, struct eng_case *c,
                      struct eng_error *err)
{
	const char *task = json_string_value(json_object_get(object, "task"));
	const json_t *size = json_object_get(object, "size");
	struct skv_ids prompt = SKV_IDS_NULL, answer = SKV_IDS_NULL;
	size_t id_len;
	int r;

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
	r = parse_texts(where, object, tokens, &prompt, &answer, err);
	c->prompt = prompt.id;
	c->n_prompt = (uint32_t)prompt.n;
	c->answer = answer.id;
	c->n_answer = (uint32_t)answer.n;
	return r;
}

static bool wanted(const struct eng_task_filter *f, const struct eng_cases *so_far, const struct eng_case *c)
{
	bool size = !f->n_sizes, task = !f->n_tasks;
	uint32_t before = 0;

	for (size_t i = 0; i < f->n_sizes; i++)
		size |= f->sizes[i] == c->size;
	for (size_t i = 0; i < f->n_tasks; i++)
		task |= !strcmp(f->tasks[i], c->task);
	if (!size || !task || (f->longest && (uint64_t)c->n_prompt + c->n_answer - 1 > f->longest))
		return false;
	for (size_t i = 0; f->limit && i < so_far->n; i++)
		before += so_far->list[i].size == c->size && !strcmp(so_far->list[i].task, c->task);
	return !f->limit || before < f->limit;
}

/* Adds a case to the list if the filter selects it, otherwise frees it. */
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
                      const struct eng_task_filter *filter, const struct eng_tokens *tokens, struct eng_error *err)
{
	struct eng_case c = {.id = NULL};
	json_error_t je;
	json_t *object = json_loadb(line, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &je);
	int r;

	if (!object)
		return eng_fail(err, -EINVAL, "%s: column %d: %s", where, je.column, je.text);
	r = parse_case(where, object, tokens, &c, err);
	json_decref(object);
	if (r) {
		case_deinit(&c);
		return r;
	}
	return keep(cases, filter, &c, err);
}

int eng_cases_load(struct eng_cases *ret, const char *path, const struct eng_task_filter *filter,
                   const struct eng_tokens *tokens, struct eng_error *err)
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
			r = parse_line(&cases, where, line, (size_t)n, filter, tokens, err);
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

