/* SPDX-License-Identifier: Apache-2.0 */
/* bench/step.c - sparsekv-bench step: picks the settings, and reports. */
#include "bench/step.h"
#include <getopt.h>
#include <math.h>
#include <string.h>
#include "bench/synthetic-codec.h"

static const struct {
	const char *name;
	void (*run)(struct report *, const struct step_options *);
} settings[] = {
	/* these first: they start a daemon, and no threads should be there before */
	{"delta", step_delta},
	{"model", step_model},
	{"deltakv", step_deltakv},
	{"kascade", step_kascade},
};
#define N_SETTINGS (sizeof settings / sizeof *settings)

/* ---- report ---------------------------------------------------------------------------------- */

static const struct column columns[] = {
	{"setting", -1}, {"attention", -1}, {"heads", -1},  {"dim", 0},     {"layers", 0},      {"batch", 0},
	{"tokens", 0},   {"budget", 0},     {"ms", 4},      {"speedup", 2}, {"whole_ms", 4},    {"whole_speedup", 2},
	{"steps_per_s", 1}, {"rows", -1},   {"share", 3},       {"kv_bytes", 1},    {"codes_bytes", 1}, {"refs_bytes", 1},
	{"fit", 0},
};

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

/* ---- options --------------------------------------------------------------------------------- */

static void help(void)
{
	puts("usage: sparsekv-bench step [OPTION...]\n\n"
	     "Times whole decode steps, and the same with dense layers alone:\n\n"
	     "  kascade  the kernels, on memory of their own: layer 0 selects tokens for each kv head, and so do\n"
	     "           four others; fp16, 32 layers of 32/8 heads, 16 sequences of 32768 tokens, 10 %\n"
	     "  delta    daemon, client library and policy: 5 of 28 layers dense, 1024 tokens for the others;\n"
	     "           bf16, 12/2 heads, 64 sequences of 18432 tokens\n"
	     "  model    the same within the steps of a model of 1.5 billion random weights\n"
	     "  deltakv  daemon, client library and policy, a compressor of random weights: 5 of 32 layers dense,\n"
	     "           2048, 4096 and 8192 tokens for the others; bf16, 32/8 heads, sequences of 131072 and of\n"
	     "           524288 tokens, as many as there is room for; against full, and omnikv with the same budget\n\n"
	     "  --setting LIST   which of them (delta,model,kascade)\n"
	     "  --device cuda:N  on that device; there a step is a replayed recording (host memory)\n"
	     "  --batch N        sequences\n"
	     "  --tokens N       their length\n"
	     "  --budget N       tokens that a sparse layer looks at\n"
	     "  --layers N\n"
	     "  --heads Q/KV     q heads/kv heads\n"
	     "  --dim N          head dimension\n"
	     "  --repeat N       steps of each kind, of which the median counts (30)\n"
	     "  --rows KIND      deltakv: random, or clustered (both)\n"
	     "  --largest        deltakv: with as many sequences as there is room for when they are packed, too\n"
	     "  --csv FILE       the figures as CSV, too");
}

struct arguments {
	struct step_options step;
	bool chosen[N_SETTINGS];
	const char *csv;
};

static int parse_settings(struct arguments *a, const char *text)
{
	memset(a->chosen, 0, sizeof a->chosen);
	for (const char *p = text; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
		size_t len = strcspn(p, ","), i = 0;
		while (i < N_SETTINGS && (strlen(settings[i].name) != len || strncmp(settings[i].name, p, len)))
			i++;
		if (i == N_SETTINGS)
			return bench_bad("setting", text, "delta, model, deltakv or kascade, separated by commas");
		a->chosen[i] = true;
	}
	return 0;
}

static int parse_rows(struct step_options *o, const char *text)
{
	o->rows = !strcmp(text, "random") ? 1 + SYNTHETIC_RANDOM : !strcmp(text, "clustered") ? 1 + SYNTHETIC_CLUSTERED : 0;
	return o->rows ? 0 : bench_bad("rows", text, "random or clustered");
}

/* 0: go on, 1: help was asked for, -1: an error was reported. */
static int parse(struct arguments *a, int argc, char **argv)
{
	static const struct option longs[] = {
		{"setting", 1, 0, 's'}, {"device", 1, 0, 'v'}, {"batch", 1, 0, 'b'},  {"tokens", 1, 0, 'n'},
		{"budget", 1, 0, 'g'},  {"layers", 1, 0, 'l'}, {"heads", 1, 0, 'h'},  {"dim", 1, 0, 'd'},
		{"repeat", 1, 0, 'r'},  {"csv", 1, 0, 'c'},    {"rows", 1, 0, 'w'},   {"largest", 0, 0, 'x'},
		{"help", 0, 0, '?' + 128}, {0},
	};
	struct step_options *o = &a->step;
	int e = 0;
	*a = (struct arguments){.step.repeat = 30};
	for (size_t i = 0; i < N_SETTINGS; i++)
		a->chosen[i] = settings[i].run != step_deltakv; /* it fills all memory */
	for (int c; !e && (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
		switch (c) {
		case 's':
			e = parse_settings(a, optarg);
			break;
		case 'v':
			e = bench_device(optarg, &o->device);
			break;
		case 'b':
			e = bench_number("batch", optarg, 1, 4096, &o->batch);
			break;
		case 'n':
			e = bench_number("tokens", optarg, 64, SKV_MAX_TOKENS / 2, &o->tokens);
			break;
		case 'g':
			e = bench_number("budget", optarg, 16, SKV_MAX_TOKENS / 2, &o->budget);
			break;
		case 'l':
			e = bench_number("layers", optarg, 1, SKV_MAX_LAYERS, &o->layers);
			break;
		case 'h':
			e = bench_heads(optarg, &o->heads, &o->kv_heads);
			break;
		case 'd':
			e = bench_number("dim", optarg, 16, SKV_MAX_HEAD_DIM, &o->dim);
			break;
		case 'r':
			e = bench_number("repeat", optarg, 1, STEP_REPEAT_MAX, &o->repeat);
			break;
		case 'w':
			e = parse_rows(o, optarg);
			break;
		case 'x':
			o->largest = true;
			break;
		case 'c':
			a->csv = optarg;
			break;
		case '?' + 128:
			help();
			return 1;
		default:
			return -1;
		}
	}
	if (!e && optind < argc) {
		fprintf(stderr, "sparsekv-bench: step: unexpected argument '%s'\n", argv[optind]);
		return -1;
	}
	return e;
}

int bench_step(int argc, char **argv)
{
	struct arguments a;
	struct report r;
	int e = parse(&a, argc, argv);

	if (e)
		return e > 0 ? 0 : 2;
	e = report_init(&r, columns, sizeof columns / sizeof *columns, a.csv);
	for (size_t i = 0; !e && i < N_SETTINGS; i++)
		if (a.chosen[i])
			settings[i].run(&r, &a.step);
	if (!e)
		e = report_deinit(&r);
	if (e) {
		fprintf(stderr, "sparsekv-bench: --csv %s: %s\n", a.csv, strerror(-e));
		return 1;
	}
	return 0;
}
