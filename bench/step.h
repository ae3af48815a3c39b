/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/step.h - what the settings of sparsekv-bench step share.
 */
#ifndef SKV_BENCH_STEP_H
#define SKV_BENCH_STEP_H

#include "bench/bench.h"

#define STEP_REPEAT_MAX 1000

/* 0: the setting's own figure. */
struct step_options {
	uint32_t device, heads, kv_heads;
	long layers, dim, batch, tokens, budget, repeat; /* budget: tokens that a sparse layer attends to */
	int rows;     /* of deltakv: 0 of either kind, else 1 + enum synthetic_rows */
	bool largest; /* and its largest batch, too */
};

/* Fill in what was left open. */
void step_defaults(struct step_options *, const struct step_options *defaults);

/* Steps of one kind, as they come; medians are reported. */
struct step_times {
	double device_ms[2 * STEP_REPEAT_MAX]; /* attention alone */
	double whole_ms[2 * STEP_REPEAT_MAX];  /* all of the step, waited for; n_whole may be 0 */
	size_t n, n_whole;
};

/* A row of the table; NAN: left empty. */
struct step_row {
	const char *setting, *attention, *heads, *rows;
	long dim, layers, batch, tokens, budget;
	double ms, speedup, whole_ms, whole_speedup;
	double share;          /* of the step that is not spent where nothing is compressed */
	double kv, codes, refs; /* bytes of a token, all layers, by kind */
	double fit;             /* sequences as long that there is room for */
};
/* bench_report() with the columns of steps. */
int step_report_all(int parsed, bench_measure_fn *, const void *options, const char *csv);
void step_row(struct report *, const struct step_row *);

/* A row for each of the two, and how many times faster the second one is. */
void step_report(struct report *, const char *setting, const struct step_options *, const char *dense_name,
                 struct step_times *dense, const char *sparse_name, struct step_times *sparse);

/* A setting that cannot be measured says why and ends the program. */
void step_kascade(struct report *, const struct step_options *);
void step_delta(struct report *, const struct step_options *);
void step_model(struct report *, const struct step_options *);
void step_deltakv(struct report *, const struct step_options *);

#endif
