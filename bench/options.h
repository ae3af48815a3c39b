/* SPDX-License-Identifier: Apache-2.0 */
/* bench/options.h - the options of a subcommand: a table of engine/options.h, with rows for the shapes of models. */
#ifndef SKV_BENCH_OPTIONS_H
#define SKV_BENCH_OPTIONS_H

#include "engine/cli.h"
#include "engine/options.h"

#define BENCH_LIST_MAX 16

eng_take bench_take_heads;  /* whole numbers of `size` bytes: q heads in `to`, kv heads in `second` */
eng_take bench_take_cosine; /* double, from 0 on and below 1 */

#define BENCH_HEADS(q, kv, h) \
	{.name = "heads", .value = "Q/KV", .help = h, .take = bench_take_heads, .to = q, .second = kv, .size = sizeof(*(q))}
#define BENCH_SHAPES(q, kv, c, h) \
	{.name = "heads", .value = "LIST", .help = h, .take = bench_take_heads, .second = kv, ENG_LIST(q, c)}
#define BENCH_COSINES(n, p, c, h) {.name = n, .value = "X,...", .help = h, .take = bench_take_cosine, ENG_LIST(p, c)}
#define BENCH_DTYPES(p, c, h) ENG_NAMES("dtype", p, c, eng_cli_dtypes, h)
#define BENCH_SHARE(n, p, h) {.name = n, .value = "SHARE", .help = h, .take = eng_take_share, .to = p, .most = 1}
#define BENCH_CSV(p) ENG_TEXT("csv", "FILE", p, "the figures as CSV, too")

struct bench_command {
	const char *name;
	const char *operands; /* arguments after the options, as the help names them; NULL: none are allowed */
	const char *about;    /* text of --help before the options */
	const struct eng_option *options;
	size_t n;
};

/*
 * Parses argv. Returns 0: arguments begin at optind; or -1: an error was printed on stderr. --help prints and exits.
 */
int bench_options(const struct bench_command *, int argc, char **argv);

/* Prints on stderr what option `name` expected instead of its value. Returns -1. */
int bench_bad(const char *name, const char *value, const char *expected);

#endif
