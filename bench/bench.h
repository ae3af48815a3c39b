/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/bench.h - what the subcommands of sparsekv-bench share.
 *
 * A subcommand measures, and gives its figures to a report, which prints a table on stdout and, if
 * asked to, the same figures as CSV. main.c has the list of subcommands.
 */
#ifndef SKV_BENCH_H
#define SKV_BENCH_H

#include "bench/options.h"
#include <sparsekv/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* argv[0] is the subcommand's name. Returns the exit status. */
int bench_attention(int argc, char **argv);
int bench_batch(int argc, char **argv);
int bench_codes(int argc, char **argv);
int bench_correction(int argc, char **argv);
int bench_ipc(int argc, char **argv);
int bench_step(int argc, char **argv);
int bench_memory(int argc, char **argv);
int bench_park(int argc, char **argv);
int bench_policies(int argc, char **argv);
int bench_prefill(int argc, char **argv);
int bench_prefixes(int argc, char **argv);
int bench_plot(int argc, char **argv);
int bench_ranks(int argc, char **argv);
int bench_scale(int argc, char **argv);
int bench_traffic(int argc, char **argv);

/* ---- report ---------------------------------------------------------------------------------- */

struct column {
	const char *name; /* of the CSV column and, underscores as spaces, of the table's */
	int digits;       /* after the point; below 0: the column holds text, of so many characters or of 12 */
};

struct report {
	const struct column *columns;
	int n;
	FILE *csv; /* NULL: none */
	const char *path;
};

/* One row: a const char * for a text column, a double for another (NAN: left empty). */
void report_row(struct report *, ...);

/* Fill the report; -1 after saying why that is not possible. */
typedef int bench_measure_fn(struct report *, const void *options);
/*
 * A subcommand, once bench_options() returned `parsed`: the table's head, what measure() gives with the options, and the same as
 * CSV where csv_path is not NULL. Returns the exit status.
 */
int bench_report(int parsed, bench_measure_fn *, const void *options, const struct column *columns, size_t n_columns,
                 const char *csv_path);

/* ---- measuring ------------------------------------------------------------------------------- */

double bench_now(void); /* seconds */
double bench_median(double *x, size_t n); /* sorts x */
double bench_p99(double *x, size_t n);    /* sorts x; of fewer than 100 the largest */

/* splitmix64 */
uint64_t bench_random(uint64_t *state);

#endif
