/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/options.h - a program's command line as one table, which drives parsing and --help.
 *
 * A row has an option's name, the destination of its value, a function that takes the value from the text, and the
 * valid values. Defaults are what the destinations hold before; a given list replaces its default. A help text may have
 * several lines, separated by '\n'.
 */
#ifndef ENG_OPTIONS_H
#define ENG_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "engine/error.h"

#define ENG_LIST_MAX 32u

struct eng_option;
/* Stores the value of the text as element i of `to`; i is 0 unless it is a list. -EINVAL with a text. */
typedef int eng_take(const struct eng_option *, const char *text, uint32_t i, struct eng_error *err);

struct eng_option {
	const char *name, *value, *help; /* value: placeholder for the help, NULL for a flag */
	eng_take *take;
	void *to, *second; /* second: for a function that stores two values */
	uint32_t *n;       /* of a list: number of elements; NULL: one value */
	uint32_t room;     /* of a list */
	bool repeats;      /* a list whose elements are options of their own; otherwise commas separate them */
	size_t size;       /* of a whole number, in bytes: 4 or 8 */
	uint64_t least, most;
	const char *const *names; /* NULL-terminated */
};

eng_take eng_take_flag;   /* bool */
eng_take eng_take_text;   /* const char *; in a list not "" */
eng_take eng_take_count;  /* of `size` bytes, least to most */
eng_take eng_take_power;  /* the same, a power of two */
eng_take eng_take_real;   /* double, least to most */
eng_take eng_take_share;  /* double, above 0 and below 1; most 1: 1, too */
eng_take eng_take_name;   /* uint32_t, index of one of `names` */
eng_take eng_take_device; /* uint32_t, "host" or "cuda:N" as in struct skv_model */

/* Writes what the option expected instead of the text. Returns -EINVAL. */
int eng_option_expected(const struct eng_option *, const char *text, const char *expected, struct eng_error *err);

#define ENG_FLAG(o, p, h) {.name = o, .help = h, .take = eng_take_flag, .to = p}
#define ENG_TEXT(o, v, p, h) {.name = o, .value = v, .help = h, .take = eng_take_text, .to = p}
#define ENG_COUNT(o, p, lo, hi, h) \
	{.name = o, .value = "N", .help = h, .take = eng_take_count, .to = p, .size = sizeof(*(p)), .least = lo, .most = hi}
#define ENG_POWER(o, p, lo, hi, h) \
	{.name = o, .value = "N", .help = h, .take = eng_take_power, .to = p, .size = sizeof(*(p)), .least = lo, .most = hi}
#define ENG_REAL(o, p, lo, hi, h) \
	{.name = o, .value = "X", .help = h, .take = eng_take_real, .to = p, .least = lo, .most = hi}
#define ENG_SHARE(o, p, h) {.name = o, .value = "SHARE", .help = h, .take = eng_take_share, .to = p}
#define ENG_NAME(o, v, p, all, h) {.name = o, .value = v, .help = h, .take = eng_take_name, .to = p, .names = all}
#define ENG_DEVICE(p, h) {.name = "device", .value = "DEVICE", .help = h, .take = eng_take_device, .to = p}

/* Lists: arrays, and the number of their elements, an int or unsigned. ENG_TEXTS: the option may be repeated. */
#define ENG_LIST(p, c) .to = p, .n = (uint32_t *)(c), .room = sizeof(p) / sizeof(*(p)), .size = sizeof(*(p))
#define ENG_TEXTS(o, v, p, c, h) \
	{.name = o, .value = v, .help = h, .take = eng_take_text, ENG_LIST(p, c), .repeats = true}
#define ENG_WORDS(o, v, p, c, h) {.name = o, .value = v, .help = h, .take = eng_take_text, ENG_LIST(p, c)}
#define ENG_COUNTS(o, v, p, c, lo, hi, h) \
	{.name = o, .value = v, .help = h, .take = eng_take_count, ENG_LIST(p, c), .least = lo, .most = hi}
#define ENG_NAMES(o, p, c, all, h) \
	{.name = o, .value = "LIST", .help = h, .take = eng_take_name, ENG_LIST(p, c), .names = all}

struct eng_command {
	const char *program;
	const char *usage; /* the beginning of --help */
	const struct eng_option *options;
	size_t n;
	bool operands; /* arguments after the options are allowed, and begin at optind */
};

/*
 * Parses argv. -EINVAL with a text that names the option. --help and --version print and exit. -o is short for an
 * option `output`. Lists are split in place.
 */
int eng_options(const struct eng_command *, int argc, char **argv, struct eng_error *err);

#endif
