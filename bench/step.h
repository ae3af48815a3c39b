/* SPDX-License-Identifier: Apache-2.0 */
/* bench/step.h - declarations that the settings (models and policies) measured by sparsekv-bench step share. */
#ifndef SKV_BENCH_STEP_H
#define SKV_BENCH_STEP_H

#include "bench/bench.h"

#define STEP_REPEAT_MAX 1000

/* Options of a setting. 0 means the setting's default. */
struct step_options {
	uint32_t device, heads, kv_heads;
	long layers, dim, batch, tokens, budget, repeat; /* budget: number of tokens that a sparse layer attends to */
	int rows;     /* only for deltakv; 0: both kinds of rows; otherwise 1 + enum synthetic_rows */
	bool largest; /* only for deltakv: also measures the largest batch that fits in memory */
};

/* Replaces the options that are 0 with the setting's defaults. */
void step_defaults(struct step_options *, const struct step_options *defaults);

/* Times of steps of one kind, in the order of the steps; reports contain their medians. */
struct step_times {
	double device_ms[2 * STEP_REPEAT_MAX]; /* of attention alone */
	double whole_ms[2 * STEP_REPEAT_MAX];  /* of whole steps, until all queued work is done; n_whole may be 0 */
	size_t n, n_whole;
};

/* A row of the table; NAN: empty cell. */
struct step_row {
	const char *setting, *attention, *heads, *rows;
	long dim, layers, batch, tokens, budget;
	double ms, speedup, whole_ms, whole_speedup;
	double share;          /* share of the step's time that compression and decompression take */
	double kv, codes, refs; /* bytes of a token over all layers, by kind of page */
	double fit;             /* number of such sequences that fit in memory */
};
/* Calls bench_report() with the columns of struct step_row. */
int step_report_all(int parsed, bench_measure_fn *, const void *options, const char *csv);
void step_row(struct report *, const struct step_row *);

/* Reports two rows, one for dense and one for sparse attention, with their speedups relative to dense attention. */
void step_report(struct report *, const char *setting, const struct step_options *, const char *dense_name,
                 struct step_times *dense, const char *sparse_name, struct step_times *sparse);

/* The settings. Each function measures one setting. If an error occurs, it prints the error and ends the program. */
void step_kascade(struct report *, const struct step_options *);
void step_delta(struct report *, const struct step_options *);
void step_model(struct report *, const struct step_options *);
void step_deltakv(struct report *, const struct step_options *);

#endif
