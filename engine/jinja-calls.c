/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/jinja-calls.c - operations on the values of a template: comparisons, and the filters, tests and methods that
 * chat templates use. To add a filter or method, write a function and add a line to a table.
 */
#include "engine/jinja-priv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef json_t *(*call)(struct eng_jinja_run *j, json_t *v, const struct eng_jinja_args *a);

/* ---- comparisons ---------------------------------------------------------------------------------- */

bool eng_jinja_true(const json_t *v)
{
	switch (v ? json_typeof(v) : JSON_NULL) {
	case JSON_TRUE:
	case JSON_REAL: /* a real number represents a function */
		return true;
	case JSON_INTEGER:
		return json_integer_value(v) != 0;
	case JSON_STRING:
		return json_string_length(v) > 0;
	case JSON_ARRAY:
		return json_array_size(v) > 0;
	case JSON_OBJECT:
		return json_object_size(v) > 0;
	default:
		return false;
	}
}

/* Returns whether a value is an integer or a boolean. As in Python, True equals 1 and False equals 0. */
static bool is_number(const json_t *v, json_int_t *ret)
{
	*ret = json_is_boolean(v) ? json_is_true(v) : json_integer_value(v);
	return json_is_boolean(v) || json_is_integer(v);
}

bool eng_jinja_equal(const json_t *a, const json_t *b)
{
	json_int_t x, y;

	if (is_number(a, &x) && is_number(b, &y))
		return x == y;
	return a && b ? json_equal(a, b) : !a && !b;
}

static bool finds(const json_t *text, const json_t *part)
{
	return memmem(json_string_value(text), json_string_length(text), json_string_value(part), json_string_length(part));
}

bool eng_jinja_in(struct eng_jinja_run *j, json_t *item, json_t *container)
{
	size_t i;
	json_t *v;

	if (json_is_string(container) && json_is_string(item))
		return finds(container, item);
	if (json_is_object(container) && json_is_string(item))
		return json_object_get(container, json_string_value(item));
	json_array_foreach(container, i, v)
		if (eng_jinja_equal(v, item))
			return true;
	if (container && !json_is_array(container))
		eng_jinja_fail(j, -EINVAL, "\"in\": a text in a text or mapping, or a value in a list, expected");
	return false;
}

json_t *eng_jinja_str(struct eng_jinja_run *j, json_t *v)
{
	char digits[32];

	switch (v ? json_typeof(v) : JSON_STRING) {
	case JSON_STRING:
		return v ? v : eng_jinja_text(j, "", 0);
	case JSON_INTEGER:
		return eng_jinja_text(j, digits, (size_t)snprintf(digits, sizeof(digits), "%" JSON_INTEGER_FORMAT, json_integer_value(v)));
	case JSON_TRUE:
		return eng_jinja_text(j, "True", 4);
	case JSON_FALSE:
		return eng_jinja_text(j, "False", 5);
	case JSON_NULL:
		return eng_jinja_text(j, "None", 4);
	default:
		return eng_jinja_fail(j, -EINVAL, "a list or a mapping as text is not supported");
	}
}

/* ---- arguments ------------------------------------------------------------------------------------ */

/* Returns the argument at position `at` or with the name `name`; NULL: there is none. */
static json_t *argument(const struct eng_jinja_args *a, uint32_t at, const char *name)
{
	for (uint32_t i = 0; i < a->n; i++)
		if (a->arg[i].name ? name && !strcmp(a->arg[i].name, name) : i == at)
			return a->arg[i].value;
	return NULL;
}

static json_t *bad_arguments(struct eng_jinja_run *j, const char *what, const char *name)
{
	return eng_jinja_fail(j, -EINVAL, "the %s %.60s is not supported, or not of this value or with these arguments", what, name);
}

/* ---- texts ---------------------------------------------------------------------------------------- */

