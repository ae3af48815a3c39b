/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/options.h - a program's command line as one table, which drives parsing and --help.
 *
 * A row has an option's name, the type and destination of its value, and the valid values. Defaults are what the
 * destinations hold before. A help text may have several lines, separated by '\n'.
 */
#ifndef ENG_OPTIONS_H
#define ENG_OPTIONS_H

#include <stddef.h>
#include <stdint.h>
#include "engine/error.h"

#define ENG_LIST_MAX 32u

enum eng_option_type {
	ENG_OPTION_FLAG = 1, /* bool; no value */
	ENG_OPTION_TEXT,     /* const char * */
	ENG_OPTION_TEXTS,    /* const char *[ENG_LIST_MAX]; the option may be repeated */
	ENG_OPTION_WORDS,    /* const char *[ENG_LIST_MAX], separated by commas */
	ENG_OPTION_COUNT,    /* uint32_t, least to most */
	ENG_OPTION_COUNTS,   /* uint32_t [ENG_LIST_MAX], separated by commas */
	ENG_OPTION_POWER,    /* as COUNT, a power of two */
	ENG_OPTION_SHARE,    /* double, above 0 and below 1 */
	ENG_OPTION_NAME,     /* uint32_t, the index of one of `names` */
	ENG_OPTION_DEVICE,   /* uint32_t, "host" or "cuda:N" as in struct skv_model */
};

struct eng_option {
	const char *name, *value, *help; /* value: placeholder for the help, NULL for a flag */
	enum eng_option_type type;
	void *to;
	uint32_t *n; /* number of elements in a list */
	uint32_t least, most;
	const char *const *names; /* NULL-terminated */
};

#define ENG_FLAG(o, p, h) {.name = o, .help = h, .type = ENG_OPTION_FLAG, .to = p}
#define ENG_TEXT(o, v, p, h) {.name = o, .value = v, .help = h, .type = ENG_OPTION_TEXT, .to = p}
#define ENG_TEXTS(o, v, p, c, h) {.name = o, .value = v, .help = h, .type = ENG_OPTION_TEXTS, .to = p, .n = c}
#define ENG_WORDS(o, v, p, c, h) {.name = o, .value = v, .help = h, .type = ENG_OPTION_WORDS, .to = p, .n = c}
#define ENG_COUNT(o, p, lo, hi, h) \
	{.name = o, .value = "N", .help = h, .type = ENG_OPTION_COUNT, .to = p, .least = lo, .most = hi}
#define ENG_COUNTS(o, v, p, c, h) \
	{.name = o, .value = v, .help = h, .type = ENG_OPTION_COUNTS, .to = p, .n = c, .least = 1, .most = UINT32_MAX}
#define ENG_POWER(o, p, lo, hi, h) \
	{.name = o, .value = "N", .help = h, .type = ENG_OPTION_POWER, .to = p, .least = lo, .most = hi}
#define ENG_SHARE(o, p, h) {.name = o, .value = "SHARE", .help = h, .type = ENG_OPTION_SHARE, .to = p}
#define ENG_NAME(o, v, p, all, h) {.name = o, .value = v, .help = h, .type = ENG_OPTION_NAME, .to = p, .names = all}
#define ENG_DEVICE(p, h) {.name = "device", .value = "DEVICE", .help = h, .type = ENG_OPTION_DEVICE, .to = p}

struct eng_command {
	const char *program;
	const char *usage; /* the beginning of --help */
	const struct eng_option *options;
	size_t n;
};

/*
 * Parses argv. -EINVAL with a text that names the option. --help and --version print and exit; an unknown option also
 * ends the program. -o is short for an option `output`. Lists are split in place.
 */
int eng_options(const struct eng_command *, int argc, char **argv, struct eng_error *err);

#endif
