/* SPDX-License-Identifier: Apache-2.0 */
/* bench/step-report.c - sparsekv-bench step: default options, and the rows of its table. */
#include <math.h>
#include "bench/step.h"

static const struct column columns[] = {
	{"setting", -1}, {"attention", -1}, {"heads", -1},  {"dim", 0},     {"layers", 0},      {"batch", 0},
	{"tokens", 0},   {"budget", 0},     {"ms", 4},      {"speedup", 2}, {"whole_ms", 4},    {"whole_speedup", 2},
	{"steps_per_s", 1}, {"rows", -1},   {"share", 3},       {"kv_bytes", 1},    {"codes_bytes", 1}, {"refs_bytes", 1},
	{"fit", 0},
};

int step_report_all(int parsed, bench_measure_fn *measure, const void *options, const char *csv)
{
	return bench_report(parsed, measure, options, columns, sizeof columns / sizeof *columns, csv);
}

void step_row(struct report *r, const struct step_row *x)
{
	report_row(r, x->setting, x->attention, x->heads, (double)x->dim, (double)x->layers, (double)x->batch,
	           (double)x->tokens, (double)x->budget, x->ms, x->speedup, x->whole_ms, x->whole_speedup,
	           1e3 / (isnan(x->whole_ms) ? x->ms : x->whole_ms), x->rows, x->share, x->kv, x->codes, x->refs, x->fit);
}

void step_defaults(struct step_options *o, const struct step_options *defaults)
{
	if (!o->heads) {
		o->heads = defaults->heads;
		o->kv_heads = defaults->kv_heads;
	}
	o->layers = o->layers ? o->layers : defaults->layers;
	o->dim = o->dim ? o->dim : defaults->dim;
	o->batch = o->batch ? o->batch : defaults->batch;
	o->tokens = o->tokens ? o->tokens : defaults->tokens;
	o->budget = o->budget ? o->budget : defaults->budget;
}

void step_report(struct report *r, const char *setting, const struct step_options *o, const char *dense_name,
                 struct step_times *dense, const char *sparse_name, struct step_times *sparse)
{
	struct step_times *both[] = {dense, sparse};
	const char *names[] = {dense_name, sparse_name};
	double first[2] = {0};
	char heads[32];

	snprintf(heads, sizeof heads, "%u/%u", o->heads, o->kv_heads);
	for (int i = 0; i < 2; i++) {
		struct step_times *t = both[i];
		double ms = t->n ? bench_median(t->device_ms, t->n) : NAN;
		double whole = t->n_whole ? bench_median(t->whole_ms, t->n_whole) : NAN;
		if (i == 0) {
			first[0] = ms;
			first[1] = whole;
		}
		step_row(r, &(struct step_row){
			.setting = setting, .attention = names[i], .heads = heads, .rows = "",
			.dim = o->dim, .layers = o->layers, .batch = o->batch, .tokens = o->tokens, .budget = o->budget,
			.ms = ms, .speedup = first[0] / ms, .whole_ms = whole, .whole_speedup = first[1] / whole,
			.share = NAN, .kv = NAN, .codes = NAN, .refs = NAN, .fit = NAN,
		});
	}
}
