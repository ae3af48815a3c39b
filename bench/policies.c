/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/policies.c - sparsekv-bench policies: measures the time of a decode step under each policy, with the whole
 * stack (daemon, client library, kernels).
 *
 * The sequences are filled once. Each policy is measured with forks of the sequences, which share the pages, so that a
 * policy that evicts tokens does not affect the next policy. On a device, steps are replays of a recording. K and V are
 * random, so a policy selects arbitrary tokens, but the number of tokens that it selects is the same as with a real
 * model.
 */
#include "bench/bench.h"
#include "bench/stack-fixture.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SPECS_MOST 64
/* number of steps before the measurement: policies build their state and evict in them, and recordings are made */
#define WARM 6
#define REPEAT_MOST 1000

static const struct column columns[] = {
	{"policy", -44}, {"heads", -6}, {"layers", 0}, {"batch", 0}, {"tokens", 0},   {"attention_ms", 3},
	{"of_full", 3},  {"attended", 3}, {"GB", 2},   {"GB_per_s", 0}, {"step_ms", 3}, {"kept", 3},
};

/* Policies of bench/policies.txt. Their default layers are those for a model of 28 or 32 layers. */
static const char *const default_specs[] = {
#define BENCH_STEP(name, spec) spec,
#include "bench/specs.h"
};

struct options {
	uint32_t device, heads, kv_heads;
	long layers, dim, batch, tokens, repeat;
	const char *spec[SPECS_MOST];
	int n_specs;
	uint32_t dtypes[BENCH_LIST_MAX];
	int n_dtypes;
	bool mixed;
	const char *csv;
};

struct seen {
	double attention[REPEAT_MOST], whole[REPEAT_MOST];
	size_t n;
	double attended; /* tokens attended to, as a share of those of dense attention */
	double kept;     /* pages in memory, as a share of those of dense attention */
};

static struct skv_stats stats_of(struct stack_fixture *stack)
{
	struct skv_stats s = {.size = sizeof(s)};

	skv_seq_tokens(stack->seq[0], NULL); /* waits for a device, whose steps count when they have run */
	stack_need(skv_session_stats(stack->session, &s));
	return s;
}

static double kept_of(struct stack_fixture *stack)
{
	uint64_t resident = 0, total = 0;

	for (uint32_t i = 0; i < stack->n; i++) {
		uint64_t r, t;
		skv_seq_pages(stack->item[i].seq, &r, &t);
		resident += r;
		total += t;
	}
	return (double)resident / (double)total;
}

static void steps(struct stack_fixture *stack, long n, struct seen *to)
{
	const enum stack_how how = stack->device ? STACK_REPLAY : STACK_CALLS;
	struct skv_stats before, after;
	struct stack_times t;

	to->n = 0;
	for (int i = 0; i < WARM; i++)
		stack_step(stack, how, &t);
	before = stats_of(stack);
	for (long i = 0; i < n; i++) {
		stack_step(stack, how, &t);
		if (t.recorded)
			continue;
		to->attention[to->n] = t.device_ms;
		to->whole[to->n++] = t.whole / 1e3;
	}
	after = stats_of(stack);
	to->attended = (double)(after.attended_tokens - before.attended_tokens) /
	               (double)(after.causal_tokens - before.causal_tokens);
	to->kept = kept_of(stack);
}

/*
 * Reports a row. *full_ms is the attention time of the first row, which the others are compared with; the first row
 * sets it.
 */
static void row(struct report *r, const struct options *o, const char *spec, struct seen *x, double *full_ms)
{
	const double bytes = 2.0 * (double)skv_dtype_bytes(o->dtypes[0]) * o->kv_heads * (double)o->dim * (double)(o->layers * o->batch * o->tokens);
	const double ms = bench_median(x->attention, x->n), gb = bytes * x->attended / 1e9;
	char heads[32];

	if (isnan(*full_ms))
		*full_ms = ms;
	snprintf(heads, sizeof heads, "%u/%u", o->heads, o->kv_heads);
	report_row(r, spec, heads, (double)o->layers, (double)o->batch, (double)o->tokens, ms, ms / *full_ms, x->attended,
	           gb, gb / ms * 1e3, bench_median(x->whole, x->n), x->kept);
	fflush(stdout);
}

static void measure_spec(struct report *r, struct stack_fixture *stack, const struct options *o, const char *spec, struct seen *x,
                         double *full_ms)
{
	stack_hand_over(stack, spec);
	stack_fork(stack);
	steps(stack, o->repeat, x);
	row(r, o, spec, x, full_ms);
	stack_drop_forks(stack);
}

