/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/jinja.c - executes the statements of a template while it parses them. Expressions (jinja-expression.c) are
 * also evaluated while they are parsed.
 *
 * There is no syntax tree. The body of a loop is parsed again for each item. Code that must not run, such as a branch
 * that is not taken, is parsed with `skip` above 0, which only checks its syntax. eng_jinja_parse() parses the whole
 * template in this way.
 */
#include "engine/jinja-priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void body(struct eng_jinja_run *j, const char *const *ends);

/* ---- statements ----------------------------------------------------------------------------------- */

static const char *const endif[] = {"elif", "else", "endif", NULL};
static const char *const endfor[] = {"else", "endfor", NULL};
static const char *const endmacro[] = {"endmacro", NULL};
static const char *const endset[] = {"endset", NULL};
static const char *const endgeneration[] = {"endgeneration", NULL};

/* Executes an `if` statement after the word `if`: runs the first branch whose condition is true. */
static void branches(struct eng_jinja_run *j)
{
	bool done = false, conditional = true;

	while (!j->failed) {
		bool taken;

		j->skip += done;
		taken = !conditional || eng_jinja_true(eng_jinja_condition(j));
		j->skip -= done;
		eng_jinja_expect(j, ENG_JINJA_BLOCK_END, "%}");
		j->skip += done || !taken;
		body(j, endif);
		j->skip -= done || !taken;
		done = done || taken;
		if (eng_jinja_word(j, "endif"))
			break;
		if (!conditional)
			eng_jinja_fail(j, -EINVAL, "endif expected");
		conditional = eng_jinja_word(j, "elif");
		if (!conditional)
			eng_jinja_expect(j, ENG_JINJA_NAME, "else");
	}
}

struct loop {
	/* names of the loop's variables: one, or two if the items are pairs; NULL: there is no second */
	const char *name[2];
	/* token indices: of the loop's `if` condition (0: none); of the first statement of the body */
	uint32_t filter, body;
	json_t *items;
};

/* Binds the loop's variables to item i. */
static void bind_item(struct eng_jinja_run *j, const struct loop *l, size_t i)
{
	json_t *item = json_array_get(l->items, i);

	if (!l->name[1]) {
		eng_jinja_bind(j, l->name[0], item);
		return;
	}
	if (json_array_size(item) != 2)
		eng_jinja_fail(j, -EINVAL, "a loop with two names: pairs expected");
	eng_jinja_bind(j, l->name[0], json_array_get(item, 0));
	eng_jinja_bind(j, l->name[1], json_array_get(item, 1));
}

static json_t *loop_variable(struct eng_jinja_run *j, const struct loop *l, size_t i)
{
	json_int_t n = (json_int_t)json_array_size(l->items), at = (json_int_t)i;
	json_t *v = eng_jinja_keep(j, json_pack("{s:I, s:I, s:I, s:I, s:I, s:b, s:b}", "index", at + 1, "index0", at, "length", n,
	                                        "revindex", n - at, "revindex0", n - at - 1, "first", !at, "last", at == n - 1));

	if (v && ((at && json_object_set(v, "previtem", json_array_get(l->items, i - 1))) ||
	          (at < n - 1 && json_object_set(v, "nextitem", json_array_get(l->items, i + 1)))))
		return eng_jinja_fail(j, -ENOMEM, "no memory for a dialogue");
	return v;
}

/* Removes the items for which the loop's `if` condition is false. */
static void filter_items(struct eng_jinja_run *j, struct loop *l)
{
	struct eng_jinja_scope own, *outer = j->scope;
	json_t *left = eng_jinja_keep(j, json_array());

	for (size_t i = 0; !j->failed && i < json_array_size(l->items); i++) {
		eng_jinja_open_scope(j, &own, outer);
		bind_item(j, l, i);
		j->at = l->filter;
		if (eng_jinja_true(eng_jinja_expression(j)) && json_array_append(left, json_array_get(l->items, i)))
			eng_jinja_fail(j, -ENOMEM, "no memory for a dialogue");
		j->scope = outer;
	}
	l->items = left;
}

