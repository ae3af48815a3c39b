/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/chat.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "formats/json.h"

#define FILE_MOST (16u << 20)

/* ---- files ------------------------------------------------------------------------------------- */

/* Reads the file `directory/name` and appends a NUL. If the file does not exist, *ret is NULL and 0 is returned. */
static int read_file(const char *directory, const char *name, char **ret, struct eng_error *err)
{
	char path[4096];
	size_t n = 0;
	FILE *f;

	*ret = NULL;
	if ((size_t)snprintf(path, sizeof(path), "%s/%s", directory, name) >= sizeof(path))
		return eng_fail(err, -ENAMETOOLONG, "%.60s...: a shorter path expected", directory);
	f = fopen(path, "re");
	if (!f)
		return errno == ENOENT ? 0 : eng_fail(err, -errno, "%.300s: %s", path, strerror(errno));
	*ret = malloc(FILE_MOST + 1);
	if (*ret)
		n = fread(*ret, 1, FILE_MOST + 1, f);
	if (!*ret || ferror(f) || n > FILE_MOST) {
		free(*ret);
		*ret = NULL;
		fclose(f);
		return eng_fail(err, -EIO, "%.300s: cannot be read, or has more than %u bytes", path, FILE_MOST);
	}
	fclose(f);
	(*ret)[n] = '\0';
	return 0;
}

/*
 * Returns the template in tokenizer_config.json: the value of "chat_template" if it is a string, or its element named
 * "default" if it is a list.
 */
static const char *config_template(const json_t *config)
{
	const json_t *v = json_object_get(config, "chat_template");

	for (size_t i = 0; i < json_array_size(v); i++) {
		const char *name = json_string_value(json_object_get(json_array_get(v, i), "name"));

		if (name && !strcmp(name, "default"))
			return json_string_value(json_object_get(json_array_get(v, i), "template"));
	}
	return json_string_value(v);
}

/*
 * Returns variables for the template: the "…_token" keys of tokenizer_config.json, and the variables that transformers
 * sets.
 */
static json_t *variables_of(const json_t *config)
{
	json_t *all = json_pack("{s:n, s:n}", "tools", "documents"), *v;
	const char *key;

	json_object_foreach((json_t *)config, key, v) {
		const char *end = strstr(key, "_token");
		json_t *text = json_is_object(v) ? json_object_get(v, "content") : v;

		if (end && !strcmp(end, "_token") && json_is_string(text) && json_object_set(all, key, text)) {
			json_decref(all);
			return NULL;
		}
	}
	return all;
}

/* ---- dialogues -------------------------------------------------------------------------------------- */

struct said {
	const char *role, *text;
	size_t n;
};

static int add_said(json_t *messages, const struct said *said)
{
	return json_array_append_new(messages, json_pack("{s:s, s:o}", "role", said->role, "content",
	                                                 json_stringn_nocheck(said->text, said->n)));
}

/* Renders a dialogue; if `answers` is true, followed by the beginning of an answer. The caller frees *ret. */
static int render(const struct eng_chat *c, const struct said *said, size_t n_said, bool answers, char **ret, size_t *ret_n,
                  struct eng_error *err)
{
	json_t *variables = json_copy(c->variables), *messages = json_array();
	int r = json_object_set_new(variables, "messages", messages);

	for (size_t i = 0; !r && i < n_said; i++)
		if (said[i].text)
			r = add_said(messages, &said[i]);
	r = r ? r : json_object_set_new(variables, "add_generation_prompt", json_boolean(answers));
	r = r ? eng_fail(err, -ENOMEM, "no memory for a dialogue") : eng_jinja_render(c->template, variables, c->now, ret, ret_n, err);
	json_decref(variables);
	return r;
}

/*
 * Computes the text that the template writes after an answer, up to the beginning of the next answer. For this it
 * renders a dialogue of two turns with a known answer, and takes the text after that answer. Fails unless the rendered
 * dialogue begins with what the template writes for the first turn alone. The caller frees *ret.
 */
static int go_on(const struct eng_chat *c, const struct said *system, const struct said *user, char **ret, size_t *ret_n,
                 struct eng_error *err)
{
	static const char answer[] = "This is an answer.";
	const struct said said[] = {*system, {"user", "And this?", 9}, {"assistant", answer, sizeof(answer) - 1}, *user};
	char *first = NULL, *both = NULL, *at = NULL;
	size_t first_n, both_n;
	int r = render(c, said, 2, false, &first, &first_n, err);

	r = r ? r : render(c, said, 4, true, &both, &both_n, err);
	if (!r && both_n > first_n && !memcmp(both, first, first_n))
		at = memmem(both + first_n, both_n - first_n, answer, sizeof(answer) - 1);
	if (!r && !at)
		r = eng_fail(err, -EINVAL,
		             "--chat: the chat template writes earlier turns in another way when the dialogue goes on%s: one whose "
		             "dialogues only grow expected",
		             system->text ? " with a system text" : "");
	if (!r) {
		at += sizeof(answer) - 1;
		*ret_n = both_n - (size_t)(at - both);
		*ret = memmove(both, at, *ret_n + 1);
		both = NULL;
	}
	free(first);
	free(both);
	return r;
}

