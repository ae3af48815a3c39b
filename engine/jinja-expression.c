/* SPDX-License-Identifier: Apache-2.0 */
/* engine/jinja-expression.c - evaluates the expressions of a template while it parses them (see jinja.c). */
#include "engine/jinja-priv.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ---- calls ---------------------------------------------------------------------------------------- */

/* Parses the arguments of a call, from after "(" to ")". */
static void arguments(struct eng_jinja_run *j, struct eng_jinja_args *a)
{
	a->n = 0;
	while (!j->failed && !eng_jinja_sign(j, ")")) {
		const struct eng_jinja_token *t = &j->token[j->at];
		bool named = t->kind == ENG_JINJA_NAME && t[1].kind == ENG_JINJA_SIGN && !strcmp(json_string_value(t[1].value), "=");

		if (a->n == ENG_JINJA_ARGS) {
			eng_jinja_fail(j, -EINVAL, "at most %u arguments expected", ENG_JINJA_ARGS);
			return;
		}
		if (named)
			j->at += 2;
		a->arg[a->n].name = named ? json_string_value(t->value) : NULL;
		a->arg[a->n++].value = eng_jinja_expression(j);
		if (!eng_jinja_sees(j, ENG_JINJA_SIGN, ")"))
			eng_jinja_expect(j, ENG_JINJA_SIGN, ",");
	}
}

static json_t *make_namespace(struct eng_jinja_run *j, const struct eng_jinja_args *a)
{
	json_t *ns = eng_jinja_keep(j, json_object());

	for (uint32_t i = 0; ns && i < a->n; i++) {
		if (!a->arg[i].name)
			return eng_jinja_fail(j, -EINVAL, "namespace(): arguments with names expected");
		if (a->arg[i].value && json_object_set_nocheck(ns, a->arg[i].name, a->arg[i].value))
			return eng_jinja_fail(j, -ENOMEM, "no memory for a dialogue");
	}
	if (ns && json_array_append(j->namespaces, ns))
		return eng_jinja_fail(j, -ENOMEM, "no memory for a dialogue");
	return ns;
}

static const char *const functions[] = {"namespace", "raise_exception", "strftime_now"};

/*
 * Returns the value of a function's name that is not followed by a call, so that a template can test whether the
 * function is defined.
 */
static json_t *function_itself(struct eng_jinja_run *j, const char *word)
{
	for (size_t i = 0; i < sizeof(functions) / sizeof(*functions); i++)
		if (!strcmp(functions[i], word))
			return eng_jinja_keep(j, json_real(0));
	return json_object_get(j->macros, word) ? eng_jinja_keep(j, json_real(0)) : NULL;
}

static json_t *call_function(struct eng_jinja_run *j, const char *function, const struct eng_jinja_args *a)
{
	const char *text = a->n ? json_string_value(a->arg[0].value) : NULL;
	json_t *macro = json_object_get(j->macros, function);
	char date[128];
	struct tm tm;

	if (macro)
		return eng_jinja_call_macro(j, (uint32_t)json_integer_value(macro), a);
	if (!strcmp(function, functions[0]))
		return make_namespace(j, a);
	if (!strcmp(function, functions[1]) && text)
		return eng_jinja_fail(j, -EINVAL, "the template says: %.300s", text);
	if (!strcmp(function, functions[2]) && text && localtime_r(&j->now, &tm))
		return eng_jinja_text(j, date, strftime(date, sizeof(date), text, &tm));
	return eng_jinja_fail(j, -EINVAL, "%.60s() is not supported, or not with these arguments", function);
}

/* ---- expressions, from the highest to the lowest precedence ---------------------------------------- */

static json_t *list(struct eng_jinja_run *j, const char *close, json_t *first)
{
	json_t *all = eng_jinja_keep(j, json_array());

	if (first && json_array_append(all, first))
		return eng_jinja_fail(j, -ENOMEM, "no memory for a dialogue");
	while (!j->failed && !eng_jinja_sign(j, close)) {
		json_t *item = eng_jinja_expression(j);

		if (!j->skip && (!item || json_array_append(all, item)))
			return eng_jinja_fail(j, -EINVAL, "an undefined value in a list is not supported");
		if (!eng_jinja_sees(j, ENG_JINJA_SIGN, close))
			eng_jinja_expect(j, ENG_JINJA_SIGN, ",");
	}
	return all;
}

