/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/bench.h - what the subcommands of sparsekv-bench share.
 *
 * A subcommand passes its figures to a report, which prints a table on stdout and, if requested, writes the same
 * figures as CSV. main.c has the list of subcommands.
 */
#ifndef SKV_BENCH_H
#define SKV_BENCH_H

#include "bench/options.h"
#include <sparsekv/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* argv[0] is the subcommand's name. They return the exit status. */
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
	const char *name; /* name of the CSV column; the table's has spaces for underscores */
	/* digits after the decimal point; below 0: a text column, -digits characters wide, at least 12 */
	int digits;
};

struct report {
	const struct column *columns;
	int n;
	FILE *csv; /* NULL: none */
	const char *path;
};

/* Adds a row: a const char * for a text column, a double for another one (NAN: empty cell). */
void report_row(struct report *, ...);

/* Fills the report; returns -1 after printing why that is not possible. */
typedef int bench_measure_fn(struct report *, const void *options);
/*
 * Runs a subcommand after bench_options() has returned `parsed`: prints the table's head and the rows of measure(),
 * and writes them as CSV if csv_path is not NULL. Returns the exit status.
 */
int bench_report(int parsed, bench_measure_fn *, const void *options, const struct column *columns, size_t n_columns,
                 const char *csv_path);

/* ---- measuring ------------------------------------------------------------------------------- */

double bench_now(void); /* seconds */
double bench_median(double *x, size_t n); /* sorts x */
double bench_p99(double *x, size_t n);    /* sorts x; the largest if n < 100 */

/* splitmix64 */
uint64_t bench_random(uint64_t *state);

#endif