/*
 * Appends the token ids of a rendered text to a dialogue. If the text begins with the token that ends an answer, and
 * the dialogue already ends with it, this token is not appended again.
 */
static int append(const struct eng_chat *c, const char *text, size_t n, struct skv_ids *dialogue, struct eng_error *err)
{
	struct skv_ids ids = SKV_IDS_NULL;
	int r = skv_tokenizer_encode(c->tokens->tokenizer, text, n, SKV_TOKENIZER_QUOTED, &ids, err->text, sizeof(err->text));
	size_t had = !r && ids.n && dialogue->n && ids.id[0] == c->close && dialogue->id[dialogue->n - 1] == c->close;

	if (!r && skv_ids_add(dialogue, ids.id + had, ids.n - had))
		r = eng_fail(err, -ENOMEM, "no memory for a dialogue");
	skv_ids_deinit(&ids);
	return r;
}

static int turn(const struct eng_chat *c, const struct said *system, const struct said *user, struct skv_ids *dialogue,
                struct eng_error *err)
{
	char *text = NULL;
	size_t n;
	int r = go_on(c, system, user, &text, &n, err);

	if (!r && !dialogue->n) {
		free(text);
		text = NULL;
		r = render(c, (const struct said[]){*system, *user}, 2, true, &text, &n, err);
	}
	r = r ? r : append(c, text, n, dialogue, err);
	free(text);
	return r;
}

static int quote(const struct eng_chat *c, struct said *said, char **ret, struct eng_error *err)
{
	int r = !said->text ? 0 : skv_tokenizer_quote(c->tokens->tokenizer, said->text, said->n, ret, &said->n, err->text, sizeof(err->text));

	said->text = *ret;
	return r;
}

int eng_chat_turn(const struct eng_chat *c, const char *system, const char *said, size_t n, struct skv_ids *dialogue,
                  struct eng_error *err)
{
	struct said told = {"system", system, system ? strlen(system) : 0}, user = {"user", said, n};
	char *system_quoted = NULL, *user_quoted = NULL;
	int r = quote(c, &told, &system_quoted, err);

	r = r ? r : quote(c, &user, &user_quoted, err);
	r = r ? r : turn(c, &told, &user, dialogue, err);
	free(system_quoted);
	free(user_quoted);
	return r;
}

/* ---- loading ---------------------------------------------------------------------------------------- */

/*
 * Checks that the template, without a system text, does not rewrite earlier turns. *ret_close is the special token that
 * ends an answer; -1: none.
 */
static int try_dialogue(const struct eng_chat *c, int32_t *ret_close, struct eng_error *err)
{
	struct skv_ids ids = SKV_IDS_NULL;
	char *text = NULL;
	size_t n;
	const struct said nobody = {0};
	int r = go_on(c, &nobody, &(struct said){"user", "x", 1}, &text, &n, err);

	r = r ? r : append(c, text, n, &ids, err);
	if (!r)
		*ret_close = ids.n && skv_tokenizer_special(c->tokens->tokenizer, ids.id[0]) ? ids.id[0] : -1;
	skv_ids_deinit(&ids);
	free(text);
	return r;
}

static int load(struct eng_chat *c, const char *template, const json_t *config, struct eng_error *err)
{
	int r = eng_jinja_parse(&c->template, template, err);

	if (r)
		return r;
	c->now = time(NULL);
	c->close = -1;
	c->variables = variables_of(config);
	if (!c->variables)
		return eng_fail(err, -ENOMEM, "no memory for a chat template");
	return try_dialogue(c, &c->close, err);
}

int eng_chat_load(struct eng_chat *ret, const char *directory, const struct eng_tokens *tokens, struct eng_error *err)
{
	struct eng_chat c = {.tokens = tokens};
	char *jinja = NULL, *text = NULL;
	json_t *config = NULL;
	json_error_t je;
	int r;

	if (!tokens->tokenizer)
		return eng_fail(err, -EINVAL, "--chat: the model's tokens are bytes, a model with a tokenizer.json expected");
	r = read_file(directory, "chat_template.jinja", &jinja, err);
	r = r ? r : read_file(directory, "tokenizer_config.json", &text, err);
	if (!r && text && !(config = skv_json_parse(text, strlen(text), 0, &je)))
		r = eng_fail(err, -EINVAL, "%.200s/tokenizer_config.json:%d: %s", directory, je.line, je.text);
	if (!r && !jinja && !config_template(config))
		r = eng_fail(err, -EINVAL,
		             "--chat: %.200s: chat_template.jinja, or chat_template in tokenizer_config.json, expected", directory);
	r = r ? r : load(&c, jinja ? jinja : config_template(config), config, err);
	json_decref(config);
	free(jinja);
	free(text);
	if (r) {
		eng_chat_deinit(&c);
		return r;
	}
	*ret = c;
	return 0;
}

void eng_chat_deinit(struct eng_chat *c)
{
	eng_jinja_free(c->template);
	json_decref(c->variables);
	*c = ENG_CHAT_NULL;
}