/* Removes characters in `of` (NULL: white space) from the beginning and the end of a text. */
static json_t *stripped(struct eng_jinja_run *j, const json_t *v, const json_t *of, bool left, bool right)
{
	const char *s = json_string_value(v), *chars = json_string_value(of);
	size_t n = json_string_length(v), len;

	for (size_t i = 0; chars && i < json_string_length(of); i++)
		if (!chars[i] || chars[i] & 0x80)
			return eng_jinja_fail(j, -EINVAL, "strip of characters that are not ASCII is not supported");
	while (left && n && (len = chars ? !!strchr(chars, *s) && *s : eng_jinja_space(s, n, false))) {
		s += len;
		n -= len;
	}
	while (right && n && (len = chars ? !!strchr(chars, s[n - 1]) && s[n - 1] : eng_jinja_space(s, n, true)))
		n -= len;
	return eng_jinja_text(j, s, n);
}

static json_t *recased(struct eng_jinja_run *j, const json_t *v, char from, char to)
{
	json_t *copy = eng_jinja_text(j, json_string_value(v), json_string_length(v));
	char *s = copy ? (char *)json_string_value(copy) : NULL;

	for (size_t i = 0; s && i < json_string_length(v); i++) {
		if (s[i] & 0x80)
			return eng_jinja_fail(j, -EINVAL, "the case of characters that are not ASCII is not supported");
		if (s[i] >= from && s[i] < from + 26)
			s[i] = (char)(s[i] - from + to);
	}
	return copy;
}

static json_t *upper(struct eng_jinja_run *j, json_t *v, const struct eng_jinja_args *a)
{
	return json_is_string(v) && !a->n ? recased(j, v, 'a', 'A') : NULL;
}

static json_t *lower(struct eng_jinja_run *j, json_t *v, const struct eng_jinja_args *a)
{
	return json_is_string(v) && !a->n ? recased(j, v, 'A', 'a') : NULL;
}

static json_t *strip(struct eng_jinja_run *j, json_t *v, const struct eng_jinja_args *a)
{
	return json_is_string(v) && a->n <= 1 ? stripped(j, v, argument(a, 0, NULL), true, true) : NULL;
}

static json_t *lstrip(struct eng_jinja_run *j, json_t *v, const struct eng_jinja_args *a)
{
	return json_is_string(v) && a->n <= 1 ? stripped(j, v, argument(a, 0, NULL), true, false) : NULL;
}

static json_t *rstrip(struct eng_jinja_run *j, json_t *v, const struct eng_jinja_args *a)
{
	return json_is_string(v) && a->n <= 1 ? stripped(j, v, argument(a, 0, NULL), false, true) : NULL;
}

static json_t *starts(struct eng_jinja_run *j, json_t *v, const struct eng_jinja_args *a)
{
	const json_t *with = a->n == 1 ? argument(a, 0, NULL) : NULL;
	size_t n = json_string_length(with);

	(void)j;
	if (!json_is_string(v) || !json_is_string(with))
		return NULL;
	return json_boolean(n <= json_string_length(v) && !memcmp(json_string_value(v), json_string_value(with), n));
}

static json_t *ends(struct eng_jinja_run *j, json_t *v, const struct eng_jinja_args *a)
{
	const json_t *with = a->n == 1 ? argument(a, 0, NULL) : NULL;
	size_t n = json_string_length(with), len = json_string_length(v);

	(void)j;
	if (!json_is_string(v) || !json_is_string(with))
		return NULL;
	return json_boolean(n <= len && !memcmp(json_string_value(v) + len - n, json_string_value(with), n));
}

