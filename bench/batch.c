/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/batch.c - sparsekv-bench batch: measures how the host time of skv_step_begin() and skv_step_end() grows with
 * the batch.
 *
 * In each step every sequence decodes a token. The model is so small that attention is short. The time of a step
 * depends on how many sequences need a new page, so these cases are measured separately. Sequences of equal length need
 * no new page in 15 steps, and all need one in the 16th step. Of sequences with different lengths, as in practice, a
 * sixteenth needs a new page in every step.
 */
#include "bench/bench.h"
#include "bench/stack-fixture.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SAMPLES 10000
#define WARM 20u /* number of steps that are not counted; some of them allocate pages */
#define EVEN 8u /* number of tokens for sequences of equal length; stack_fill() varies only lengths of a page or more */

struct options {
	uint32_t device;
	int n_batch, n_chosen;
	long batch[BENCH_LIST_MAX], layers, dim, tokens, repeat;
	uint32_t heads, kv_heads, chosen[8];
	const char *csv;
};

static const struct column columns[] = {
	{"operation", -10}, {"policy", -9}, {"batch", 0}, {"with_new_page", -13}, {"samples", 0},
	{"median_us", 2},   {"p99_us", 2},  {"median_us_a_seq", 3},
};

/* Policies of bench/policies.txt, and "mixed": each of the first three policies runs in a third of the sequences. */
static const char *const specs[] = {
#define BENCH_BATCH(name, spec) spec,
#include "bench/specs.h"
#undef BENCH_BATCH
};
static const char *const policy_names[] = {
#define BENCH_BATCH(name, spec) name,
#include "bench/specs.h"
	"mixed", NULL,
};
#define MIXED ((uint32_t)(sizeof specs / sizeof *specs))

enum { NONE, ALL, SOME, N_PAGES };
static const char *const pages_names[N_PAGES] = {"none", "all", "1/16"};

/* Times of skv_step_begin() and skv_step_end(), by how many sequences need a new page. */
struct samples {
	double begin[N_PAGES][MAX_SAMPLES], end[N_PAGES][MAX_SAMPLES];
	size_t n[N_PAGES];
};

static void own_policies(const struct stack_fixture *stack, uint32_t policy)
{
	for (uint32_t i = 0; i < stack->n && policy == MIXED; i++)
		if (i % 3)
			stack_need(skv_seq_policy(stack->seq[i], specs[i % 3]));
}

/* Measures steps of sequences with up to `tokens` tokens. Their lengths differ unless `tokens` is EVEN. */
static void take_steps(struct stack_fixture *stack, const struct options *o, uint32_t policy, uint32_t n, uint32_t tokens,
                       struct samples *s)
{
	struct stack_times t;

	stack_fill(stack, n, tokens, WARM + (uint32_t)o->repeat);
	own_policies(stack, policy);
	for (uint32_t i = 0; i < WARM + o->repeat; i++) {
		int pages = tokens > EVEN ? SOME : (tokens + i) % SKV_PAGE_TOKENS ? NONE : ALL;

		stack_step(stack, STACK_CALLS, &t);
		if (i < WARM)
			continue;
		s->begin[pages][s->n[pages]] = t.begin;
		s->end[pages][s->n[pages]++] = t.end;
	}
	stack_empty(stack);
}

static void report(struct report *r, const char *operation, uint32_t policy, double batch, int pages, double *us, size_t n)
{
	double median = n ? bench_median(us, n) : NAN;

	if (n)
		report_row(r, operation, policy_names[policy], batch, pages_names[pages], (double)n, median, bench_p99(us, n),
		           median / batch);
}

static void measure_batch(struct report *r, struct stack_fixture *stack, const struct options *o, uint32_t policy, uint32_t n)
{
	struct samples *s = calloc(1, sizeof *s);

	take_steps(stack, o, policy, n, EVEN, s);
	take_steps(stack, o, policy, n, (uint32_t)o->tokens, s);
	for (int pages = 0; pages < N_PAGES; pages++) {
		report(r, "step_begin", policy, n, pages, s->begin[pages], s->n[pages]);
		report(r, "step_end", policy, n, pages, s->end[pages], s->n[pages]);
	}
	free(s);
}

static const char about[] =
	"Times skv_step_begin and skv_step_end of steps in which every sequence decodes a token: of sequences\n"
	"that are all as long, of which none needs a new page, or all do, and of such as differ in length,\n"
	"of which a sixteenth does. In `mixed` a third runs each of the first three policies.";

/* Returns 0, or -1 after an error was reported. */
static int parse(struct options *o, int argc, char **argv)
{
	const struct eng_option table[] = {
		ENG_DEVICE(&o->device, "pages on that device (host memory)"),
		ENG_NAMES("policy", o->chosen, &o->n_chosen, policy_names, "which of them (the first three, and mixed)"),
		ENG_COUNTS("batch", "LIST", o->batch, &o->n_batch, 1, UINT32_MAX, "sequences in a step (1,16,64,256,1024)"),
		ENG_COUNT("layers", &o->layers, 1, SKV_MAX_LAYERS, "layers (32)"),
		BENCH_HEADS(&o->heads, &o->kv_heads, "q heads/kv heads (1/1)"),
		ENG_COUNT("dim", &o->dim, 16, SKV_MAX_HEAD_DIM, "head dimension (16)"),
		ENG_COUNT("tokens", &o->tokens, SKV_PAGE_TOKENS, SKV_MAX_TOKENS / 2, "length of those that differ, at most, at first (64)"),
		ENG_COUNT("repeat", &o->repeat, 1, MAX_SAMPLES, "steps (160)"),
		BENCH_CSV(&o->csv),
	};
	const struct bench_command command = {"batch", NULL, about, table, sizeof table / sizeof *table};

	*o = (struct options){
		.batch = {1, 16, 64, 256, 1024}, .n_batch = 5, .layers = 32, .heads = 1, .kv_heads = 1, .dim = 16, .tokens = 64,
		.repeat = 160, .chosen = {0, 1, 2, MIXED}, .n_chosen = 4,
	};
	return bench_options(&command, argc, argv);
}

static int measure(struct report *r, const void *options)
{
	const struct options *o = options;
	struct skv_model m = SKV_MODEL_INIT;
	struct stack_fixture stack;

	m.n_layers = (uint32_t)o->layers;
	m.n_heads = o->heads;
	m.n_kv_heads = o->kv_heads;
	m.head_dim = (uint32_t)o->dim;
	m.kv_dtype = SKV_BF16;
	m.max_tokens = (uint32_t)(o->tokens + o->repeat + WARM + SKV_PAGE_TOKENS);
	snprintf(m.name, sizeof m.name, "bench");
	stack_start(&stack, o->device);
	for (int i = 0; i < o->n_chosen; i++) {
		stack_open(&stack, &m, specs[o->chosen[i] % MIXED]);
		for (int b = 0; b < o->n_batch; b++)
			measure_batch(r, &stack, o, o->chosen[i], (uint32_t)o->batch[b]);
		stack_close(&stack);
	}
	stack_stop(&stack);
	return 0;
}

int bench_batch(int argc, char **argv)
{
	struct options o;
	int e = parse(&o, argc, argv);

	return bench_report(e, measure, &o, columns, sizeof columns / sizeof *columns, o.csv);
}
