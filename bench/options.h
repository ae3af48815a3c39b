/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/options.h - command-line options of sparsekv-bench's subcommands: tables of engine/options.h, with more kinds
 * of rows, such as the shape of a model.
 */
#ifndef SKV_BENCH_OPTIONS_H
#define SKV_BENCH_OPTIONS_H

#include "engine/cli.h"
#include "engine/options.h"

#define BENCH_LIST_MAX 16

/* two whole numbers of `size` bytes: the q heads are stored in `to`, the kv heads in `second` */
eng_take bench_take_heads;
eng_take bench_take_cosine; /* double, at least 0 and below 1 */

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
	/* names of the arguments after the options, for the help; NULL: no such arguments are allowed */
	const char *operands;
	const char *about;    /* text at the beginning of --help */
	const struct eng_option *options;
	size_t n;
};

/*
 * Parses argv. Returns 0 (further arguments begin at argv[optind]), or -1 after printing an error on stderr. --help
 * prints the help and exits.
 */
int bench_options(const struct bench_command *, int argc, char **argv);

/* Prints on stderr that option `name` has a wrong value, and what was expected. Returns -1. */
int bench_bad(const char *name, const char *value, const char *expected);

#endif
