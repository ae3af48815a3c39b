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
	long layers, dim, batch, tokens, budget, repeat; /* budget: tokens that a sparse layer looks at */
};

/* Fill in what was left open. */
void step_defaults(struct step_options *, const struct step_options *defaults);

/* Steps of one kind, as they come; medians are reported. */
struct step_times {
	double device_ms[2 * STEP_REPEAT_MAX]; /* attention alone */
	double whole_ms[2 * STEP_REPEAT_MAX];  /* all of the step, waited for; n_whole may be 0 */
	size_t n, n_whole;
};

/* A row for each of the two, and how many times faster the second one is. */
void step_report(struct report *, const char *setting, const struct step_options *, const char *dense_name,
                 struct step_times *dense, const char *sparse_name, struct step_times *sparse);

/* A setting that cannot be measured says why and ends the program. */
void step_kascade(struct report *, const struct step_options *);
void step_delta(struct report *, const struct step_options *);
void step_model(struct report *, const struct step_options *);

#endif