static json_t *items_of(struct eng_jinja_run *j, json_t *v)
{
	const char *key;
	json_t *keys, *value;

	if (j->skip || j->failed || json_is_array(v))
		return v;
	keys = eng_jinja_keep(j, json_array());
	if (v && !json_is_object(v))
		return eng_jinja_fail(j, -EINVAL, "a loop over a list or a mapping expected");
	json_object_foreach(v, key, value)
		if (json_array_append_new(keys, json_string_nocheck(key)))
			return eng_jinja_fail(j, -ENOMEM, "no memory for a dialogue");
	return keys; /* an empty list for an undefined value */
}

/* Executes a `for` statement after its head: runs the body for each item, or the `else` part if there are no items. */
static void run_loop(struct eng_jinja_run *j, const struct loop *l)
{
	struct eng_jinja_scope own, *outer = j->scope;
	size_t n = j->skip ? 0 : json_array_size(l->items);

	for (size_t i = 0; !j->failed && i < n; i++) {
		eng_jinja_open_scope(j, &own, outer);
		eng_jinja_bind(j, "loop", loop_variable(j, l, i));
		bind_item(j, l, i);
		j->at = l->body;
		body(j, endfor);
		j->scope = outer;
	}
	j->skip += !n;
	if (!n)
		body(j, endfor);
	j->skip -= !n;
	if (!eng_jinja_word(j, "else"))
		return;
	eng_jinja_expect(j, ENG_JINJA_BLOCK_END, "%}");
	j->skip += !!n;
	body(j, endfor);
	j->skip -= !!n;
}

static void loop(struct eng_jinja_run *j)
{
	struct loop l = {.name[0] = eng_jinja_name(j)};

	if (eng_jinja_sign(j, ","))
		l.name[1] = eng_jinja_name(j);
	eng_jinja_expect(j, ENG_JINJA_NAME, "in");
	l.items = items_of(j, eng_jinja_condition(j));
	if (eng_jinja_word(j, "if")) {
		l.filter = j->at;
		j->skip++;
		eng_jinja_expression(j);
		j->skip--;
	}
	eng_jinja_expect(j, ENG_JINJA_BLOCK_END, "%}");
	l.body = j->at;
	if (l.filter && !j->skip && !j->failed)
		filter_items(j, &l);
	if (j->failed)
		return;
	j->at = l.body;
	run_loop(j, &l);
	eng_jinja_expect(j, ENG_JINJA_NAME, "endfor");
}

/*
 * Adds the memory of a value and of all values in it to the cost of the run. Limits their nesting to 100 levels,
 * because the functions that walk through values are recursive.
 */
static void weigh(struct eng_jinja_run *j, json_t *v)
{
	const char *key;
	json_t *within;
	size_t i;

	if (!eng_jinja_works(j, sizeof(json_t)) || !eng_jinja_enter(j))
		return;
	json_array_foreach(v, i, within)
		weigh(j, within);
	json_object_foreach(v, key, within)
		weigh(j, within);
	j->depth--;
}

/* Sets an attribute of a namespace. Lists and mappings are copied, so that no value ever contains itself. */
static void set_attribute(struct eng_jinja_run *j, const char *of, const char *attribute, json_t *v)
{
	json_t *ns = eng_jinja_look_up(j, of);
	bool known = false;

	if (j->skip || j->failed)
		return;
	for (size_t i = 0; i < json_array_size(j->namespaces); i++)
		known = known || json_array_get(j->namespaces, i) == ns;
	if (known)
		weigh(j, v);
	else
		eng_jinja_fail(j, -EINVAL, "set %.60s.%.60s: a namespace() expected", of, attribute);
	if (j->failed)
		return;
	if (!v)
		json_object_del(ns, attribute);
	else if (json_object_set_new_nocheck(ns, attribute, json_deep_copy(v)))
		eng_jinja_fail(j, -ENOMEM, "no memory for a dialogue");
}