static json_t *mapping(struct eng_jinja_run *j)
{
	json_t *all = eng_jinja_keep(j, json_object());

	while (!j->failed && !eng_jinja_sign(j, "}")) {
		json_t *key = eng_jinja_expression(j), *v;

		eng_jinja_expect(j, ENG_JINJA_SIGN, ":");
		v = eng_jinja_expression(j);
		if (!j->skip && (!json_is_string(key) || !v || json_object_set_nocheck(all, json_string_value(key), v)))
			return eng_jinja_fail(j, -EINVAL, "a mapping from texts to defined values expected");
		if (!eng_jinja_sees(j, ENG_JINJA_SIGN, "}"))
			eng_jinja_expect(j, ENG_JINJA_SIGN, ",");
	}
	return all;
}

static json_t *in_brackets(struct eng_jinja_run *j)
{
	json_t *v;

	if (eng_jinja_sign(j, ")"))
		return eng_jinja_keep(j, json_array());
	v = eng_jinja_expression(j);
	if (eng_jinja_sign(j, ","))
		return list(j, ")", v);
	eng_jinja_expect(j, ENG_JINJA_SIGN, ")");
	return v;
}

static json_t *named_value(struct eng_jinja_run *j)
{
	static const char *const constants[] = {"true", "True", "false", "False", "none", "None"};
	const char *word = eng_jinja_name(j);
	struct eng_jinja_args a;
	json_t *v;

	for (int i = 0; i < 6; i++)
		if (!strcmp(word, constants[i]))
			return i < 2 ? json_true() : i < 4 ? json_false() : json_null();
	if (!eng_jinja_sign(j, "(")) {
		v = j->skip ? NULL : eng_jinja_look_up(j, word);
		return v || j->skip ? v : function_itself(j, word);
	}
	arguments(j, &a);
	return j->skip || j->failed ? NULL : call_function(j, word, &a);
}

static json_t *primary(struct eng_jinja_run *j)
{
	if (eng_jinja_sees(j, ENG_JINJA_INTEGER, NULL))
		return eng_jinja_next(j)->value;
	if (eng_jinja_sees(j, ENG_JINJA_TEXT, NULL)) {
		json_t *v = eng_jinja_next(j)->value;

		while (!j->failed && eng_jinja_sees(j, ENG_JINJA_TEXT, NULL)) /* adjacent texts are concatenated */
			v = eng_jinja_joined(j, v, eng_jinja_next(j)->value);
		return v;
	}
	if (eng_jinja_sign(j, "("))
		return in_brackets(j);
	if (eng_jinja_sign(j, "["))
		return list(j, "]", NULL);
	if (eng_jinja_sign(j, "{"))
		return mapping(j);
	return named_value(j);
}

/* Returns item i of a list; a negative i counts from the end of the list. NULL: there is no such item. */
static json_t *at(const json_t *all, json_int_t i)
{
	json_int_t n = (json_int_t)json_array_size(all);

	i += i < 0 ? n : 0;
	return i >= 0 && i < n ? json_array_get(all, (size_t)i) : NULL;
}

static json_t *item(struct eng_jinja_run *j, json_t *v, const json_t *key)
{
	if (json_is_object(v) && json_is_string(key))
		return json_object_get(v, json_string_value(key));
	if (json_is_array(v) && json_is_integer(key))
		return at(v, json_integer_value(key));
	return eng_jinja_fail(j, -EINVAL, v ? "this index is not supported: a text of a mapping, or an integer of a list, expected"
	                                    : "an item of what is undefined");
}

/* Returns a bound of a slice, clamped to [low, high]; `none` if the bound is missing. */
static json_int_t bound(struct eng_jinja_run *j, const json_t *v, json_int_t n, json_int_t none, json_int_t low, json_int_t high)
{
	json_int_t i = json_integer_value(v);

	if (!v || json_is_null(v))
		return none;
	if (!json_is_integer(v))
		eng_jinja_fail(j, -EINVAL, "a slice: integers expected");
	i += i < 0 ? n : 0;
	return i < low ? low : i > high ? high : i;
}

