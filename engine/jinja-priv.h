/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/jinja-priv.h - declarations that the parts of the Jinja interpreter share: tokens (jinja-tokens.c), the state
 * of a run (jinja-run.c), statements (jinja.c), expressions (jinja-expression.c), and operations on values
 * (jinja-calls.c).
 *
 * Values are jansson values. NULL is Jinja's undefined value, and a real number represents a function. A run owns each
 * value that it makes and frees them when it ends, so functions pass values as borrowed pointers. Only the first error
 * of a run is recorded. After it all functions return NULL, and the current token is the template's last one, so that
 * parsing ends.
 */
#ifndef ENG_JINJA_PRIV_H
#define ENG_JINJA_PRIV_H

#include <stdbool.h>
#include <stdint.h>
#include "engine/jinja.h"

enum eng_jinja_kind {
	ENG_JINJA_END, /* end of the template */
	ENG_JINJA_DATA, /* text outside of tags */
	ENG_JINJA_BLOCK, ENG_JINJA_BLOCK_END, /* "{%" and "%}" */
	ENG_JINJA_PRINT, ENG_JINJA_PRINT_END, /* "{{" and "}}" */
	ENG_JINJA_NAME, ENG_JINJA_TEXT, ENG_JINJA_INTEGER, ENG_JINJA_SIGN,
};

struct eng_jinja_token {
	enum eng_jinja_kind kind;
	uint32_t line;
	json_t *value;  /* value of data, text and integers; for a name or a sign, its text */
	/* on the first token of an expression with an inline `if`: index of the token `if`; otherwise 0 */
	uint32_t if_at;
};

struct eng_jinja {
	struct eng_jinja_token *token;
	uint32_t n;
};

/*
 * Splits the text of a template into tokens, the last of which is ENG_JINJA_END. Returns errors as eng_jinja_parse().
 * The caller must free the tokens in `t` even after an error.
 */
int eng_jinja_tokens(struct eng_jinja *t, const char *source, struct eng_error *err);

/*
 * Returns the bytes of the white-space character, as Python defines it, that s (n bytes) begins with (`last`: ends
 * with); 0: none.
 */
size_t eng_jinja_space(const char *s, size_t n, bool last);

#define ENG_JINJA_ARGS 16u

struct eng_jinja_args {
	uint32_t n;
	struct {
		const char *name; /* name of a keyword argument; NULL: a positional argument */
		json_t *value;
	} arg[ENG_JINJA_ARGS];
};

/*
 * A scope of names. `up` is the enclosing scope; the outermost is the template's. Each loop and each macro call has its
 * own scope; an `if` has none.
 */
struct eng_jinja_scope {
	json_t *names;
	struct eng_jinja_scope *up;
};

struct eng_jinja_run {
	struct eng_jinja_token *token;
	uint32_t at;
	uint32_t skip;  /* above 0: tokens are parsed, but expressions are not evaluated and nothing is written */
	uint32_t depth; /* nesting of blocks, expressions and calls */
	uint64_t work;  /* cost of the run so far; see eng_jinja_works() */
	struct eng_jinja_scope *scope, *top;
	json_t *kept;       /* list that owns every value of the run */
	json_t *namespaces; /* objects whose attributes `set` may change */
	json_t *macros;     /* name of each macro: index of the token after that name */
	char *out;
	size_t n_out, room;
	time_t now;
	int failed; /* negative errno of the first error; 0: no error */
	struct eng_error *err;
};

/* ---- jinja-run.c ---- */

/*
 * Records an error, with its line number, if it is the first of the run. Returns NULL, so that the caller can return it
 * as a value.
 */