static void set(struct eng_jinja_run *j)
{
	const char *target = eng_jinja_name(j), *attribute = eng_jinja_sign(j, ".") ? eng_jinja_name(j) : NULL;
	size_t from = j->n_out;
	json_t *v;

	if (eng_jinja_sign(j, "=")) {
		v = eng_jinja_expression(j);
		if (!j->failed && eng_jinja_sign(j, ","))
			eng_jinja_fail(j, -EINVAL, "set: one value expected");
	} else {
		eng_jinja_expect(j, ENG_JINJA_BLOCK_END, "%}");
		body(j, endset);
		eng_jinja_expect(j, ENG_JINJA_NAME, "endset");
		v = j->skip || j->failed ? NULL : eng_jinja_captured(j, from);
	}
	if (attribute)
		set_attribute(j, target, attribute, v);
	else
		eng_jinja_bind(j, target, v);
}

/* ---- macros ----------------------------------------------------------------------------------------- */

/*
 * Parses a macro's parameters, from "(" on. Binds each parameter to the argument with its position or name, or to its
 * default.
 */
static void parameters(struct eng_jinja_run *j, const struct eng_jinja_args *a)
{
	uint32_t n = 0, taken = 0;

	eng_jinja_expect(j, ENG_JINJA_SIGN, "(");
	for (; !j->failed && !eng_jinja_sign(j, ")"); n++) {
		const char *parameter = eng_jinja_name(j);
		bool given = false;
		json_t *v = NULL, *other;

		for (uint32_t i = 0; i < a->n; i++)
			if (a->arg[i].name ? !strcmp(a->arg[i].name, parameter) : i == n) {
				given = true;
				taken++;
				v = a->arg[i].value;
			}
		j->skip += given;
		other = eng_jinja_sign(j, "=") ? eng_jinja_expression(j) : NULL;
		j->skip -= given;
		eng_jinja_bind(j, parameter, given ? v : other);
		if (!eng_jinja_sees(j, ENG_JINJA_SIGN, ")"))
			eng_jinja_expect(j, ENG_JINJA_SIGN, ",");
	}
	if (!j->skip && taken != a->n)
		eng_jinja_fail(j, -EINVAL, "the macro is called with arguments that it does not have");
}

json_t *eng_jinja_call_macro(struct eng_jinja_run *j, uint32_t at, const struct eng_jinja_args *a)
{
	struct eng_jinja_scope own, *outer = j->scope;
	uint32_t back = j->at;
	size_t from = j->n_out;

	if (!eng_jinja_enter(j))
		return NULL;
	eng_jinja_open_scope(j, &own, j->top);
	j->at = at;
	parameters(j, a);
	eng_jinja_expect(j, ENG_JINJA_BLOCK_END, "%}");
	body(j, endmacro);
	j->scope = outer;
	j->depth--;
	if (j->failed)
		return NULL;
	j->at = back;
	return eng_jinja_captured(j, from);
}

/* Executes a `macro` statement: records where the macro begins. Its body runs when the macro is called. */
static void macro(struct eng_jinja_run *j)
{
	const char *own = eng_jinja_name(j);

	if (!j->skip && !j->failed && json_object_set_new_nocheck(j->macros, own, json_integer(j->at)))
		eng_jinja_fail(j, -ENOMEM, "no memory for a dialogue");
	j->skip++;
	parameters(j, &(struct eng_jinja_args){.n = 0});
	eng_jinja_expect(j, ENG_JINJA_BLOCK_END, "%}");
	body(j, endmacro);
	eng_jinja_expect(j, ENG_JINJA_NAME, "endmacro");
	j->skip--;
}

/* ---- a whole template's statements -------------------------------------------------------------------- */

