/* SPDX-License-Identifier: Apache-2.0 */
/* Compares chat templates and expressions with the package jinja2: the same text or an error, never another text. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/jinja.h"
#include "tests/support/folder.h"
#include "tests/support/run-program.h"
#include "tests/support/suite.h"

#define NOON 1770120000 /* 2026-02-03, as in against-package.py */

static struct eng_error err;

/* Returns the text, to be freed; NULL: an error, in `err`. */
static char *render(const char *source, json_t *variables, int *ret_error)
{
	struct eng_jinja *t = NULL;
	char *text = NULL;
	size_t n = 0;

	*ret_error = eng_jinja_parse(&t, source, &err);
	if (!*ret_error)
		*ret_error = eng_jinja_render(t, variables, NOON, &text, &n, &err);
	if (text)
		ck_assert_uint_eq(n, strlen(text));
	eng_jinja_free(t);
	return text;
}

/* Compares a row of golden.jsonl. Returns false if only jinja2 renders it. */
static bool compare(const json_t *row, json_t *templates, json_t *names)
{
	const char *of = json_string_value(json_object_get(row, "of")), *text = json_string_value(json_object_get(row, "text"));
	const char *source = json_string_value(of ? json_object_get(templates, of) : json_object_get(row, "template"));
	json_t *variables = json_object_get(row, "variables");
	int r;
	char *is = render(source, variables ? variables : names, &r);

	if (is) {
		ck_assert_msg(text, "%s\n writes: %s\n an error expected", source, is);
		ck_assert_str_eq(is, text);
	} else {
		ck_assert(r == -EINVAL || r == -E2BIG);
		ck_assert_msg(!of || !text, "%s: %s", of, err.text);
	}
	free(is);
	return !text == !is;
}

START_TEST(texts_are_the_packages)
{
	json_t *templates = json_object(), *names = json_object(), *rows = json_array(), *row;
	unsigned same = 0, all = 0;
	size_t n, i;
	char *lines = fx_read(run_source("tests/jinja/golden.jsonl"), &n);

	setenv("TZ", "UTC", 1);
	for (char *line = strtok(lines, "\n"); line; line = strtok(NULL, "\n")) {
		row = json_loads(line, 0, NULL);
		ck_assert_ptr_nonnull(row);
		if (json_object_get(row, "name"))
			json_object_set(templates, json_string_value(json_object_get(row, "name")), json_object_get(row, "template"));
		else if (!json_object_get(row, "text"))
			json_object_update(names, json_object_get(row, "variables"));
		else
			json_array_append(rows, row);
		json_decref(row);
	}
	json_array_foreach(rows, i, row) {
		same += compare(row, templates, names);
		all++;
	}
	ck_assert_uint_gt(all, 600);
	ck_assert_uint_gt(same, all - 50);
	json_decref(rows);
	json_decref(templates);
	json_decref(names);
	free(lines);
}
END_TEST

static const struct {
	const char *source, *says;
} refused[] = {
	{"a\n\n{{ x | nosuch }}", "line 3: the filter nosuch is not supported"},
	{"{% include 'x' %}", "line 1: the statement \"include\" is not supported"},
	{"{{ 'a' is nosuch }}", "the test nosuch is not supported"},
	{"{{ 'a'.nosuch() }}", "the method nosuch is not supported"},
	{"{{ nosuch() }}", "nosuch() is not supported"},
	{"{{ x.y }}", "attribute y of what is undefined"},
	{"\n{{ raise_exception('only users') }}", "line 2: the template says: only users"},
	{"{% if x %}", "the template ends within a block, elif expected"},
	{"{{ x", "the tag has no end, \"}}\" expected"},
	{"{{ 'x", "the text has no end, ' expected"},
	{"{# x", "the comment has no end"},
	{"{{ 1 + }}", "a name expected"},
	{"{{ 9223372036854775807 + 1 }}", "an integer of 64 bits expected"},
	{"{{ 1 // 0 }}", "a division by 0"},
	{"{{ 'ä' | upper }}", "the case of characters that are not ASCII"},
};

START_TEST(others_are_refused)
{
	json_t *none = json_object();
	int r;

	ck_assert_ptr_null(render(refused[_i].source, none, &r));
	ck_assert_int_eq(r, -EINVAL);
	ck_assert_msg(strstr(err.text, refused[_i].says), "says: %s\n expected: %s", err.text, refused[_i].says);
	json_decref(none);
}
END_TEST

static const struct {
	const char *before, *part, *middle, *close, *behind;
	unsigned n; /* repetitions of `part` and of `close` */
} costly[] = {
	{"{{", "(", "1", ")", "}}", 100000},
	{"{{", "[", "1", "]", "}}", 100000},
	{"{{", "not ", "1", "", "}}", 100000},
	{"", "{% if 1 %}", "1", "{% endif %}", "", 100000},
	{"", "{% for a in [1, 2, 3, 4, 5, 6, 7, 8] %}", "x", "{% endfor %}", "", 40},
	{"{% set n = namespace(a='aaaaaaaa') %}", "{% set n.a = n.a + n.a %}", "", "", "", 80},
	{"{% set n = namespace(a=[1]) %}", "{% set n.a = n.a + n.a %}", "", "", "", 80},
	{"{% set n = namespace(a=[1]) %}", "{% set n.a = [n.a] %}", "{{ n.a == n.a }}", "", "", 1000},
	{"{% macro m(a) %}{{ m(a) }}{{ m(a) }}{% endmacro %}{{ m(1) }}", "", "", "", "", 0},
};

/* Templates that are too deep, too long or too costly soon end with an error. */
START_TEST(costly_ones_are_refused)
{
	char *source;
	size_t n;
	FILE *to = open_memstream(&source, &n);
	json_t *none = json_object();
	int r;

	fputs(costly[_i].before, to);
	for (unsigned i = 0; i < costly[_i].n; i++)
		fputs(costly[_i].part, to);
	fputs(costly[_i].middle, to);
	for (unsigned i = 0; i < costly[_i].n; i++)
		fputs(costly[_i].close, to);
	fputs(costly[_i].behind, to);
	fclose(to);
	ck_assert_ptr_null(render(source, none, &r));
	ck_assert_msg(r == -E2BIG, "%s", err.text);
	json_decref(none);
	free(source);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-jinja");
	TCase *t = add_case(s, "jinja", 60, NULL, NULL, texts_are_the_packages, NULL);

	tcase_add_loop_test(t, others_are_refused, 0, sizeof(refused) / sizeof(*refused));
	tcase_add_loop_test(t, costly_ones_are_refused, 0, sizeof(costly) / sizeof(*costly));
	return run_suite(s);
}
