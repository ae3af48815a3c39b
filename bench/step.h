/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/step.h - what the settings of sparsekv-bench step share.
 */
#ifndef SKV_BENCH_STEP_H
#define SKV_BENCH_STEP_H

#include "bench/bench.h"

#define STEP_REPEAT_MAX 1000

/* 0: the setting's default. */
struct step_options {
	uint32_t device, heads, kv_heads;
	long layers, dim, batch, tokens, budget, repeat; /* budget: tokens that a sparse layer attends to */
	int rows;     /* of deltakv: 0: both kinds; otherwise 1 + enum synthetic_rows */
	bool largest; /* of deltakv: also the largest batch that fits */
};

/* Fills in options that are 0. */
void step_defaults(struct step_options *, const struct step_options *defaults);

/* Times of steps of one kind, in order; medians are reported. */
struct step_times {
	double device_ms[2 * STEP_REPEAT_MAX]; /* attention alone */
	double whole_ms[2 * STEP_REPEAT_MAX];  /* whole steps, until all work is done; n_whole may be 0 */
	size_t n, n_whole;
};

/* A row of the table; NAN: empty cell. */
struct step_row {
	const char *setting, *attention, *heads, *rows;
	long dim, layers, batch, tokens, budget;
	double ms, speedup, whole_ms, whole_speedup;
	double share;          /* share of the step that compression and decompression take */
	double kv, codes, refs; /* bytes of a token over all layers, by kind */
	double fit;             /* number of such sequences that fit */
};
/* Calls bench_report() with the columns of steps. */
int step_report_all(int parsed, bench_measure_fn *, const void *options, const char *csv);
void step_row(struct report *, const struct step_row *);

/* Reports a row for each of the two, with their speedups over the first. */
void step_report(struct report *, const char *setting, const struct step_options *, const char *dense_name,
                 struct step_times *dense, const char *sparse_name, struct step_times *sparse);

/* They print errors and end the program. */
void step_kascade(struct report *, const struct step_options *);
void step_delta(struct report *, const struct step_options *);
void step_model(struct report *, const struct step_options *);
void step_deltakv(struct report *, const struct step_options *);

#endif
