/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/options.h"

#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sparsekv/client.h>
#include "engine/backend.h"

#define OPTIONS_MAX 48
#define OPTION_HELP (OPTIONS_MAX + 1) /* getopt_long() returns an option's index plus 1, or one of these */
#define OPTION_VERSION (OPTIONS_MAX + 2)
#define HELP_COLUMN 21 /* minimum */

/* ---- values ---------------------------------------------------------------------------------- */

static int take_count(const struct eng_option *o, const char *text, uint32_t *ret, struct eng_error *err)
{
	unsigned long long n;
	char *end;

	errno = 0;
	n = strtoull(text, &end, 10);
	if (text[0] < '0' || text[0] > '9' || *end || errno || n < o->least || n > o->most)
		return eng_fail(err, -EINVAL, "--%s %.60s: a whole number from %u to %u expected", o->name, text, o->least,
		                o->most);
	if (o->type == ENG_OPTION_POWER && (n & (n - 1)))
		return eng_fail(err, -EINVAL, "--%s %.60s: a power of two expected", o->name, text);
	*ret = (uint32_t)n;
	return 0;
}

static int take_share(const struct eng_option *o, const char *text, struct eng_error *err)
{
	char *end;
	double x = strtod(text, &end);

	if (*text == '\0' || *end || !(x > 0 && x < 1))
		return eng_fail(err, -EINVAL, "--%s %.60s: a share above 0 and below 1 expected", o->name, text);
	*(double *)o->to = x;
	return 0;
}

static int take_name(const struct eng_option *o, const char *text, struct eng_error *err)
{
	char all[128] = "";
	size_t n = 0;

	for (uint32_t i = 0; o->names[i]; i++) {
		if (!strcmp(text, o->names[i])) {
			*(uint32_t *)o->to = i;
			return 0;
		}
		n += (size_t)snprintf(all + n, n < sizeof(all) ? sizeof(all) - n : 0, "%s%s",
		                      !i ? "" : o->names[i + 1] ? ", " : " or ", o->names[i]);
	}
	return eng_fail(err, -EINVAL, "--%s %.60s: %s expected", o->name, text, all);
}

static int add_text(const struct eng_option *o, const char *text, struct eng_error *err)
{
	if (*o->n == ENG_LIST_MAX)
		return eng_fail(err, -EINVAL, "--%s: at most %u expected", o->name, ENG_LIST_MAX);
	((const char **)o->to)[(*o->n)++] = text;
	return 0;
}

static int take_list(const struct eng_option *o, char *list, struct eng_error *err)
{
	int r = 0;

	for (char *word = strtok(list, ","); word && !r; word = strtok(NULL, ",")) {
		if (o->type == ENG_OPTION_WORDS)
			r = add_text(o, word, err);
		else if (*o->n == ENG_LIST_MAX)
			r = eng_fail(err, -EINVAL, "--%s: at most %u expected", o->name, ENG_LIST_MAX);
		else
			r = take_count(o, word, &((uint32_t *)o->to)[(*o->n)++], err);
	}
	if (r || *o->n)
		return r;
	return eng_fail(err, -EINVAL, "--%s: %s with commas between them expected", o->name,
	                o->type == ENG_OPTION_WORDS ? "names" : "numbers");
}

static int take(const struct eng_option *o, char *text, struct eng_error *err)
{
	switch (o->type) {
	case ENG_OPTION_FLAG:
		*(bool *)o->to = true;
		return 0;
	case ENG_OPTION_TEXT:
		*(const char **)o->to = text;
		return 0;
	case ENG_OPTION_TEXTS:
		return add_text(o, text, err);
	case ENG_OPTION_WORDS:
	case ENG_OPTION_COUNTS:
		return take_list(o, text, err);
	case ENG_OPTION_COUNT:
	case ENG_OPTION_POWER:
		return take_count(o, text, o->to, err);
	case ENG_OPTION_SHARE:
		return take_share(o, text, err);
	case ENG_OPTION_NAME:
		return take_name(o, text, err);
	case ENG_OPTION_DEVICE:
		return eng_backend_parse(text, o->to, err);
	}
	return -EINVAL;
}

/* ---- the table ------------------------------------------------------------------------------- */

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

/* Maps 'o', the short form of --output, to the option's index plus 1; returns other values unchanged. */
static int spelled_out(const struct eng_command *c, int option)
{
	for (size_t i = 0; option == 'o' && i < c->n; i++)
		if (!strcmp(c->options[i].name, "output"))
			return (int)i + 1;
	return option;
}

int eng_options(const struct eng_command *c, int argc, char **argv, struct eng_error *err)
{
	struct option longs[OPTIONS_MAX + 3] = {0};
	bool has_output = spelled_out(c, 'o') != 'o';
	int r = 0;

	for (size_t i = 0; i < c->n; i++)
		longs[i] = (struct option){c->options[i].name, c->options[i].type != ENG_OPTION_FLAG, NULL, (int)i + 1};
	longs[c->n] = (struct option){"help", no_argument, NULL, OPTION_HELP};
	longs[c->n + 1] = (struct option){"version", no_argument, NULL, OPTION_VERSION};
	for (int k; !r && (k = spelled_out(c, getopt_long(argc, argv, has_output ? "o:" : "", longs, NULL))) >= 0;) {
		if (k == OPTION_HELP) {
			help(c);
			exit(EXIT_SUCCESS);
		}
		if (k == OPTION_VERSION) {
			printf("%s (sparsekvd) %s\n", c->program, skv_version());
			exit(EXIT_SUCCESS);
		}
		if (k < 1 || k > (int)c->n) /* getopt_long() has printed the error */
			exit(EXIT_FAILURE);
		r = take(&c->options[k - 1], optarg, err);
	}
	if (!r && optind < argc)
		return eng_fail(err, -EINVAL, "%.200s: options only expected; try --help", argv[optind]);
	return r;
}