/* Returns a slice of a list, as in Python. `part` has the values before, between and after the colons. */
static json_t *slice(struct eng_jinja_run *j, const json_t *v, json_t *const part[3])
{
	json_int_t n = (json_int_t)json_array_size(v), step = part[2] && !json_is_null(part[2]) ? json_integer_value(part[2]) : 1;
	bool down = step < 0;
	json_int_t from = bound(j, part[0], n, down ? n - 1 : 0, down ? -1 : 0, down ? n - 1 : n);
	json_int_t to = bound(j, part[1], n, down ? -1 : n, down ? -1 : 0, down ? n - 1 : n);
	json_t *some = eng_jinja_keep(j, json_array());

	if (!json_is_array(v) || !step || step < -n - 1 || step > n + 1)
		return eng_jinja_fail(j, -EINVAL, "this slice is not supported: one of a list expected, with a small step");
	eng_jinja_works(j, sizeof(v) * (uint64_t)n);
	for (json_int_t i = from; !j->failed && (down ? i > to : i < to); i += step)
		if (json_array_append(some, json_array_get(v, (size_t)i)))
			return eng_jinja_fail(j, -ENOMEM, "no memory for a dialogue");
	return some;
}

/* Parses and evaluates an index or a slice, from after "[". */
static json_t *subscript(struct eng_jinja_run *j, json_t *v)
{
	json_t *part[3] = {NULL};
	int colons = 0;

	while (!j->failed && !eng_jinja_sign(j, "]")) {
		if (colons < 2 && eng_jinja_sign(j, ":"))
			colons++;
		else if (!part[colons])
			part[colons] = eng_jinja_expression(j);
		else
			return eng_jinja_fail(j, -EINVAL, "\"]\" expected");
		if (j->skip)
			part[colons] = NULL;
	}
	if (j->skip || j->failed)
		return NULL;
	return colons ? slice(j, v, part) : item(j, v, part[0]);
}

/* Parses and evaluates an attribute or a method call, from after ".". */
static json_t *member(struct eng_jinja_run *j, json_t *v)
{
	static const char *const methods[] = {"clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem", "setdefault",
	                                      "update", "values"};
	const char *word = eng_jinja_name(j);
	struct eng_jinja_args a;

	if (eng_jinja_sign(j, "(")) {
		arguments(j, &a);
		return j->skip || j->failed ? NULL : eng_jinja_method(j, word, v, &a);
	}
	if (j->skip || j->failed)
		return NULL;
	for (size_t i = 0; i < sizeof(methods) / sizeof(*methods); i++)
		if (!strcmp(word, methods[i]))
			return eng_jinja_fail(j, -EINVAL, "the method %s without a call is not supported", word);
	if (!v || json_is_null(v) || json_is_array(v) || json_is_string(v))
		return v ? NULL : eng_jinja_fail(j, -EINVAL, "attribute %.60s of what is undefined", word);
	return json_object_get(v, word);
}

static json_t *postfix(struct eng_jinja_run *j, json_t *v)
{
	while (!j->failed) {
		if (eng_jinja_sign(j, "."))
			v = member(j, v);
		else if (eng_jinja_sign(j, "["))
			v = subscript(j, v);
		else
			break;
	}
	return v;
}

static json_t *tested(struct eng_jinja_run *j, json_t *v)
{
	static const char *const behind[] = {"else", "or", "and", "is"};
	bool negated = eng_jinja_word(j, "not"), argument, is;
	const char *test = eng_jinja_name(j);
	struct eng_jinja_args a = {.n = 0};

	if (eng_jinja_sign(j, "(")) {
		arguments(j, &a);
	} else {
		argument = eng_jinja_sees(j, ENG_JINJA_TEXT, NULL) || eng_jinja_sees(j, ENG_JINJA_INTEGER, NULL) ||
		           eng_jinja_sees(j, ENG_JINJA_NAME, NULL) || eng_jinja_sees(j, ENG_JINJA_SIGN, "[");
		for (size_t i = 0; i < sizeof(behind) / sizeof(*behind); i++)
			argument = argument && !eng_jinja_sees(j, ENG_JINJA_NAME, behind[i]);
		if (argument)
			a.arg[a.n++].value = postfix(j, primary(j));
	}
	if (j->skip || j->failed)
		return NULL;
	is = eng_jinja_test(j, test, v, &a);
	return json_boolean(is != negated);
}

static json_t *filtered(struct eng_jinja_run *j, json_t *v)
{
	while (!j->failed) {
		if (eng_jinja_sign(j, "|")) {
			const char *filter = eng_jinja_name(j);
			struct eng_jinja_args a = {.n = 0};

			if (eng_jinja_sign(j, "("))
				arguments(j, &a);
			v = j->skip || j->failed ? NULL : eng_jinja_filter(j, filter, v, &a);
		} else if (eng_jinja_word(j, "is")) {
			v = tested(j, v);
		} else {
			break;
		}
	}
	return v;
}

