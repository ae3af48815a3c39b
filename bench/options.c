/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/options.h"
#include <errno.h>
#include <getopt.h>
#include <sparsekv/types.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/cli.h"

#define OPTIONS_MAX 32
#define OPTION_HELP (OPTIONS_MAX + 1) /* getopt_long() returns an option's index plus 1, or this */
#define HELP_COLUMN 18                /* minimum */

int bench_bad(const char *name, const char *value, const char *expected)
{
	fprintf(stderr, "sparsekv-bench: --%s %s: expected %s\n", name, value, expected);
	return -1;
}

/* ---- values ---------------------------------------------------------------------------------- */

static int take_number(const struct bench_option *o, const char *text)
{
	char *end, expected[64];
	long x;

	errno = 0;
	x = strtol(text, &end, 10);
	snprintf(expected, sizeof expected, "a whole number from %ld to %ld", o->least, o->most);
	if (end == text || *end || errno || x < o->least || x > o->most)
		return bench_bad(o->name, text, expected);
	if (o->type == BENCH_OPTION_POWER && (x & (x - 1)))
		return bench_bad(o->name, text, "a power of two");
	if (o->size == sizeof(uint32_t))
		*(uint32_t *)o->to = (uint32_t)x;
	else
		*(long *)o->to = x;
	return 0;
}

static int take_share(const struct bench_option *o, const char *text)
{
	char *end;
	double x = strtod(text, &end);

	if (end == text || *end || !(x > 0 && x <= 1))
		return bench_bad(o->name, text, "a share from 0 to 1");
	*(double *)o->to = x;
	return 0;
}

static int take_real(const struct bench_option *o, const char *text)
{
	char *end, expected[64];
	double x = strtod(text, &end);

	snprintf(expected, sizeof expected, "a number from %ld to %ld", o->least, o->most);
	if (end == text || *end || !(x >= (double)o->least && x <= (double)o->most))
		return bench_bad(o->name, text, expected);
	*(double *)o->to = x;
	return 0;
}

static int take_device(const struct bench_option *o, const char *text)
{
	unsigned n;
	char rest;

	if (sscanf(text, "cuda:%u%c", &n, &rest) != 1 || n >= SKV_MAX_DEVICES)
		return bench_bad(o->name, text, "a device such as cuda:0");
	*(uint32_t *)o->to = SKV_DEVICE_CUDA(n);
	return 0;
}

static int take_heads(const struct bench_option *o, const char *text)
{
	unsigned heads, kv_heads;
	char rest;

	if (sscanf(text, "%u/%u%c", &heads, &kv_heads, &rest) != 2 || !kv_heads || !heads || heads % kv_heads)
		return bench_bad(o->name, text, "q heads/kv heads, such as 32/8");
	*(uint32_t *)o->to = heads;
	*(uint32_t *)o->second = kv_heads;
	return 0;
}

static int take_text(const struct bench_option *o, const char *text)
{
	char expected[32];

	if (o->type == BENCH_OPTION_TEXT) {
		*(const char **)o->to = text;
		return 0;
	}
	snprintf(expected, sizeof expected, "at most %ld of them", o->most);
	if (*o->count == o->most)
		return bench_bad(o->name, text, expected);
	((const char **)o->to)[(*o->count)++] = text;
	return 0;
}

/* ---- lists ----------------------------------------------------------------------------------- */

const char *bench_dtype_name(uint32_t dtype)
{
	return eng_cli_dtypes[dtype];
}

/* Index of the name at the beginning of the text, up to a comma or its end; -1: not found. */
static int index_of(const char *const *names, const char *text)
{
	const size_t len = strcspn(text, ",");

	for (int i = 0; names[i]; i++)
		if (strlen(names[i]) == len && !strncmp(names[i], text, len))
			return i;
	return -1;
}

static int bad_name(const struct bench_option *o, const char *const *names, const char *text)
{
	char expected[512] = "";
	size_t n = 0;

	for (int i = 0; names[i] && n < sizeof expected; i++)
		n += (size_t)snprintf(expected + n, sizeof expected - n, "%s%s",
		                      !i ? "" : names[i + 1] ? ", " : " or ", names[i]);
	if (o->type != BENCH_OPTION_NAME && n < sizeof expected)
		snprintf(expected + n, sizeof expected - n, ", separated by commas");
	return bench_bad(o->name, text, expected);
}

/* Parses the list element from `p` to `end`. */
static bool take_element(const struct bench_option *o, const char *p, const char *end, int n)
{
	char *stop = NULL;
	int used = 0;

	errno = 0;
	if (o->type == BENCH_OPTION_NUMBERS) {
		long x = ((long *)o->to)[n] = strtol(p, &stop, 10);
		return stop == end && stop > p && !errno && x >= o->least;
	}
	if (o->type == BENCH_OPTION_COSINES) {
		double x = ((double *)o->to)[n] = strtod(p, &stop);
		return stop == end && stop > p && x >= 0 && x < 1;
	}
	long *heads = (long *)o->to + n, *kv_heads = (long *)o->second + n;
	return sscanf(p, "%ld/%ld%n", heads, kv_heads, &used) == 2 && p + used == end && *heads > 0 && *kv_heads > 0;
}