/* Measures steps in which all policies run at once: the policies are assigned to the sequences in turn. */
static void measure_mixed(struct report *r, struct stack_fixture *stack, const struct options *o, struct seen *x, double *full_ms)
{
	stack_hand_over(stack, o->spec[0]);
	stack_fork(stack);
	for (uint32_t i = 0; i < stack->n; i++)
		if (i % (uint32_t)o->n_specs)
			stack_need(skv_seq_policy(stack->item[i].seq, o->spec[i % (uint32_t)o->n_specs]));
	steps(stack, o->repeat, x);
	row(r, o, "all of these in turn", x, full_ms);
	stack_drop_forks(stack);
}

static int measure(struct report *r, const void *options)
{
	const struct options *o = options;
	struct seen *x = calloc(1, sizeof *x);
	struct skv_model shape = SKV_MODEL_INIT;
	double full_ms = NAN;
	struct stack_fixture stack;

	shape.n_layers = (uint32_t)o->layers;
	shape.n_heads = o->heads;
	shape.n_kv_heads = o->kv_heads;
	shape.head_dim = (uint32_t)o->dim;
	shape.max_tokens = (uint32_t)(o->tokens + WARM + o->repeat);
	shape.kv_dtype = o->dtypes[0];
	snprintf(shape.name, sizeof shape.name, "bench");
	stack_start(&stack, o->device);
	stack_open(&stack, &shape, "full");
	stack_fill(&stack, (uint32_t)o->batch, (uint32_t)o->tokens, (uint32_t)(WARM + o->repeat));
	for (int i = 0; i < o->n_specs; i++)
		measure_spec(r, &stack, o, o->spec[i], x, &full_ms);
	if (o->mixed)
		measure_mixed(r, &stack, o, x, &full_ms);
	stack_empty(&stack);
	stack_close(&stack);
	stack_stop(&stack);
	free(x);
	return 0;
}

static const char about[] =
	"Times decode steps of the same sequences under each policy, the first one being what the others are\n"
	"compared with. attended: tokens attended to, of all; GB: K and V of these (what a policy reads to select\n"
	"comes on top); kept: pages kept, of all.";

/* Returns 0, or -1 after an error was reported. */
static int parse(struct options *o, int argc, char **argv)
{
	const struct eng_option table[] = {
		ENG_TEXTS("spec", "SPEC", o->spec, &o->n_specs,
		            "a policy; may be given again and again (full, and all that come with the daemon at 10 %)"),
		ENG_DEVICE(&o->device, "on that device (host memory)"),
		ENG_COUNT("batch", &o->batch, 1, 4096, "sequences (64; 2 on the host)"),
		ENG_COUNT("tokens", &o->tokens, 64, SKV_MAX_TOKENS / 2, "their length (32768; 4096 on the host)"),
		ENG_COUNT("layers", &o->layers, 1, SKV_MAX_LAYERS, "layers (16)"),
		BENCH_HEADS(&o->heads, &o->kv_heads, "q heads/kv heads (4/1)"),
		ENG_COUNT("dim", &o->dim, 16, SKV_MAX_HEAD_DIM, "head dimension (128)"),
		BENCH_DTYPES(o->dtypes, &o->n_dtypes, "of K and V: bf16, fp16 or fp8, on the host fp32 too (bf16)"),
		ENG_COUNT("repeat", &o->repeat, 2, REPEAT_MOST, "steps of each, of which the median counts (20)"),
		ENG_FLAG("mixed", &o->mixed, "besides, all of them at once: those of the sequences in turn"),
		BENCH_CSV(&o->csv),
	};
	const struct bench_command command = {"policies", NULL, about, table, sizeof table / sizeof *table};
	int e;

	*o = (struct options){.heads = 4, .kv_heads = 1, .layers = 16, .dim = 128, .repeat = 20, .dtypes = {SKV_BF16}};
	e = bench_options(&command, argc, argv);
	o->batch = o->batch ? o->batch : o->device ? 64 : 2;
	o->tokens = o->tokens ? o->tokens : o->device ? 32768 : 4096;
	if (o->n_specs == 0) {
		o->n_specs = sizeof default_specs / sizeof *default_specs;
		memcpy(o->spec, default_specs, sizeof default_specs);
	}
	return e;
}

int bench_policies(int argc, char **argv)
{
	struct options o;
	int e = parse(&o, argc, argv);

	return bench_report(e, measure, &o, columns, sizeof columns / sizeof *columns, o.csv);
}
