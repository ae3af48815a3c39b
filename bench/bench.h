/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/bench.h - declarations that the subcommands of sparsekv-bench share.
 *
 * A subcommand passes its figures to a report, which prints a table on stdout and, if requested, writes the same
 * figures as CSV. The list of subcommands is in main.c.
 */
#ifndef SKV_BENCH_H
#define SKV_BENCH_H

#include "bench/options.h"
#include <sparsekv/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* The functions of the subcommands. argv[0] is the subcommand's name. Each returns the exit status of the program. */
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
	const char *name; /* name of the CSV column; in the table, underscores are replaced by spaces */
	/* number of digits after the decimal point; below 0: a column of text, -digits characters wide, at least 12 */
	int digits;
};

struct report {
	const struct column *columns;
	int n;
	FILE *csv; /* file that rows are also written to as CSV; NULL: none */
	const char *path;
};

/*
 * Adds a row. The arguments are one for each column: a const char * for a column of text, a double for a column of
 * numbers (NAN: the cell stays empty).
 */
void report_row(struct report *, ...);

/* A function that measures and adds its rows to the report. Returns 0, or -1 after printing why it cannot measure. */
typedef int bench_measure_fn(struct report *, const void *options);
/*
 * Runs a subcommand. `parsed` is the result of bench_options(). Prints the head of the table and the rows that the
 * function adds, and also writes the rows as CSV if csv_path is not NULL. Returns the exit status of the program.
 */
int bench_report(int parsed, bench_measure_fn *, const void *options, const struct column *columns, size_t n_columns,
                 const char *csv_path);

/* ---- measuring ------------------------------------------------------------------------------- */

double bench_now(void); /* returns the time of a monotonic clock in seconds */
double bench_median(double *x, size_t n); /* sorts x; returns the median */
double bench_p99(double *x, size_t n);    /* sorts x; returns the 99th percentile, or the largest element if n < 100 */

/* Returns the next number of the generator splitmix64. */
uint64_t bench_random(uint64_t *state);

#endif
