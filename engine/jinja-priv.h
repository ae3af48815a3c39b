/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/jinja-priv.h - declarations that the parts of the interpreter share: tokens (jinja-tokens.c), the state of a
 * run (jinja-run.c), statements (jinja.c), expressions (jinja-expression.c), and operations on values
 * (jinja-calls.c).
 *
 * Values are jansson values. NULL is Jinja's undefined, and a real number stands for a function. A run keeps each
 * value that it makes until it ends, so all pointers to values are borrowed. The first error is kept: after it all
 * functions return NULL, and the current token is the last one.
 */
#ifndef ENG_JINJA_PRIV_H
#define ENG_JINJA_PRIV_H

#include <stdbool.h>
#include <stdint.h>
#include "engine/jinja.h"

enum eng_jinja_kind {
	ENG_JINJA_END, /* end of the template */
	ENG_JINJA_DATA, /* text outside tags */
	ENG_JINJA_BLOCK, ENG_JINJA_BLOCK_END, /* {% %} */
	ENG_JINJA_PRINT, ENG_JINJA_PRINT_END, /* {{ }} */
	ENG_JINJA_NAME, ENG_JINJA_TEXT, ENG_JINJA_INTEGER, ENG_JINJA_SIGN,
};

struct eng_jinja_token {
	enum eng_jinja_kind kind;
	uint32_t line;
	json_t *value;  /* of data, text and integers; the text of a name or a sign */
	uint32_t if_at; /* on an expression's first token: index of its inline `if`; 0: none */
};

struct eng_jinja {
	struct eng_jinja_token *token;
	uint32_t n;
};

/*
 * Splits a source into tokens, the last one ENG_JINJA_END. Errors as eng_jinja_parse(). The caller frees the tokens
 * in `t` after an error, too.
 */
int eng_jinja_tokens(struct eng_jinja *t, const char *source, struct eng_error *err);

/* Length in bytes of the Python white-space character that s (n bytes) begins with, or ends with (`last`); 0: none. */
size_t eng_jinja_space(const char *s, size_t n, bool last);

#define ENG_JINJA_ARGS 16u

struct eng_jinja_args {
	uint32_t n;
	struct {
		const char *name; /* NULL: positional */
		json_t *value;
	} arg[ENG_JINJA_ARGS];
};

/*
 * Scopes of names, from the innermost to the template's. A loop and a macro have scopes of their own; an `if` has
 * none.
 */
struct eng_jinja_scope {
	json_t *names;
	struct eng_jinja_scope *up;
};

struct eng_jinja_run {
	struct eng_jinja_token *token;
	uint32_t at;
	uint32_t skip;  /* above 0: tokens are parsed but not evaluated */
	uint32_t depth; /* nesting of blocks, expressions and calls */
	uint64_t work;  /* cost of the run so far, see eng_jinja_works() */
	struct eng_jinja_scope *scope, *top;
	json_t *kept;       /* owns every value of the run */
	json_t *namespaces; /* objects whose attributes `set` may change */
	json_t *macros;     /* a macro's name to the token after it */
	char *out;
	size_t n_out, room;
	time_t now;
	int failed; /* the first error */
	struct eng_error *err;
};

/* ---- jinja-run.c ---- */

/* Records the first error, with its line number. Returns NULL, so that it can be returned as a value. */
json_t *eng_jinja_fail(struct eng_jinja_run *j, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Takes ownership of a new value; NULL: out of memory, which becomes the run's error. */
json_t *eng_jinja_keep(struct eng_jinja_run *j, json_t *made);
json_t *eng_jinja_text(struct eng_jinja_run *j, const char *text, size_t n);
json_t *eng_jinja_joined(struct eng_jinja_run *j, const json_t *a, const json_t *b);
/* Adds to the cost of the run: bytes made, or as much work. False with an error: the limit is exceeded. */
bool eng_jinja_works(struct eng_jinja_run *j, uint64_t amount);
/* Writes a text; and takes the output after `from` back as a value. */
void eng_jinja_emit(struct eng_jinja_run *j, const json_t *text);
json_t *eng_jinja_captured(struct eng_jinja_run *j, size_t from);

/* A name's value; set it in the innermost scope, or delete it there (v NULL). */
json_t *eng_jinja_look_up(const struct eng_jinja_run *j, const char *name);
void eng_jinja_bind(struct eng_jinja_run *j, const char *name, json_t *v);
void eng_jinja_open_scope(struct eng_jinja_run *j, struct eng_jinja_scope *s, struct eng_jinja_scope *up);

/*
 * Access to the current token. next() advances and returns it; sees() tests its kind and text (NULL: any); takes()
 * advances if sees() holds; expect() advances, or reports an error.
 */
struct eng_jinja_token *eng_jinja_next(struct eng_jinja_run *j);
bool eng_jinja_sees(const struct eng_jinja_run *j, enum eng_jinja_kind kind, const char *text);
bool eng_jinja_takes(struct eng_jinja_run *j, enum eng_jinja_kind kind, const char *text);
void eng_jinja_expect(struct eng_jinja_run *j, enum eng_jinja_kind kind, const char *text);
#define eng_jinja_sign(j, text) eng_jinja_takes(j, ENG_JINJA_SIGN, text)
#define eng_jinja_word(j, text) eng_jinja_takes(j, ENG_JINJA_NAME, text)
const char *eng_jinja_name(struct eng_jinja_run *j);
/* Enters a level of nesting; the caller leaves it with depth--. False with an error: too deep. */
bool eng_jinja_enter(struct eng_jinja_run *j);

/* ---- jinja-expression.c, jinja.c ---- */

json_t *eng_jinja_expression(struct eng_jinja_run *j);
/* An expression without an inline `if`: the condition of an `if` statement, or the iterable of a loop. */
json_t *eng_jinja_condition(struct eng_jinja_run *j);
/* Calls a macro and returns its output. `at`: the token after the macro's name. */
json_t *eng_jinja_call_macro(struct eng_jinja_run *j, uint32_t at, const struct eng_jinja_args *a);

/* ---- jinja-calls.c ---- */

/* A value as text: itself, digits, True, False or None; undefined is empty. NULL with an error: a list or a mapping. */
json_t *eng_jinja_str(struct eng_jinja_run *j, json_t *v);
bool eng_jinja_true(const json_t *v);
bool eng_jinja_equal(const json_t *a, const json_t *b);
bool eng_jinja_in(struct eng_jinja_run *j, json_t *item, json_t *container);

json_t *eng_jinja_filter(struct eng_jinja_run *j, const char *name, json_t *v, const struct eng_jinja_args *a);
bool eng_jinja_test(struct eng_jinja_run *j, const char *name, json_t *v, const struct eng_jinja_args *a);
json_t *eng_jinja_method(struct eng_jinja_run *j, const char *name, json_t *v, const struct eng_jinja_args *a);

#endif