/* Splits a text at the separator `by`, at most `most` times (negative: no limit). */
static json_t *cut(struct eng_jinja_run *j, const json_t *v, const json_t *by, json_int_t most)
{
	const char *s = json_string_value(v), *end = s + json_string_length(v), *found;
	json_t *pieces = eng_jinja_keep(j, json_array());

	if (!json_string_length(by))
		return eng_jinja_fail(j, -EINVAL, "a separator that is not empty expected");
	while (!j->failed) {
		found = most-- ? memmem(s, (size_t)(end - s), json_string_value(by), json_string_length(by)) : NULL;
		if (json_array_append(pieces, eng_jinja_text(j, s, (size_t)((found ? found : end) - s))))
			return eng_jinja_fail(j, -ENOMEM, "no memory for a dialogue");
		if (!found)
			break;
		s = found + json_string_length(by);
	}
	return pieces;
}

static json_t *split(struct eng_jinja_run *j, json_t *v, const struct eng_jinja_args *a)
{
	const json_t *by = argument(a, 0, "sep"), *most = argument(a, 1, "maxsplit");

	if (!json_is_string(v) || !json_is_string(by) || (most && !json_is_integer(most)))
		return NULL;
	return cut(j, v, by, most ? json_integer_value(most) : -1);
}

static json_t *join(struct eng_jinja_run *j, json_t *v, const struct eng_jinja_args *a)
{
	json_t *by = argument(a, 0, "d"), *all = eng_jinja_text(j, "", 0), *item;
	size_t i;

	if (!json_is_array(v) || a->n > 1 || (by && !json_is_string(by)))
		return NULL;
	json_array_foreach(v, i, item) {
		if (i && by)
			all = eng_jinja_joined(j, all, by);
		all = eng_jinja_joined(j, all, eng_jinja_str(j, item));
	}
	return all;
}

static json_t *replace(struct eng_jinja_run *j, json_t *v, const struct eng_jinja_args *a)
{
	json_t *from = argument(a, 0, NULL), *to = argument(a, 1, NULL);

	if (!json_is_string(v) || !json_is_string(from) || !json_is_string(to) || a->n != 2)
		return NULL;
	return join(j, cut(j, v, from, -1), &(struct eng_jinja_args){.n = 1, .arg = {{.value = to}}});
}

/* ---- filters -------------------------------------------------------------------------------------- */

static json_t *trim(struct eng_jinja_run *j, json_t *v, const struct eng_jinja_args *a)
{
	return a->n ? NULL : stripped(j, eng_jinja_str(j, v), NULL, true, true);
}

static json_t *length(struct eng_jinja_run *j, json_t *v, const struct eng_jinja_args *a)
{
	size_t n = json_is_array(v) ? json_array_size(v) : json_object_size(v);

	if (a->n || (v && !json_is_string(v) && !json_is_array(v) && !json_is_object(v)))
		return NULL;
	for (size_t i = 0; i < json_string_length(v); i++) /* count characters, not bytes */
		n += (json_string_value(v)[i] & 0xc0) != 0x80;
	return eng_jinja_keep(j, json_integer((json_int_t)n));
}

static json_t *or_default(struct eng_jinja_run *j, json_t *v, const struct eng_jinja_args *a)
{
	json_t *other = argument(a, 0, "default_value");

	if (v && (eng_jinja_true(v) || !eng_jinja_true(argument(a, 1, "boolean"))))
		return v;
	return other ? other : eng_jinja_text(j, "", 0);
}

static json_t *as_list(struct eng_jinja_run *j, json_t *v, const struct eng_jinja_args *a)
{
	if (a->n || (v && !json_is_array(v)))
		return NULL;
	return v ? v : eng_jinja_keep(j, json_array());
}

static json_t *as_text(struct eng_jinja_run *j, json_t *v, const struct eng_jinja_args *a)
{
	return a->n ? NULL : eng_jinja_str(j, v);
}

/*
 * Writes a value as JSON, as transformers' json.dumps() does. jansson's output differs from it only for numbers that
 * are not integers.
 */
static json_t *tojson(struct eng_jinja_run *j, json_t *v, const struct eng_jinja_args *a)
{
	char *json = v && !a->n ? json_dumps(v, JSON_ENCODE_ANY) : NULL;
	json_t *text = json ? eng_jinja_text(j, json, strlen(json)) : NULL;

	free(json);
	return text;
}