static void statement(struct eng_jinja_run *j)
{
	if (eng_jinja_word(j, "if")) {
		branches(j);
	} else if (eng_jinja_word(j, "for")) {
		loop(j);
	} else if (eng_jinja_word(j, "set")) {
		set(j);
	} else if (eng_jinja_word(j, "macro")) {
		macro(j);
	} else if (eng_jinja_word(j, "generation")) { /* runs its body; transformers marks answers for training by it */
		eng_jinja_expect(j, ENG_JINJA_BLOCK_END, "%}");
		body(j, endgeneration);
		eng_jinja_expect(j, ENG_JINJA_NAME, "endgeneration");
	} else {
		eng_jinja_fail(j, -EINVAL, "the statement \"%.60s\" is not supported", eng_jinja_name(j));
	}
	eng_jinja_expect(j, ENG_JINJA_BLOCK_END, "%}");
}

/*
 * Executes statements up to a block that begins with one of the words `ends`; this word is then the current token.
 * NULL: up to the end of the template.
 */
static void body(struct eng_jinja_run *j, const char *const *ends)
{
	if (!eng_jinja_enter(j))
		return;
	while (!j->failed && !(eng_jinja_sees(j, ENG_JINJA_END, NULL) && !ends)) {
		if (eng_jinja_sees(j, ENG_JINJA_DATA, NULL)) {
			eng_jinja_emit(j, eng_jinja_next(j)->value);
		} else if (eng_jinja_takes(j, ENG_JINJA_PRINT, NULL)) {
			json_t *v = eng_jinja_expression(j);

			if (!j->skip && !j->failed)
				eng_jinja_emit(j, eng_jinja_str(j, v));
			eng_jinja_expect(j, ENG_JINJA_PRINT_END, "}}");
		} else if (eng_jinja_takes(j, ENG_JINJA_BLOCK, NULL)) {
			for (const char *const *end = ends; end && *end; end++)
				if (eng_jinja_sees(j, ENG_JINJA_NAME, *end)) {
					j->depth--;
					return;
				}
			statement(j);
		} else {
			eng_jinja_fail(j, -EINVAL, "the template ends within a block, %s expected", ends ? ends[0] : "text");
		}
	}
	j->depth--;
}

/* ---- a whole template ------------------------------------------------------------------------------ */

static int run(const struct eng_jinja *t, bool skip, json_t *variables, time_t now, char **ret, size_t *ret_n, struct eng_error *err)
{
	struct eng_jinja_scope given = {.names = variables}, top;
	struct eng_jinja_run j = {.token = t->token, .skip = skip, .now = now, .kept = json_array(), .namespaces = json_array(),
	                          .macros = json_object(), .err = err};

	if (!j.kept || !j.namespaces || !j.macros)
		eng_jinja_fail(&j, -ENOMEM, "no memory for a dialogue");
	eng_jinja_open_scope(&j, &top, &given);
	j.top = &top;
	body(&j, NULL);
	eng_jinja_emit(&j, eng_jinja_text(&j, "", 1)); /* terminating NUL */
	json_decref(j.macros);
	json_decref(j.namespaces);
	json_decref(j.kept);
	if (j.failed || !ret) {
		free(j.out);
		return j.failed;
	}
	*ret = j.out;
	*ret_n = j.n_out - 1;
	return 0;
}

int eng_jinja_parse(struct eng_jinja **ret, const char *source, struct eng_error *err)
{
	struct eng_jinja *t = calloc(1, sizeof(*t));
	int r;

	if (!t)
		return eng_fail(err, -ENOMEM, "no memory for a chat template");
	r = eng_jinja_tokens(t, source, err);
	r = r ? r : run(t, true, NULL, 0, NULL, NULL, err);
	if (r)
		eng_jinja_free(t);
	else
		*ret = t;
	return r;
}

void eng_jinja_free(struct eng_jinja *t)
{
	for (uint32_t i = 0; t && i < t->n; i++)
		json_decref(t->token[i].value);
	if (t)
		free(t->token);
	free(t);
}

int eng_jinja_render(const struct eng_jinja *t, json_t *variables, time_t now, char **ret, size_t *ret_n, struct eng_error *err)
{
	return run(t, false, variables, now, ret, ret_n, err);
}
