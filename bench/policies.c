/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/policies.c - sparsekv-bench policies: what a decode step takes under each policy, through the whole stack.
 *
 * The sequences are filled once. Each policy gets forks of them, which share what was filled, so that one that evicts
 * takes nothing away from the next. Steps are replays of a recording where there is a device. K and V of a layer are
 * random, so a policy finds nothing in particular; how much it looks at does not depend on that.
 */
#include "bench/bench.h"
#include "bench/stack-fixture.h"
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SPECS_MOST 64
#define WARM 6 /* steps of a policy that do not count: what it keeps is made, what it evicts goes, recordings are made */
#define REPEAT_MOST 1000

static const struct column columns[] = {
	{"policy", -44}, {"heads", -6}, {"layers", 0}, {"batch", 0}, {"tokens", 0},   {"attention_ms", 3},
	{"of_full", 3},  {"attended", 3}, {"GB", 2},   {"GB_per_s", 0}, {"step_ms", 3}, {"kept", 3},
};

/* Layers are given where a policy's own are those of a model of 28 or 32 layers. */
static const char *const default_specs[] = {
	"full",
	"streaming?budget=0.1",
	"quest?budget=0.1",
	"quest:shared?budget=0.1",
	"delta?budget=0.1",
	"kascade?budget=0.1",
	"kascade:dense-anchors?budget=0.1",
	"kascade:shared?budget=0.1",
	"omnikv?budget=0.1",
	"tidal?budget=0.1",
	"lessismore?budget=0.1",
};

struct options {
	uint32_t device, heads, kv_heads;
	long layers, dim, batch, tokens, repeat;
	const char *spec[SPECS_MOST];
	int n_specs;
	const char *csv;
};

struct seen {
	double attention[REPEAT_MOST], whole[REPEAT_MOST];
	size_t n;
	double attended; /* share of all tokens */
	double kept;     /* share of all pages */
};

static struct skv_stats stats_of(struct stack_fixture *stack)
{
	struct skv_stats s = {.size = sizeof(s)};

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

/* A row; *full_ms is set by the first one. */
static void row(struct report *r, const struct options *o, const char *spec, struct seen *x, double *full_ms)
{
	const double bytes = 4.0 * o->kv_heads * (double)o->dim * (double)(o->layers * o->batch * o->tokens);
	const double ms = bench_median(x->attention, x->n), gb = bytes * x->attended / 1e9;
	char heads[32];

	if (isnan(*full_ms))
		*full_ms = ms;
	snprintf(heads, sizeof heads, "%u/%u", o->heads, o->kv_heads);
	report_row(r, spec, heads, (double)o->layers, (double)o->batch, (double)o->tokens, ms, ms / *full_ms, x->attended,
	           gb, gb / ms * 1e3, bench_median(x->whole, x->n), x->kept);
	fflush(stdout);
}

static void measure(struct report *r, const struct options *o)
{
	struct seen *x = calloc(1, sizeof *x);
	struct skv_model shape = SKV_MODEL_INIT;
	double full_ms = NAN;
	struct stack_fixture stack;

	shape.n_layers = (uint32_t)o->layers;
	shape.n_heads = o->heads;
	shape.n_kv_heads = o->kv_heads;
	shape.head_dim = (uint32_t)o->dim;
	shape.max_tokens = (uint32_t)(o->tokens + WARM + o->repeat);
	shape.kv_dtype = SKV_BF16;
	snprintf(shape.name, sizeof shape.name, "bench");
	stack_start(&stack, o->device);
	stack_open(&stack, &shape, "full");
	stack_fill(&stack, (uint32_t)o->batch, (uint32_t)o->tokens, (uint32_t)(WARM + o->repeat));
	for (int i = 0; i < o->n_specs; i++) {
		stack_hand_over(&stack, o->spec[i]);
		stack_fork(&stack);
		steps(&stack, o->repeat, x);
		row(r, o, o->spec[i], x, &full_ms);
		stack_drop_forks(&stack);
	}
	stack_empty(&stack);
	stack_close(&stack);
	stack_stop(&stack);
	free(x);
}

static void help(void)
{
	puts("usage: sparsekv-bench policies [OPTION...]\n\n"
	     "Times decode steps of the same sequences under each policy, the first one being what the others are\n"
	     "compared with. attended: tokens attended to, of all; GB: K and V of these (what a policy reads to choose\n"
	     "comes on top); kept: pages kept, of all.\n\n"
	     "  --spec SPEC      a policy; may be given again and again (full, and all that come with the daemon at 10 %)\n"
	     "  --device cuda:N  on that device (host memory)\n"
	     "  --batch N        sequences (64; 2 on the host)\n"
	     "  --tokens N       their length (32768; 4096 on the host)\n"
	     "  --layers N       (16)\n"
	     "  --heads Q/KV     q heads/kv heads (4/1)\n"
	     "  --dim N          head dimension (128)\n"
	     "  --repeat N       steps of each, of which the median counts (20)\n"
	     "  --csv FILE       the figures as CSV, too");
}

/* 0: go on, 1: help was asked for, -1: an error was reported. */
static int parse(struct options *o, int argc, char **argv)
{
	static const struct option longs[] = {
		{"spec", 1, 0, 's'}, {"device", 1, 0, 'v'}, {"batch", 1, 0, 'b'},  {"tokens", 1, 0, 'n'}, {"layers", 1, 0, 'l'},
		{"heads", 1, 0, 'h'}, {"dim", 1, 0, 'd'},   {"repeat", 1, 0, 'r'}, {"csv", 1, 0, 'c'},    {"help", 0, 0, 'H'},
		{0},
	};
	int e = 0;

	*o = (struct options){.heads = 4, .kv_heads = 1, .layers = 16, .dim = 128, .repeat = 20};
	for (int c; !e && (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
		switch (c) {
		case 's':
			if (o->n_specs == SPECS_MOST)
				return bench_bad("spec", optarg, "at most 64 of them");
			o->spec[o->n_specs++] = optarg;
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
			e = bench_number("repeat", optarg, 2, REPEAT_MOST, &o->repeat);
			break;
		case 'c':
			o->csv = optarg;
			break;
		case 'H':
			help();
			return 1;
		default:
			return -1;
		}
	}
	if (!e && optind < argc) {
		fprintf(stderr, "sparsekv-bench: policies: unexpected argument '%s'\n", argv[optind]);
		return -1;
	}
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
	struct report r;
	int e = parse(&o, argc, argv);

	if (e)
		return e > 0 ? 0 : 2;
	e = report_init(&r, columns, sizeof columns / sizeof *columns, o.csv);
	if (!e) {
		measure(&r, &o);
		e = report_deinit(&r);
	}
	if (e) {
		fprintf(stderr, "sparsekv-bench: --csv %s: %s\n", o.csv, strerror(-e));
		return 1;
	}
	return 0;
}
