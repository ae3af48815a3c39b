/* SPDX-License-Identifier: Apache-2.0 */
/* bench/step.c - sparsekv-bench step: runs the settings (models and policies) that it measures. */
#include "bench/step.h"
#include "bench/synthetic-codec.h"

/*
 * Settings that start a daemon come first, because starting a daemon forks, and a process should have no threads then.
 */
static const struct {
	void (*run)(struct report *, const struct step_options *);
} settings[] = {{step_delta}, {step_model}, {step_deltakv}, {step_kascade}};
static const char *const setting_names[] = {"delta", "model", "deltakv", "kascade", NULL};
#define N_SETTINGS (sizeof settings / sizeof *settings)

static const char about[] =
	"Times whole decode steps, and the same with dense layers alone:\n\n"
	"  kascade  the kernels, on memory of their own: layer 0 selects tokens for each kv head, and so do\n"
	"           four others; fp16, 32 layers of 32/8 heads, 16 sequences of 32768 tokens, 10 %\n"
	"  delta    daemon, client library and policy: 5 of 28 layers dense, 1024 tokens for the others;\n"
	"           bf16, 12/2 heads, 64 sequences of 18432 tokens\n"
	"  model    the same within the steps of a model of 1.5 billion random weights\n"
	"  deltakv  daemon, client library and policy, a codec of random weights: 5 of 32 layers dense,\n"
	"           2048, 4096 and 8192 tokens for the others; bf16, 32/8 heads, sequences of 131072 and of\n"
	"           524288 tokens, as many as there is room for; against full, and the same selection of rows";

struct arguments {
	struct step_options step;
	uint32_t chosen[N_SETTINGS];
	int n_chosen;
	const char *csv;
};

/* Returns 0, or -1 after an error was reported. */
static int parse(struct arguments *a, int argc, char **argv)
{
	static const char *const kinds[] = {[SYNTHETIC_RANDOM] = "random", [SYNTHETIC_CLUSTERED] = "clustered", NULL};
	struct step_options *o = &a->step;
	uint32_t rows = UINT32_MAX;
	const struct eng_option table[] = {
		ENG_NAMES("setting", a->chosen, &a->n_chosen, setting_names, "which of them (delta,model,kascade)"),
		ENG_DEVICE(&o->device, "on that device; there a step is a replayed recording (host memory)"),
		ENG_COUNT("batch", &o->batch, 1, 4096, "sequences"),
		ENG_COUNT("tokens", &o->tokens, 64, SKV_MAX_TOKENS / 2, "their length"),
		ENG_COUNT("budget", &o->budget, 16, SKV_MAX_TOKENS / 2, "tokens that a sparse layer attends to"),
		ENG_COUNT("layers", &o->layers, 1, SKV_MAX_LAYERS, "layers"),
		BENCH_HEADS(&o->heads, &o->kv_heads, "q heads/kv heads"),
		ENG_COUNT("dim", &o->dim, 16, SKV_MAX_HEAD_DIM, "head dimension"),
		ENG_COUNT("repeat", &o->repeat, 1, STEP_REPEAT_MAX,
		             "steps of each kind, of which the median counts (30)"),
		ENG_NAME("rows", "KIND", &rows, kinds, "deltakv: random, or clustered (both)"),
		ENG_FLAG("largest", &o->largest,
		           "deltakv: with as many sequences as there is room for when they are compressed, too"),
		BENCH_CSV(&a->csv),
	};
	const struct bench_command command = {"step", NULL, about, table, sizeof table / sizeof *table};
	int e;

	*a = (struct arguments){.step.repeat = 30};
	for (uint32_t i = 0; i < N_SETTINGS; i++)
		if (settings[i].run != step_deltakv) /* deltakv is no default, because it fills all memory */
			a->chosen[a->n_chosen++] = i;
	e = bench_options(&command, argc, argv);
	o->rows = rows == UINT32_MAX ? 0 : 1 + (int)rows;
	return e;
}

static bool is_chosen(const struct arguments *a, uint32_t setting)
{
	for (int i = 0; i < a->n_chosen; i++)
		if (a->chosen[i] == setting)
			return true;
	return false;
}

static int measure(struct report *r, const void *arguments)
{
	const struct arguments *a = arguments;

	for (uint32_t i = 0; i < N_SETTINGS; i++)
		if (is_chosen(a, i))
			settings[i].run(r, &a->step);
	return 0;
}

int bench_step(int argc, char **argv)
{
	struct arguments a;
	int e = parse(&a, argc, argv);

	return step_report_all(e, measure, &a, a.csv);
}