static int bad_list(const struct bench_option *o, const char *text)
{
	char expected[96];

	if (o->type == BENCH_OPTION_COSINES)
		return bench_bad(o->name, text, "numbers from 0 on and below 1, separated by commas");
	if (o->type == BENCH_OPTION_SHAPES)
		return bench_bad(o->name, text, "q heads/kv heads, such as 8/2,32/8");
	snprintf(expected, sizeof expected, "up to %d whole numbers from %ld on, separated by commas", BENCH_LIST_MAX,
	         o->least);
	return bench_bad(o->name, text, expected);
}

static int take_list(const struct bench_option *o, const char *text)
{
	int n = 0;

	for (const char *p = text;; p++) {
		const char *end = p + strcspn(p, ",");

		if (n == BENCH_LIST_MAX || !take_element(o, p, end, n++))
			return bad_list(o, text);
		p = end;
		if (!*p)
			break;
	}
	*o->count = n;
	return 0;
}

static int take_names(const struct bench_option *o, const char *text)
{
	const char *const *names = o->type == BENCH_OPTION_DTYPES ? eng_cli_dtypes : o->names;
	const int most = o->type == BENCH_OPTION_DTYPES ? BENCH_LIST_MAX : o->type == BENCH_OPTION_NAMES ? (int)o->most : 1;
	int n = 0;

	for (const char *p = text; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
		const int i = index_of(names, p);

		if (i < 0 || n == most)
			return bad_name(o, names, text);
		((uint32_t *)o->to)[n++] = (uint32_t)i;
	}
	if (o->count)
		*o->count = n;
	return 0;
}

/* ---- the table ------------------------------------------------------------------------------- */

static int take(const struct bench_option *o, const char *text)
{
	switch (o->type) {
	case BENCH_OPTION_FLAG:
		*(bool *)o->to = true;
		return 0;
	case BENCH_OPTION_TEXT:
	case BENCH_OPTION_TEXTS:
		return take_text(o, text);
	case BENCH_OPTION_NUMBER:
	case BENCH_OPTION_POWER:
		return take_number(o, text);
	case BENCH_OPTION_REAL:
		return take_real(o, text);
	case BENCH_OPTION_SHARE:
		return take_share(o, text);
	case BENCH_OPTION_DEVICE:
		return take_device(o, text);
	case BENCH_OPTION_HEADS:
		return take_heads(o, text);
	case BENCH_OPTION_NUMBERS:
	case BENCH_OPTION_COSINES:
	case BENCH_OPTION_SHAPES:
		return take_list(o, text);
	case BENCH_OPTION_DTYPES:
	case BENCH_OPTION_NAME:
	case BENCH_OPTION_NAMES:
		return take_names(o, text);
	}
	return -1;
}

static void help(const struct bench_command *c)
{
	printf("usage: sparsekv-bench %s [OPTION...]%s%s\n\n", c->name, c->operands ? " " : "",
	       c->operands ? c->operands : "");
	if (c->about)
		printf("%s\n\n", c->about);
	for (size_t i = 0; i < c->n; i++) {
		const struct bench_option *o = &c->options[i];
		int n = printf("  --%s%s%s  ", o->name, o->value ? " " : "", o->value ? o->value : "");

		for (const char *p = o->help; *p; n = 0) {
			const int len = (int)strcspn(p, "\n");

			printf("%*s%.*s\n", n < HELP_COLUMN + 3 ? HELP_COLUMN + 3 - n : 0, "", len, p);
			p += len + (p[len] == '\n');
		}
	}
}

int bench_options(const struct bench_command *c, int argc, char **argv)
{
	struct option longs[OPTIONS_MAX + 2] = {0};
	int e = 0;

	for (size_t i = 0; i < c->n; i++)
		longs[i] = (struct option){c->options[i].name, c->options[i].type != BENCH_OPTION_FLAG, NULL,
		                           (int)i + 1};
	longs[c->n] = (struct option){"help", no_argument, NULL, OPTION_HELP};
	for (int k; !e && (k = getopt_long(argc, argv, c->operands ? "o:" : "", longs, NULL)) != -1;) {
		if (k == OPTION_HELP) {
			help(c);
			return 1;
		}
		for (size_t i = 0; k == 'o' && i < c->n; i++)
			k = strcmp(c->options[i].name, "output") ? k : (int)i + 1;
		e = k < 1 || k > (int)c->n ? -1 : take(&c->options[k - 1], optarg);
	}
	if (!e && optind < argc && !c->operands) {
		fprintf(stderr, "sparsekv-bench: %s: unexpected argument '%s'\n", c->name, argv[optind]);
		return -1;
	}
	return e;
}
