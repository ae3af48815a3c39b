/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/jinja-priv.h - what the parts of the interpreter share: tokens (jinja-tokens.c), statements and expressions
 * (jinja.c), and what can be called on values (jinja-calls.c).
 *
 * Values are jansson's; NULL is Jinja's undefined, and a real number stands for a function. A run keeps each value that it makes until it ends, so all pointers to
 * values are borrowed. The first error stays: behind it everything gives NULL, and the tokens are at their end.
 */
#ifndef ENG_JINJA_PRIV_H
#define ENG_JINJA_PRIV_H

#include <stdbool.h>
#include <stdint.h>
#include "engine/jinja.h"

enum eng_jinja_kind {
	ENG_JINJA_END, /* of the template */
	ENG_JINJA_DATA, /* text outside of tags */
	ENG_JINJA_BLOCK, ENG_JINJA_BLOCK_END, /* {% %} */
	ENG_JINJA_PRINT, ENG_JINJA_PRINT_END, /* {{ }} */
	ENG_JINJA_NAME, ENG_JINJA_TEXT, ENG_JINJA_INTEGER, ENG_JINJA_SIGN,
};

struct eng_jinja_token {
	enum eng_jinja_kind kind;
	uint32_t line;
	json_t *value;  /* of data, text and integers; of a name and a sign its text */
	uint32_t if_at; /* of an expression's first token: where its inline `if` is; 0: it has none */
};

struct eng_jinja {
	struct eng_jinja_token *token;
	uint32_t n;
};

/* The tokens of a source, the last one ENG_JINJA_END. As eng_jinja_parse(); whatever it returns, `t` has tokens to free. */
int eng_jinja_tokens(struct eng_jinja *t, const char *source, struct eng_error *err);

/* Length of the white space of Python that s begins with or, `last`, that it ends with, one character of n bytes; 0: none. */
size_t eng_jinja_space(const char *s, size_t n, bool last);

#define ENG_JINJA_ARGS 16u

struct eng_jinja_args {
	uint32_t n;
	struct {
		const char *name; /* NULL: by position */
		json_t *value;
	} arg[ENG_JINJA_ARGS];
};

/* Names, from the innermost to the template's own; a loop and a macro have scopes of their own, an `if` has none. */
struct eng_jinja_scope {
	json_t *names;
	struct eng_jinja_scope *up;
};

struct eng_jinja_run {
	struct eng_jinja_token *token;
	uint32_t at;
	uint32_t skip;  /* above 0: what is read is checked, and not done */
	uint32_t depth; /* of blocks, expressions and calls */
	uint64_t work;  /* what the run has cost, see eng_jinja_works() */
	struct eng_jinja_scope *scope, *top;
	json_t *kept;       /* every value made */
	json_t *namespaces; /* values that `set` may change */
	json_t *macros;     /* name to the token behind it */
	char *out;
	size_t n_out, room;
	time_t now;
	int failed; /* the first error */
	struct eng_error *err;
};

/* ---- jinja-run.c ---- */

/* The first error, with the line in front of it. NULL, for a value. */
json_t *eng_jinja_fail(struct eng_jinja_run *j, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Take over a new value, or NULL where memory lacked. */
json_t *eng_jinja_keep(struct eng_jinja_run *j, json_t *made);
json_t *eng_jinja_text(struct eng_jinja_run *j, const char *text, size_t n);
json_t *eng_jinja_joined(struct eng_jinja_run *j, const json_t *a, const json_t *b);
/* That many more bytes made, or as much work; false, with the error: too much. */
bool eng_jinja_works(struct eng_jinja_run *j, uint64_t amount);
/* Write a text; what was written behind `from`, taken back as one. */
void eng_jinja_emit(struct eng_jinja_run *j, const json_t *text);
json_t *eng_jinja_captured(struct eng_jinja_run *j, size_t from);

/* A name's value; give it one in the innermost scope, or take it away (v NULL). */
json_t *eng_jinja_look_up(const struct eng_jinja_run *j, const char *name);
void eng_jinja_bind(struct eng_jinja_run *j, const char *name, json_t *v);
void eng_jinja_open_scope(struct eng_jinja_run *j, struct eng_jinja_scope *s, struct eng_jinja_scope *up);

/* The token at hand, which is passed; is it of this kind and text (NULL: any)? `takes` passes it if it is, `expect` says an error if not. */
struct eng_jinja_token *eng_jinja_next(struct eng_jinja_run *j);
bool eng_jinja_sees(const struct eng_jinja_run *j, enum eng_jinja_kind kind, const char *text);
bool eng_jinja_takes(struct eng_jinja_run *j, enum eng_jinja_kind kind, const char *text);
void eng_jinja_expect(struct eng_jinja_run *j, enum eng_jinja_kind kind, const char *text);
#define eng_jinja_sign(j, text) eng_jinja_takes(j, ENG_JINJA_SIGN, text)
#define eng_jinja_word(j, text) eng_jinja_takes(j, ENG_JINJA_NAME, text)
const char *eng_jinja_name(struct eng_jinja_run *j);
/* One level deeper, which the caller leaves with depth--; false, with the error: too deep. */
bool eng_jinja_enter(struct eng_jinja_run *j);

/* ---- jinja-expression.c, jinja.c ---- */

json_t *eng_jinja_expression(struct eng_jinja_run *j);
/* One without an inline `if`: of a statement `if`, or what a loop goes over. */
json_t *eng_jinja_condition(struct eng_jinja_run *j);
/* `at`: the token behind the macro's name. What it writes. */
json_t *eng_jinja_call_macro(struct eng_jinja_run *j, uint32_t at, const struct eng_jinja_args *a);

/* ---- jinja-calls.c ---- */

/* What a value is as text: itself, digits, True, False, None; an undefined one is empty. NULL with an error: a list or mapping. */
json_t *eng_jinja_str(struct eng_jinja_run *j, json_t *v);
bool eng_jinja_true(const json_t *v);
bool eng_jinja_equal(const json_t *a, const json_t *b);
bool eng_jinja_in(struct eng_jinja_run *j, json_t *item, json_t *container);

json_t *eng_jinja_filter(struct eng_jinja_run *j, const char *name, json_t *v, const struct eng_jinja_args *a);
bool eng_jinja_test(struct eng_jinja_run *j, const char *name, json_t *v, const struct eng_jinja_args *a);
json_t *eng_jinja_method(struct eng_jinja_run *j, const char *name, json_t *v, const struct eng_jinja_args *a);

#endif
