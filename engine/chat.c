/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/chat.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "formats/json.h"

#define FILE_MOST (16u << 20)

/* ---- files ------------------------------------------------------------------------------------- */

/* The whole of directory/name, NUL behind it. NULL without an error: there is no such file. */
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

/* A template by itself, or of several the one called default. */
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

/* ---- what a template writes ---------------------------------------------------------------------- */

/* Behind `prefix` and a line end, as the template's source has one: "\n" within quotes, or itself. NULL: not so. */
static const char *behind_line(const char *at, const char *prefix)
{
	size_t n = strlen(prefix);

	if (strncmp(at, prefix, n))
		return NULL;
	return at[n] == '\n' ? at + n + 1 : !strncmp(at + n, "\\n", 2) ? at + n + 2 : NULL;
}

static bool writes_line(const char *template, const char *prefix)
{
	for (const char *at = template; (at = strstr(at, prefix)); at++)
		if (behind_line(at, prefix))
			return true;
	return false;
}

/* A copy of a literal's text, its escapes resolved. */
static char *literal(const char *from, const char *end)
{
	char *copy = malloc((size_t)(end - from) + 1), *to = copy;

	for (; copy && from < end; from++) {
		if (*from == '\\' && from + 1 < end) {
			from++;
			*to++ = *from == 'n' ? '\n' : *from == 't' ? '\t' : *from;
		} else {
			*to++ = *from;
		}
	}
	if (copy)
		*to = '\0';
	return copy;
}

/* The text that ChatML's system is told by default: a system turn that is one literal. */
static char *default_system(const char *template)
{
	static const char open[] = "<|im_start|>system", close[] = "<|im_end|>";

	for (const char *at = template; (at = strstr(at, open)); at++) {
		const char *text = behind_line(at, open), *end = text ? strstr(text, close) : NULL, *p = text;
		char quote = at > template && (at[-1] == '\'' || at[-1] == '"') ? at[-1] : '{';

		while (end && p < end && *p != quote)
			p += *p == '\\' ? 2 : 1;
		if (end && p == end)
			return literal(text, end);
	}
	return NULL;
}

/* Llama 3.1 and later tell the system the date: today's where they ask for it, else one that the template has. */
static int read_facts(struct eng_chat *c, const char *template, struct eng_error *err)
{
	static const char knowledge[] = "Cutting Knowledge Date: December 2023", set[] = "date_string = \"";
	const char *date = strstr(template, set), *end = NULL;
	char today[32] = "", *fixed = NULL;
	time_t now = time(NULL);
	struct tm tm;
	int n;

	if (!strstr(template, knowledge))
		return 0;
	if (strstr(template, "strftime_now") && localtime_r(&now, &tm))
		strftime(today, sizeof(today), "%d %b %Y", &tm);
	else if (date && (end = strchr(date + strlen(set), '"')))
		fixed = literal(date + strlen(set), end);
	n = asprintf(&c->facts, "%s\nToday Date: %s\n\n", knowledge, fixed ? fixed : today);
	free(fixed);
	if (n < 0) {
		c->facts = NULL;
		return eng_fail(err, -ENOMEM, "no memory for a dialogue");
	}
	return 0;
}

static int special(const struct eng_chat *c, const char *name, int32_t *ret, struct eng_error *err)
{
	*ret = skv_tokenizer_added(c->tokens->tokenizer, name);
	return *ret >= 0 ? 0 : eng_fail(err, -EINVAL, "--chat: the template writes %.60s, which tokenizer.json has not", name);
}

/* bos_token of tokenizer_config.json, where the template writes it. */
static int read_begin(struct eng_chat *c, const char *template, const json_t *config, struct eng_error *err)
{
	const json_t *bos = json_object_get(config, "bos_token");
	const char *name = json_string_value(json_is_object(bos) ? json_object_get(bos, "content") : bos);

	c->begin = -1;
	if (!strstr(template, "bos_token"))
		return 0;
	if (!name)
		return eng_fail(err, -EINVAL, "--chat: the template writes bos_token, which tokenizer_config.json has not");
	return special(c, name, &c->begin, err);
}