static json_t *pairs(struct eng_jinja_run *j, json_t *v, const struct eng_jinja_args *a)
{
	json_t *all = eng_jinja_keep(j, json_array()), *value;
	const char *key;

	if (a->n || (v && !json_is_object(v)))
		return NULL;
	json_object_foreach(v, key, value)
		if (json_array_append_new(all, json_pack("[sO]", key, value)))
			return eng_jinja_fail(j, -ENOMEM, "no memory for a dialogue");
	return all;
}

/*
 * Returns the items of a list whose attribute passes a test or, without a test, is true. If `wanted` is false, returns
 * the other items.
 */
static json_t *chosen(struct eng_jinja_run *j, json_t *v, const struct eng_jinja_args *a, bool wanted)
{
	const char *attribute = json_string_value(argument(a, 0, NULL)), *test = json_string_value(argument(a, 1, NULL));
	json_t *some = eng_jinja_keep(j, json_array()), *item;
	struct eng_jinja_args rest = {.n = a->n > 2};
	size_t i;

	if (!json_is_array(v) || !attribute || strchr(attribute, '.') || a->n > 3 || (a->n > 1 && !test))
		return NULL;
	rest.arg[0].value = argument(a, 2, NULL);
	json_array_foreach(v, i, item) {
		json_t *of = json_object_get(item, attribute);

		if ((test ? eng_jinja_test(j, test, of, &rest) : eng_jinja_true(of)) == wanted && json_array_append(some, item))
			return eng_jinja_fail(j, -ENOMEM, "no memory for a dialogue");
	}
	return some;
}

static json_t *selectattr(struct eng_jinja_run *j, json_t *v, const struct eng_jinja_args *a)
{
	return chosen(j, v, a, true);
}

static json_t *rejectattr(struct eng_jinja_run *j, json_t *v, const struct eng_jinja_args *a)
{
	return chosen(j, v, a, false);
}

struct named_call {
	const char *name;
	call call;
};

static json_t *call_by_name(struct eng_jinja_run *j, const struct named_call *calls, const char *what, const char *name, json_t *v,
                            const struct eng_jinja_args *a)
{
	json_t *result = NULL;

	for (; !result && calls->name; calls++)
		if (!strcmp(calls->name, name))
			result = calls->call(j, v, a);
	return result ? result : bad_arguments(j, what, name);
}

json_t *eng_jinja_filter(struct eng_jinja_run *j, const char *name, json_t *v, const struct eng_jinja_args *a)
{
	static const struct named_call filters[] = {
		{"trim", trim}, {"length", length}, {"count", length}, {"default", or_default}, {"d", or_default}, {"list", as_list},
		{"string", as_text}, {"tojson", tojson}, {"items", pairs}, {"join", join}, {"upper", upper}, {"lower", lower},
		{"replace", replace}, {"selectattr", selectattr}, {"rejectattr", rejectattr}, {NULL, NULL},
	};

	if (json_is_array(v) && json_array_size(v) && !a->n && (!strcmp(name, "first") || !strcmp(name, "last")))
		return json_array_get(v, *name == 'f' ? 0 : json_array_size(v) - 1);
	return call_by_name(j, filters, "filter", name, v, a);
}

/* ---- methods -------------------------------------------------------------------------------------- */

static json_t *keys(struct eng_jinja_run *j, json_t *v, const struct eng_jinja_args *a)
{
	json_t *all = eng_jinja_keep(j, json_array()), *value;
	const char *key;

	if (a->n || !json_is_object(v))
		return NULL;
	json_object_foreach(v, key, value)
		if (json_array_append_new(all, json_string_nocheck(key)))
			return eng_jinja_fail(j, -ENOMEM, "no memory for a dialogue");
	return all;
}