static json_t *arithmetic(struct eng_jinja_run *j, char sign, json_t *a, json_t *b)
{
	long long x = json_integer_value(a), y = json_integer_value(b), v = 0;
	bool over = false;

	if (j->skip || j->failed)
		return NULL;
	if (sign == '+' && json_is_string(a) && json_is_string(b))
		return eng_jinja_joined(j, a, b);
	if (sign == '+' && json_is_array(a) && json_is_array(b)) {
		json_t *both = eng_jinja_works(j, sizeof(a) * (json_array_size(a) + json_array_size(b))) ? eng_jinja_keep(j, json_copy(a)) : NULL;

		return !both || json_array_extend(both, b) ? eng_jinja_fail(j, -ENOMEM, "no memory for a dialogue") : both;
	}
	if (!json_is_integer(a) || !json_is_integer(b))
		return eng_jinja_fail(j, -EINVAL, "%c of these values: two integers expected%s", sign,
		                      sign == '+' ? ", or two texts, or two lists" : "");
	if ((sign == '/' || sign == '%') && (y == 0 || y == -1))
		return eng_jinja_fail(j, -EINVAL, "a division by %lld is not supported", y);
	if (sign == '+')
		over = __builtin_add_overflow(x, y, &v);
	else if (sign == '-')
		over = __builtin_sub_overflow(x, y, &v);
	else if (sign == '*')
		over = __builtin_mul_overflow(x, y, &v);
	else if (sign == '/')
		v = x / y - (x % y && (x < 0) != (y < 0)); /* floor division, as in Python */
	else
		v = x % y + (x % y && (x < 0) != (y < 0) ? y : 0);
	return over ? eng_jinja_fail(j, -EINVAL, "an integer of 64 bits expected") : eng_jinja_keep(j, json_integer(v));
}

static json_t *unary(struct eng_jinja_run *j)
{
	bool minus = eng_jinja_sign(j, "-");
	json_t *v = postfix(j, primary(j));

	v = filtered(j, minus ? arithmetic(j, '-', eng_jinja_keep(j, json_integer(0)), v) : v);
	if (eng_jinja_sees(j, ENG_JINJA_SIGN, "**") || eng_jinja_sees(j, ENG_JINJA_SIGN, "/"))
		return eng_jinja_fail(j, -EINVAL, "numbers that are no integers are not supported");
	return v;
}

static json_t *product(struct eng_jinja_run *j)
{
	json_t *v = unary(j);

	while (!j->failed) {
		char sign = eng_jinja_sign(j, "*") ? '*' : eng_jinja_sign(j, "//") ? '/' : eng_jinja_sign(j, "%") ? '%' : 0;

		if (!sign)
			break;
		v = arithmetic(j, sign, v, unary(j));
	}
	return v;
}

static json_t *concatenation(struct eng_jinja_run *j)
{
	json_t *v = product(j);

	while (!j->failed && eng_jinja_sign(j, "~")) {
		json_t *right = product(j);

		v = j->skip || j->failed ? NULL : eng_jinja_joined(j, eng_jinja_str(j, v), eng_jinja_str(j, right));
	}
	return v;
}

static json_t *sum(struct eng_jinja_run *j)
{
	json_t *v = concatenation(j);

	while (!j->failed) {
		char sign = eng_jinja_sign(j, "+") ? '+' : eng_jinja_sign(j, "-") ? '-' : 0;

		if (!sign)
			break;
		v = arithmetic(j, sign, v, concatenation(j));
	}
	return v;
}

/*
 * Compares two values: returns a negative number, 0 or a positive number. Only two integers or two texts have an order.
 */
static int order(struct eng_jinja_run *j, const json_t *a, const json_t *b)
{
	json_int_t x = json_integer_value(a), y = json_integer_value(b);
	size_t n = json_string_length(a), m = json_string_length(b);
	int c;

	if (json_is_integer(a) && json_is_integer(b))
		return x < y ? -1 : x > y;
	if (!json_is_string(a) || !json_is_string(b)) {
		eng_jinja_fail(j, -EINVAL, "an order of these values: two integers, or two texts, expected");
		return 0;
	}
	/* the byte order of UTF-8 texts is the order of their characters */
	c = memcmp(json_string_value(a), json_string_value(b), n < m ? n : m);
	return c ? c : n < m ? -1 : n > m;
}