json_t *eng_jinja_fail(struct eng_jinja_run *j, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Makes the run the owner of a new value, and returns the value. If `made` is NULL, records that there is no memory. */
json_t *eng_jinja_keep(struct eng_jinja_run *j, json_t *made);
json_t *eng_jinja_text(struct eng_jinja_run *j, const char *text, size_t n);
json_t *eng_jinja_joined(struct eng_jinja_run *j, const json_t *a, const json_t *b);
/*
 * Adds to the cost of the run: the number of bytes that an operation makes, or a similar measure of its work. Returns
 * false, with an error, if the cost exceeds the limit.
 */
bool eng_jinja_works(struct eng_jinja_run *j, uint64_t amount);
/*
 * eng_jinja_emit() appends a text to the output. eng_jinja_captured() removes the output after position `from` and
 * returns it as a value.
 */
void eng_jinja_emit(struct eng_jinja_run *j, const json_t *text);
json_t *eng_jinja_captured(struct eng_jinja_run *j, size_t from);

/*
 * eng_jinja_look_up() returns the value of a name. eng_jinja_bind() sets it in the innermost scope, or deletes the name
 * there if v is NULL.
 */
json_t *eng_jinja_look_up(const struct eng_jinja_run *j, const char *name);
void eng_jinja_bind(struct eng_jinja_run *j, const char *name, json_t *v);
void eng_jinja_open_scope(struct eng_jinja_run *j, struct eng_jinja_scope *s, struct eng_jinja_scope *up);

/*
 * Functions on the current token. eng_jinja_next() returns the current token and advances to the next one;
 * eng_jinja_sees() tests its kind and text (NULL: any text); eng_jinja_takes() advances if eng_jinja_sees() is true;
 * eng_jinja_expect() advances, or records an error.
 */
struct eng_jinja_token *eng_jinja_next(struct eng_jinja_run *j);
bool eng_jinja_sees(const struct eng_jinja_run *j, enum eng_jinja_kind kind, const char *text);
bool eng_jinja_takes(struct eng_jinja_run *j, enum eng_jinja_kind kind, const char *text);
void eng_jinja_expect(struct eng_jinja_run *j, enum eng_jinja_kind kind, const char *text);
#define eng_jinja_sign(j, text) eng_jinja_takes(j, ENG_JINJA_SIGN, text)
#define eng_jinja_word(j, text) eng_jinja_takes(j, ENG_JINJA_NAME, text)
const char *eng_jinja_name(struct eng_jinja_run *j);
/*
 * Increments the nesting depth; the caller decrements it with depth--. Returns false, with an error, if the nesting is
 * too deep.
 */
bool eng_jinja_enter(struct eng_jinja_run *j);

/* ---- jinja-expression.c, jinja.c ---- */

json_t *eng_jinja_expression(struct eng_jinja_run *j);
/*
 * Evaluates an expression without an inline `if`, as in the condition of an `if` statement or the iterable of a loop.
 */
json_t *eng_jinja_condition(struct eng_jinja_run *j);
/* Calls a macro and returns its output as a text. `at` is the index of the token after the macro's name. */
json_t *eng_jinja_call_macro(struct eng_jinja_run *j, uint32_t at, const struct eng_jinja_args *a);

/* ---- jinja-calls.c ---- */

/*
 * Returns a value as text: a text itself, an integer's digits, True, False, None, or "" for undefined. Returns NULL,
 * with an error, for a list or a mapping.
 */
json_t *eng_jinja_str(struct eng_jinja_run *j, json_t *v);
bool eng_jinja_true(const json_t *v);
bool eng_jinja_equal(const json_t *a, const json_t *b);
bool eng_jinja_in(struct eng_jinja_run *j, json_t *item, json_t *container);

json_t *eng_jinja_filter(struct eng_jinja_run *j, const char *name, json_t *v, const struct eng_jinja_args *a);
bool eng_jinja_test(struct eng_jinja_run *j, const char *name, json_t *v, const struct eng_jinja_args *a);
json_t *eng_jinja_method(struct eng_jinja_run *j, const char *name, json_t *v, const struct eng_jinja_args *a);

#endif