static json_t *get(struct eng_jinja_run *j, json_t *v, const struct eng_jinja_args *a)
{
	const char *key = json_string_value(argument(a, 0, NULL));
	json_t *found = key ? json_object_get(v, key) : NULL, *other = argument(a, 1, NULL);

	(void)j;
	if (!json_is_object(v) || !key || a->n > 2 || (a->n == 2 && !other))
		return NULL;
	return found ? found : other ? other : json_null();
}

json_t *eng_jinja_method(struct eng_jinja_run *j, const char *name, json_t *v, const struct eng_jinja_args *a)
{
	static const struct named_call methods[] = {
		{"strip", strip}, {"lstrip", lstrip}, {"rstrip", rstrip}, {"startswith", starts}, {"endswith", ends}, {"split", split},
		{"replace", replace}, {"upper", upper}, {"lower", lower}, {"get", get}, {"items", pairs}, {"keys", keys}, {NULL, NULL},
	};

	if (!v)
		return eng_jinja_fail(j, -EINVAL, "the method %.60s of what is undefined", name);
	return call_by_name(j, methods, "method", name, v, a);
}

/* ---- tests ---------------------------------------------------------------------------------------- */

enum test { UNKNOWN, DEFINED, UNDEFINED, NONE, STRING, MAPPING, SEQUENCE, ITERABLE, NUMBER, INTEGER, BOOLEAN, IS_TRUE, IS_FALSE, ODD,
	    EVEN, EQUAL, UNEQUAL, IN };

static enum test test_of(const char *name)
{
	static const struct {
		const char *name;
		enum test test;
	} tests[] = {
		{"defined", DEFINED}, {"undefined", UNDEFINED}, {"none", NONE}, {"string", STRING}, {"mapping", MAPPING},
		{"sequence", SEQUENCE}, {"iterable", ITERABLE}, {"number", NUMBER}, {"integer", INTEGER}, {"boolean", BOOLEAN},
		{"true", IS_TRUE}, {"false", IS_FALSE}, {"odd", ODD}, {"even", EVEN}, {"equalto", EQUAL}, {"eq", EQUAL}, {"==", EQUAL},
		{"ne", UNEQUAL}, {"!=", UNEQUAL}, {"in", IN},
	};

	for (size_t i = 0; i < sizeof(tests) / sizeof(*tests); i++)
		if (!strcmp(tests[i].name, name))
			return tests[i].test;
	return UNKNOWN;
}

bool eng_jinja_test(struct eng_jinja_run *j, const char *name, json_t *v, const struct eng_jinja_args *a)
{
	enum test test = test_of(name);
	json_t *with = argument(a, 0, NULL);
	json_int_t n;

	if (a->n != (test >= EQUAL) || ((test == ODD || test == EVEN) && !json_is_integer(v)))
		test = UNKNOWN;
	switch (test) {
	case DEFINED:
	case UNDEFINED:
		return !v == (test == UNDEFINED);
	case NONE:
		return json_is_null(v);
	case STRING:
		return json_is_string(v);
	case MAPPING:
		return json_is_object(v);
	case SEQUENCE:
	case ITERABLE: /* an undefined value counts as an empty sequence */
		return !v || json_is_string(v) || json_is_array(v) || json_is_object(v);
	case NUMBER:
		return is_number(v, &n);
	case INTEGER:
		return json_is_integer(v);
	case BOOLEAN:
		return json_is_boolean(v);
	case IS_TRUE:
	case IS_FALSE:
		return test == IS_TRUE ? json_is_true(v) : json_is_false(v);
	case ODD:
	case EVEN:
		return (json_integer_value(v) % 2 == 0) == (test == EVEN);
	case EQUAL:
	case UNEQUAL:
		return eng_jinja_equal(v, with) == (test == EQUAL);
	case IN:
		return eng_jinja_in(j, v, with);
	default:
		bad_arguments(j, "test", name);
		return false;
	}
}
