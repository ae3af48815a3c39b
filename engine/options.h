/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/options.h - a program's command line as one table, which drives parsing and --help.
 *
 * A row of the table has an option's name, a pointer to the variable for its value, a function that parses the text of
 * the value, and the valid values. The default of an option is what its variable contains before parsing. A list on the
 * command line replaces the default list. A help text may have several lines, separated by '\n'.
 */
#ifndef ENG_OPTIONS_H
#define ENG_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "engine/error.h"

#define ENG_LIST_MAX 32u

struct eng_option;
/*
 * Parses `text` and stores the value as element i of option->to; i is 0 unless the option has a list. Returns 0 or
 * -EINVAL with a text.
 */
typedef int eng_take(const struct eng_option *, const char *text, uint32_t i, struct eng_error *err);

struct eng_option {
	/* value: name of the value in the help; NULL: the option is a flag without a value */
	const char *name, *value, *help;
	eng_take *take;
	void *to, *second; /* variables for the value; `second` is for a function that stores two values */
	uint32_t *n;       /* for a list: its number of elements; NULL: the option has one value */
	uint32_t room;     /* for a list: most elements */
	bool repeats;      /* each element of the list is an option of its own; false: commas separate the elements */
	size_t size;       /* for a whole number: bytes of the variable, 4 or 8 */
	uint64_t least, most;
	const char *const *names; /* NULL-terminated list of valid names */
};

eng_take eng_take_flag;   /* bool, true if the option is given */
eng_take eng_take_text;   /* const char *; an element of a list must not be "" */
eng_take eng_take_count;  /* whole number of `size` bytes, from `least` to `most` */
eng_take eng_take_power;  /* power of two of `size` bytes, from `least` to `most` */
eng_take eng_take_real;   /* double, from `least` to `most` */
eng_take eng_take_share;  /* double, above 0 and below 1; if `most` is 1, 1 is valid, too */
eng_take eng_take_name;   /* uint32_t, index of the text in `names` */
eng_take eng_take_device; /* uint32_t, from "host" or "cuda:N", as `device` in struct skv_model */

/* Writes an error that tells what the option expected instead of `text`. Returns -EINVAL. */
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

/*
 * Macros for lists: p is an array, and c points to its number of elements, an int or unsigned. The option of ENG_TEXTS
 * may be repeated.
 */
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
	const char *usage; /* text at the beginning of --help */
	const struct eng_option *options;
	size_t n;
	bool operands; /* true: arguments may follow the options; they begin at argv[optind] */
};

/*
 * Parses argv. Returns 0, or -EINVAL with a text that names the option. --help and --version print and exit. -o means
 * --output, if there is an option `output`. The text of a list is split at commas inside argv, which changes it.
 */
int eng_options(const struct eng_command *, int argc, char **argv, struct eng_error *err);

#endif