enum comparison { NONE, EQUAL, UNEQUAL, IN, NOT_IN, AT_MOST, AT_LEAST, BELOW, ABOVE };

static enum comparison comparison(struct eng_jinja_run *j)
{
	static const char *const signs[] = {[EQUAL] = "==", [UNEQUAL] = "!=", [AT_MOST] = "<=", [AT_LEAST] = ">=", [BELOW] = "<", [ABOVE] = ">"};

	for (enum comparison c = EQUAL; c <= ABOVE; c++)
		if (signs[c] && eng_jinja_sign(j, signs[c]))
			return c;
	if (eng_jinja_word(j, "in"))
		return IN;
	if (!eng_jinja_word(j, "not"))
		return NONE;
	if (!eng_jinja_word(j, "in"))
		eng_jinja_fail(j, -EINVAL, "\"in\" behind \"not\" expected");
	return NOT_IN;
}

static bool holds(struct eng_jinja_run *j, enum comparison c, json_t *a, json_t *b)
{
	if (c == EQUAL || c == UNEQUAL)
		return eng_jinja_equal(a, b) == (c == EQUAL);
	if (c == IN || c == NOT_IN)
		return eng_jinja_in(j, a, b) == (c == IN);
	return c == AT_MOST ? order(j, a, b) <= 0 : c == AT_LEAST ? order(j, a, b) >= 0 : c == BELOW ? order(j, a, b) < 0 : order(j, a, b) > 0;
}

/* Evaluates comparisons. A chain such as a < b < c is true if all its comparisons are. */
static json_t *compare(struct eng_jinja_run *j)
{
	json_t *left = sum(j), *result = NULL;

	for (enum comparison c; !j->failed && (c = comparison(j));) {
		json_t *right = sum(j);

		if (!j->skip && !j->failed && (!result || json_is_true(result)))
			result = json_boolean(holds(j, c, left, right));
		left = right;
	}
	return result ? result : left;
}

static json_t *negation(struct eng_jinja_run *j)
{
	json_t *v;

	if (!eng_jinja_word(j, "not"))
		return compare(j);
	if (!eng_jinja_enter(j))
		return NULL;
	v = negation(j);
	j->depth--;
	return json_boolean(!eng_jinja_true(v));
}

/*
 * Evaluates `and`. The result of `and` and `or` is the operand that decides; the operands after it are not evaluated.
 */
static json_t *both(struct eng_jinja_run *j)
{
	json_t *v = negation(j);

	while (!j->failed && eng_jinja_word(j, "and")) {
		bool decided = !eng_jinja_true(v);
		json_t *right;

		j->skip += decided;
		right = negation(j);
		j->skip -= decided;
		v = decided ? v : right;
	}
	return v;
}

json_t *eng_jinja_condition(struct eng_jinja_run *j)
{
	json_t *v = both(j);

	while (!j->failed && eng_jinja_word(j, "or")) {
		bool decided = eng_jinja_true(v);
		json_t *right;

		j->skip += decided;
		right = both(j);
		j->skip -= decided;
		v = decided ? v : right;
	}
	return v;
}

/* Evaluates `a if condition else b`. The condition, which begins after the token `if_at`, is evaluated first. */
static json_t *choice(struct eng_jinja_run *j, uint32_t if_at)
{
	uint32_t begin = j->at, behind;
	json_t *v = NULL, *other;
	bool first;

	j->at = if_at + 1;
	first = eng_jinja_true(eng_jinja_condition(j));
	behind = j->at;
	if (first && !j->failed) {
		j->at = begin;
		v = eng_jinja_condition(j);
	}
	if (j->failed)
		return NULL;
	j->at = behind;
	j->skip += first;
	other = eng_jinja_word(j, "else") ? eng_jinja_expression(j) : NULL;
	j->skip -= first;
	return first ? v : other;
}

json_t *eng_jinja_expression(struct eng_jinja_run *j)
{
	struct eng_jinja_token *begin = &j->token[j->at];
	json_t *v;

	if (!eng_jinja_enter(j))
		return NULL;
	if (begin->if_at && !j->skip) {
		v = choice(j, begin->if_at);
	} else {
		v = eng_jinja_condition(j);
		if (eng_jinja_sees(j, ENG_JINJA_NAME, "if")) {
			begin->if_at = j->at;
			eng_jinja_next(j);
			eng_jinja_condition(j);
			if (eng_jinja_word(j, "else"))
				eng_jinja_expression(j);
		}
	}
	j->depth--;
	return v;
}