static int recognise(struct eng_chat *c, const char *template, const json_t *config, struct eng_error *err)
{
	int r = read_begin(c, template, config, err);

	if (r)
		return r;
	c->middle = -1;
	if (writes_line(template, "<|im_start|>assistant") && strstr(template, "<|im_end|>")) {
		c->behind_role = c->behind_turn = "\n";
		c->system = default_system(template);
		r = special(c, "<|im_start|>", &c->open, err);
		return r ? r : special(c, "<|im_end|>", &c->close, err);
	}
	if (writes_line(template, "<|end_header_id|>") && strstr(template, "<|start_header_id|>") &&
	    strstr(template, "<|eot_id|>")) {
		c->behind_role = "\n\n";
		c->behind_turn = "";
		c->trim = true;
		r = read_facts(c, template, err);
		r = r ? r : special(c, "<|start_header_id|>", &c->open, err);
		r = r ? r : special(c, "<|end_header_id|>", &c->middle, err);
		return r ? r : special(c, "<|eot_id|>", &c->close, err);
	}
	return eng_fail(err, -EINVAL,
	                "--chat: the folder's chat template is of another form: ChatML (<|im_start|>) or that of Llama 3 "
	                "(<|start_header_id|>) expected");
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
	r = r ? r : recognise(&c, jinja ? jinja : config_template(config), config, err);
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
	free(c->facts);
	free(c->system);
	*c = ENG_CHAT_NULL;
}

/* ---- turns --------------------------------------------------------------------------------------- */

static int add_id(struct skv_ids *to, int32_t id, struct eng_error *err)
{
	return id < 0 || !skv_ids_add(to, &id, 1) ? 0 : eng_fail(err, -ENOMEM, "no memory for a dialogue");
}

static int add_text(const struct eng_chat *c, const char *text, size_t n, struct skv_ids *to, struct eng_error *err)
{
	return skv_tokenizer_encode(c->tokens->tokenizer, text, n, SKV_TOKENIZER_PLAIN, to, err->text, sizeof(err->text));
}

/* A turn up to the end of `said`. Pieces of text between special tokens are encoded as one. */
static int add_turn(const struct eng_chat *c, const char *role, const char *said, size_t n, struct skv_ids *to,
                    struct eng_error *err)
{
	size_t role_n = strlen(role), behind_n = strlen(c->behind_role), head = c->middle >= 0 ? 0 : role_n;
	char *text = malloc(role_n + behind_n + n + 1);
	int r;

	if (!text)
		return eng_fail(err, -ENOMEM, "no memory for a dialogue");
	memcpy(text, role, head);
	memcpy(text + head, c->behind_role, behind_n);
	memcpy(text + head + behind_n, said, n);
	r = add_id(to, c->open, err);
	if (!r && c->middle >= 0)
		r = add_text(c, role, role_n, to, err);
	r = r ? r : add_id(to, c->middle, err);
	r = r ? r : add_text(c, text, head + behind_n + n, to, err);
	free(text);
	return r;
}

static int end_turn(const struct eng_chat *c, struct skv_ids *to, struct eng_error *err)
{
	int r = to->n && to->id[to->n - 1] == c->close ? 0 : add_id(to, c->close, err);

	return r ? r : add_text(c, c->behind_turn, strlen(c->behind_turn), to, err);
}

static const char white[] = " \t\n\v\f\r";

static void trim(const struct eng_chat *c, const char **said, size_t *n)
{
	while (c->trim && *n && memchr(white, **said, strlen(white)))
		++*said, --*n;
	while (c->trim && *n && memchr(white, (*said)[*n - 1], strlen(white)))
		--*n;
}

static int begin(const struct eng_chat *c, const char *system, struct skv_ids *to, struct eng_error *err)
{
	const char *said = system ? system : c->system ? c->system : "", *facts = c->facts ? c->facts : "";
	size_t n = strlen(said);
	char *both;
	int r = add_id(to, c->begin, err);

	if (r || (!system && !c->system && !c->facts))
		return r;
	trim(c, &said, &n);
	if (asprintf(&both, "%s%.*s", facts, (int)n, said) < 0)
		return eng_fail(err, -ENOMEM, "no memory for a dialogue");
	r = add_turn(c, "system", both, strlen(both), to, err);
	free(both);
	return r ? r : end_turn(c, to, err);
}

int eng_chat_turn(const struct eng_chat *c, const char *system, const char *said, size_t n, struct skv_ids *dialogue,
                  struct eng_error *err)
{
	int r = dialogue->n ? end_turn(c, dialogue, err) : begin(c, system, dialogue, err);

	trim(c, &said, &n);
	r = r ? r : add_turn(c, "user", said, n, dialogue, err);
	r = r ? r : end_turn(c, dialogue, err);
	return r ? r : add_turn(c, "assistant", "", 0, dialogue, err);
}
