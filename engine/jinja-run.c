/* SPDX-License-Identifier: Apache-2.0 */
/* engine/jinja-run.c - the state of a template's run: its first error, values, output, names, and current token. */
#include "engine/jinja-priv.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 100u
/*
 * Limits the cost of a run. The unit is a byte made; making a value and reading a token also cost a fixed number of
 * bytes.
 */
#define WORK_MAX (256u << 20)
#define VALUE_WORK 1024u
#define TOKEN_WORK 16u

/* ---- errors, and values --------------------------------------------------------------------------- */

json_t *eng_jinja_fail(struct eng_jinja_run *j, int code, const char *format, ...)
{
	char what[sizeof(j->err->text)];
	va_list ap;

	if (j->failed)
		return NULL;
	va_start(ap, format);
	vsnprintf(what, sizeof(what), format, ap);
	va_end(ap);
	j->failed = eng_fail(j->err, code, "chat template, line %u: %.400s", j->token[j->at].line, what);
	while (j->token[j->at].kind != ENG_JINJA_END)
		j->at++;
	return NULL;
}

bool eng_jinja_works(struct eng_jinja_run *j, uint64_t amount)
{
	j->work += amount;
	if (j->work > WORK_MAX)
		eng_jinja_fail(j, -E2BIG, "the template takes too long, or writes too much");
	return !j->failed;
}

json_t *eng_jinja_keep(struct eng_jinja_run *j, json_t *made)
{
	if (!made || json_array_append_new(j->kept, made))
		return eng_jinja_fail(j, -ENOMEM, "no memory for a dialogue");
	return eng_jinja_works(j, VALUE_WORK) ? made : NULL;
}

json_t *eng_jinja_text(struct eng_jinja_run *j, const char *text, size_t n)
{
	return eng_jinja_works(j, n) ? eng_jinja_keep(j, json_stringn_nocheck(text, n)) : NULL;
}

json_t *eng_jinja_joined(struct eng_jinja_run *j, const json_t *a, const json_t *b)
{
	size_t n = json_string_length(a), m = json_string_length(b);
	char *both = a && b ? malloc(n + m + 1) : NULL;
	json_t *v;

	if (!both)
		return j->failed ? NULL : eng_jinja_fail(j, -ENOMEM, "no memory for a dialogue");
	memcpy(both, json_string_value(a), n);
	memcpy(both + n, json_string_value(b), m);
	v = eng_jinja_text(j, both, n + m);
	free(both);
	return v;
}

void eng_jinja_emit(struct eng_jinja_run *j, const json_t *text)
{
	size_t n = json_string_length(text);

	if (j->skip || !text || !eng_jinja_works(j, n))
		return;
	if (j->room - j->n_out <= n) {
		size_t room = 2 * j->room + n + 256;
		char *more = realloc(j->out, room);

		if (!more) {
			eng_jinja_fail(j, -ENOMEM, "no memory for a dialogue");
			return;
		}
		j->out = more;
		j->room = room;
	}
	memcpy(j->out + j->n_out, json_string_value(text), n);
	j->n_out += n;
}

json_t *eng_jinja_captured(struct eng_jinja_run *j, size_t from)
{
	size_t n = j->n_out - from;

	j->n_out = from;
	return n ? eng_jinja_text(j, j->out + from, n) : eng_jinja_text(j, "", 0);
}

/* ---- names ---------------------------------------------------------------------------------------- */

json_t *eng_jinja_look_up(const struct eng_jinja_run *j, const char *name)
{
	json_t *v = NULL;

	for (const struct eng_jinja_scope *s = j->scope; s && !v; s = s->up)
		v = json_object_get(s->names, name);
	return v;
}

void eng_jinja_bind(struct eng_jinja_run *j, const char *name, json_t *v)
{
	if (j->skip)
		return;
	if (!v)
		json_object_del(j->scope->names, name);
	else if (json_object_set_nocheck(j->scope->names, name, v))
		eng_jinja_fail(j, -ENOMEM, "no memory for a dialogue");
}

void eng_jinja_open_scope(struct eng_jinja_run *j, struct eng_jinja_scope *s, struct eng_jinja_scope *up)
{
	*s = (struct eng_jinja_scope){.names = eng_jinja_keep(j, json_object()), .up = up};
	j->scope = s;
}

/* ---- tokens --------------------------------------------------------------------------------------- */

struct eng_jinja_token *eng_jinja_next(struct eng_jinja_run *j)
{
	struct eng_jinja_token *t = &j->token[j->at];

	if (eng_jinja_works(j, TOKEN_WORK) && t->kind != ENG_JINJA_END)
		j->at++;
	return t;
}

bool eng_jinja_sees(const struct eng_jinja_run *j, enum eng_jinja_kind kind, const char *text)
{
	const struct eng_jinja_token *t = &j->token[j->at];

	return t->kind == kind && (!text || !strcmp(json_string_value(t->value), text));
}

bool eng_jinja_takes(struct eng_jinja_run *j, enum eng_jinja_kind kind, const char *text)
{
	return eng_jinja_sees(j, kind, text) && eng_jinja_next(j) && !j->failed;
}

void eng_jinja_expect(struct eng_jinja_run *j, enum eng_jinja_kind kind, const char *text)
{
	if (!eng_jinja_takes(j, kind, kind == ENG_JINJA_BLOCK_END || kind == ENG_JINJA_PRINT_END ? NULL : text))
		eng_jinja_fail(j, -EINVAL, "\"%s\" expected; nothing else is supported here", text);
}

const char *eng_jinja_name(struct eng_jinja_run *j)
{
	if (!eng_jinja_sees(j, ENG_JINJA_NAME, NULL)) {
		eng_jinja_fail(j, -EINVAL, "a name expected");
		return "";
	}
	return json_string_value(eng_jinja_next(j)->value);
}

bool eng_jinja_enter(struct eng_jinja_run *j)
{
	if (++j->depth > DEPTH_MAX)
		eng_jinja_fail(j, -E2BIG, "at most %u levels of nesting expected", DEPTH_MAX);
	return !j->failed;
}
