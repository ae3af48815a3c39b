/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/options.h - the options of a subcommand as one table, which drives parsing and --help.
 *
 * A row has an option's name, the type and destination of its value, and the valid values. Defaults are what the
 * destinations hold before; a given list replaces its default. A help text may have several lines, separated by '\n'.
 */
#ifndef SKV_BENCH_OPTIONS_H
#define SKV_BENCH_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BENCH_LIST_MAX 16

enum bench_option_type {
	BENCH_OPTION_FLAG = 1, /* bool; no value */
	BENCH_OPTION_TEXT,     /* const char * */
	BENCH_OPTION_TEXTS,    /* const char *[most]; the option may be repeated */
	BENCH_OPTION_NUMBER,   /* a whole number of `size` bytes, least to most */
	BENCH_OPTION_NUMBERS,  /* long [BENCH_LIST_MAX], from `least` on, separated by commas */
	BENCH_OPTION_POWER,    /* as NUMBER, a power of two */
	BENCH_OPTION_REAL,     /* double, least to most */
	BENCH_OPTION_SHARE,    /* double, above 0, at most 1 */
	BENCH_OPTION_COSINES,  /* double [BENCH_LIST_MAX], from 0 on and below 1 */
	BENCH_OPTION_DEVICE,   /* uint32_t, "cuda:N" as the device of a struct skv_model */
	BENCH_OPTION_HEADS,    /* uint32_t and uint32_t, "q heads/kv heads" */
	BENCH_OPTION_SHAPES,   /* long [BENCH_LIST_MAX] and long [BENCH_LIST_MAX], the same separated by commas */
	BENCH_OPTION_DTYPES,   /* uint32_t [BENCH_LIST_MAX] of enum skv_dtype: "fp32,fp16,bf16,fp8" */
	BENCH_OPTION_NAME,     /* uint32_t, the index of one of `names` */
	BENCH_OPTION_NAMES,    /* uint32_t [most], several of them */
};

struct bench_option {
	const char *name, *value, *help; /* value: placeholder for the help, NULL for a flag */
	enum bench_option_type type;
	void *to, *second;
	int *count; /* number of elements in a list */
	size_t size;
	long least, most;
	const char *const *names; /* NULL-terminated */
};

#define BENCH_FLAG(n, p, h) {.name = n, .help = h, .type = BENCH_OPTION_FLAG, .to = p}
#define BENCH_TEXT(n, v, p, h) {.name = n, .value = v, .help = h, .type = BENCH_OPTION_TEXT, .to = p}
#define BENCH_TEXTS(n, v, p, c, h) \
	{.name = n, .value = v, .help = h, .type = BENCH_OPTION_TEXTS, .to = p, .count = c, .most = sizeof(p) / sizeof(*(p))}
#define BENCH_NUMBER(n, p, lo, hi, h) \
	{.name = n, .value = "N", .help = h, .type = BENCH_OPTION_NUMBER, .to = p, .size = sizeof(*(p)), .least = lo, .most = hi}
#define BENCH_POWER(n, p, lo, hi, h) \
	{.name = n, .value = "N", .help = h, .type = BENCH_OPTION_POWER, .to = p, .size = sizeof(*(p)), .least = lo, .most = hi}
#define BENCH_NUMBERS(n, p, c, lo, h) \
	{.name = n, .value = "LIST", .help = h, .type = BENCH_OPTION_NUMBERS, .to = p, .count = c, .least = lo}
#define BENCH_REAL(n, p, lo, hi, h) \
	{.name = n, .value = "X", .help = h, .type = BENCH_OPTION_REAL, .to = p, .least = lo, .most = hi}
#define BENCH_SHARE(n, p, h) {.name = n, .value = "X", .help = h, .type = BENCH_OPTION_SHARE, .to = p}
#define BENCH_COSINES(n, p, c, h) {.name = n, .value = "X,...", .help = h, .type = BENCH_OPTION_COSINES, .to = p, .count = c}
#define BENCH_DEVICE(p, h) {.name = "device", .value = "cuda:N", .help = h, .type = BENCH_OPTION_DEVICE, .to = p}
#define BENCH_HEADS(q, kv, h) {.name = "heads", .value = "Q/KV", .help = h, .type = BENCH_OPTION_HEADS, .to = q, .second = kv}
#define BENCH_SHAPES(q, kv, c, h) \
	{.name = "heads", .value = "LIST", .help = h, .type = BENCH_OPTION_SHAPES, .to = q, .second = kv, .count = c}
#define BENCH_DTYPES(p, c, h) {.name = "dtype", .value = "LIST", .help = h, .type = BENCH_OPTION_DTYPES, .to = p, .count = c}
#define BENCH_NAME(n, v, p, all, h) {.name = n, .value = v, .help = h, .type = BENCH_OPTION_NAME, .to = p, .names = all}
#define BENCH_NAMES(n, p, c, all, h) \
	{.name = n, .value = "LIST", .help = h, .type = BENCH_OPTION_NAMES, .to = p, .count = c, .names = all, \
	 .most = sizeof(p) / sizeof(*(p))}
#define BENCH_CSV(p) BENCH_TEXT("csv", "FILE", p, "the figures as CSV, too")

struct bench_command {
	const char *name;
	const char *operands; /* arguments after the options, as the help names them; NULL: none are allowed */
	const char *about;    /* text of --help before the options, or NULL */
	const struct bench_option *options;
	size_t n;
};

/*
 * Parses argv. Returns 0: continue, arguments begin at optind; 1: help was printed; -1: an error was printed on
 * stderr. -o is short for an option `output`.
 */
int bench_options(const struct bench_command *, int argc, char **argv);

/* Prints on stderr what option `name` expected instead of its value. Returns -1. */
int bench_bad(const char *name, const char *value, const char *expected);

const char *bench_dtype_name(uint32_t dtype);

#endif
