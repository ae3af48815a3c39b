/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/options.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sparsekv/client.h>
#include "engine/backend.h"

#define OPTIONS_MAX 48
/* getopt_long() returns the index of an option plus 1, or one of these two numbers */
#define OPTION_HELP (OPTIONS_MAX + 1)
#define OPTION_VERSION (OPTIONS_MAX + 2)
#define HELP_COLUMN 21 /* column of the help texts, unless an option's name is too long */

/* ---- values ---------------------------------------------------------------------------------- */

int eng_option_expected(const struct eng_option *o, const char *text, const char *expected, struct eng_error *err)
{
	return eng_fail(err, -EINVAL, "--%s %.60s: %s expected", o->name, text, expected);
}

int eng_take_flag(const struct eng_option *o, const char *text, uint32_t i, struct eng_error *err)
{
	(void)text, (void)err;
	((bool *)o->to)[i] = true;
	return 0;
}

int eng_take_text(const struct eng_option *o, const char *text, uint32_t i, struct eng_error *err)
{
	if (o->n && !*text)
		return eng_option_expected(o, text, "a name", err);
	((const char **)o->to)[i] = text;
	return 0;
}

int eng_take_count(const struct eng_option *o, const char *text, uint32_t i, struct eng_error *err)
{
	char *end, expected[80];
	uint64_t n;

	errno = 0;
	n = strtoull(text, &end, 10);
	snprintf(expected, sizeof(expected), "a whole number from %" PRIu64 " to %" PRIu64, o->least, o->most);
	if (text[0] < '0' || text[0] > '9' || *end || errno || n < o->least || n > o->most)
		return eng_option_expected(o, text, expected, err);
	if (o->size == sizeof(uint32_t))
		((uint32_t *)o->to)[i] = (uint32_t)n;
	else
		((uint64_t *)o->to)[i] = n;
	return 0;
}

int eng_take_power(const struct eng_option *o, const char *text, uint32_t i, struct eng_error *err)
{
	const uint64_t n = strtoull(text, NULL, 10);

	return n & (n - 1) ? eng_option_expected(o, text, "a power of two", err) : eng_take_count(o, text, i, err);
}

/* Returns whether the whole text is a number. */
static bool read_real(const char *text, double *ret)
{
	char *end;

	*ret = strtod(text, &end);
	return end > text && !*end;
}

int eng_take_real(const struct eng_option *o, const char *text, uint32_t i, struct eng_error *err)
{
	char expected[80];
	double x;

	snprintf(expected, sizeof(expected), "a number from %" PRIu64 " to %" PRIu64, o->least, o->most);
	if (!read_real(text, &x) || !(x >= (double)o->least && x <= (double)o->most))
		return eng_option_expected(o, text, expected, err);
	((double *)o->to)[i] = x;
	return 0;
}

int eng_take_share(const struct eng_option *o, const char *text, uint32_t i, struct eng_error *err)
{
	double x;

	if (!read_real(text, &x) || !(x > 0 && (x < 1 || (x == 1 && o->most))))
		return eng_option_expected(o, text, o->most ? "a share above 0, at most 1," : "a share above 0 and below 1", err);
	((double *)o->to)[i] = x;
	return 0;
}

int eng_take_name(const struct eng_option *o, const char *text, uint32_t i, struct eng_error *err)
{
	char all[256] = "";
	size_t n = 0;

	for (uint32_t k = 0; o->names[k]; k++) {
		if (!strcmp(text, o->names[k])) {
			((uint32_t *)o->to)[i] = k;
			return 0;
		}
		n += (size_t)snprintf(all + n, n < sizeof(all) ? sizeof(all) - n : 0, "%s%s",
		                      !k ? "" : o->names[k + 1] ? ", " : " or ", o->names[k]);
	}
	return eng_option_expected(o, text, all, err);
}

int eng_take_device(const struct eng_option *o, const char *text, uint32_t i, struct eng_error *err)
{
	return eng_backend_parse(text, (uint32_t *)o->to + i, err);
}

/* ---- the table ------------------------------------------------------------------------------- */

static int take(const struct eng_option *o, char *text, struct eng_error *err)
{
	int r = 0;

	if (!o->n)
		return o->take(o, text, 0, err);
	*o->n = o->repeats ? *o->n : 0;
	while (!r && text) {
		const char *element = o->repeats ? text : strsep(&text, ",");

		if (*o->n == o->room)
			return eng_fail(err, -EINVAL, "--%s: at most %u expected", o->name, o->room);
		r = o->take(o, element, (*o->n)++, err);
		text = o->repeats ? NULL : text;
	}
	return r;
}

static void help(const struct eng_command *c)
{
	printf("%s\n", c->usage);
	for (size_t i = 0; i < c->n; i++) {
		const struct eng_option *o = &c->options[i];
		int n = printf("  %s--%s%s%s ", strcmp(o->name, "output") ? "" : "-o, ", o->name, o->value ? " " : "",
		               o->value ? o->value : "");

		for (const char *p = o->help; *p; n = 0) {
			const int len = (int)strcspn(p, "\n");

			printf("%*s%.*s\n", n < HELP_COLUMN ? HELP_COLUMN - n : 0, "", len, p);
			p += len + (p[len] == '\n');
		}
	}
	puts("  --help, --version");
}

/*
 * Returns what getopt_long() would return for the long form of an option: for 'o' the index of --output plus 1; other
 * values are not changed.
 */
static int spelled_out(const struct eng_command *c, int option)
{
	for (size_t i = 0; option == 'o' && i < c->n; i++)
		if (!strcmp(c->options[i].name, "output"))
			return (int)i + 1;
	return option;
}

/* Processes the option that getopt_long() returned as k. */
static int take_option(const struct eng_command *c, int k, char **argv, struct eng_error *err)
{
	if (k == OPTION_HELP) {
		help(c);
		exit(EXIT_SUCCESS);
	}
	if (k == OPTION_VERSION) {
		printf("%s (sparsekvd) %s\n", c->program, skv_version());
		exit(EXIT_SUCCESS);
	}
	if (k == ':')
		return eng_fail(err, -EINVAL, "%.200s: a value expected; try --help", argv[optind - 1]);
	if (k < 1 || k > (int)c->n)
		return eng_fail(err, -EINVAL, "%.200s: no such option; try --help", argv[optind - 1]);
	return take(&c->options[k - 1], optarg, err);
}

int eng_options(const struct eng_command *c, int argc, char **argv, struct eng_error *err)
{
	struct option longs[OPTIONS_MAX + 3] = {0};
	/* the first colon makes getopt_long() return ':' if a value is missing */
	const char *shorts = spelled_out(c, 'o') == 'o' ? ":" : ":o:";
	int r = 0;

	for (size_t i = 0; i < c->n; i++)
		longs[i] = (struct option){c->options[i].name, c->options[i].value != NULL, NULL, (int)i + 1};
	longs[c->n] = (struct option){"help", no_argument, NULL, OPTION_HELP};
	longs[c->n + 1] = (struct option){"version", no_argument, NULL, OPTION_VERSION};
	opterr = 0;
	for (int k; !r && (k = spelled_out(c, getopt_long(argc, argv, shorts, longs, NULL))) >= 0;)
		r = take_option(c, k, argv, err);
	if (!r && optind < argc && !c->operands)
		return eng_fail(err, -EINVAL, "%.200s: options only expected; try --help", argv[optind]);
	return r;
}
