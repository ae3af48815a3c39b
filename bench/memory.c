/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/memory.c - sparsekv-bench memory: measures the memory that a long decode uses, as the daemon accounts for it.
 *
 * For each policy, one sequence decodes random tokens. At intervals the benchmark asks the daemon, as sparsekvctl does,
 * how many pages the sequence has: for K and V, for codes and references, and for page bounds and slot metadata, which
 * some policies store in addition. The numbers depend only on lengths, so a small model is enough.
 *
 * With --lengths, a sequence of each given length is made from a prompt instead, which allows models of any shape. With
 * --geometry there is no sequence: the numbers are computed by the client library's rules. Both ways give the same
 * results.
 */
#include "bench/bench.h"
#include "bench/zero-weights.h"
#include "bench/stack-fixture.h"
#include "daemon/ctl/conn.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TIMEOUT_MS 60000

struct options {
	uint32_t device;
	const char *policy[BENCH_LIST_MAX];
	long prompt, tokens, every, layers, dim, width, length[BENCH_LIST_MAX];
	int n_policies, n_lengths;
	bool geometry;
	uint32_t heads, kv_heads;
	const char *csv;
};

/* Names of the policies in bench/policies.txt. */
static const char *const usual[] = {
#define BENCH_MEMORY(name, spec) name,
#include "bench/specs.h"
};

static const struct column columns[] = {
	{"tokens", 0}, {"policy", -20}, {"kv_mib", 3}, {"codes_mib", 3}, {"refs_mib", 3},
	{"bounds_mib", 3}, {"notes_mib", 3}, {"kept", 3}, {"more", 3},
};

/* Number of a sequence's pages by kind; `all`: number of pages if all tokens were stored as K and V in all layers. */
struct pages {
	double of[SKV_PAGE_KINDS], all;
};

static double kept(const struct pages *p)
{
	return p->of[SKV_PAGES_KV] + p->of[SKV_PAGES_CODES] + p->of[SKV_PAGES_REFS];
}

/* Reports a row. *last has the figures of the same policy's previous row, and is set to those of this row. */
static void row(struct report *r, double tokens, const char *policy, const struct skv_model *m, const struct pages *p,
                struct pages *last)
{
	const double mib = (double)skv_page_bytes(m) / (1 << 20), more = p->all - last->all;

	report_row(r, tokens, policy, p->of[SKV_PAGES_KV] * mib, p->of[SKV_PAGES_CODES] * mib,
	           p->of[SKV_PAGES_REFS] * mib, p->of[SKV_PAGES_STATE] * mib, p->of[SKV_PAGES_SLOT_META] * mib,
	           kept(p) / p->all, last->all > 0 && more > 0 ? (kept(p) - kept(last)) / more : NAN);
	fflush(stdout);
	*last = *p;
}

/* ---- the daemon's accounting ---------------------------------------------------------------------- */

static void need_answer(const struct skv_ctl *ctl, int e)
{
	if (e == 0)
		return;
	fprintf(stderr, "sparsekv-bench: memory: %s\n", ctl->err);
	exit(1);
}

static double figure(const json_t *from, const char *key)
{
	return json_number_value(json_object_get(from, key));
}

/* Asks the daemon for the pages of the only sequence, and reports them. */
static void look(struct skv_ctl *ctl, const struct stack_fixture *stack, const char *policy, struct report *r,
                 struct pages *last)
{
	static const char *const names[SKV_PAGE_KINDS] = {"kv", "bounds", "slot_meta", "codes", "refs", "prefill"};
	struct pages p;
	json_t *answer, *seq;

	need_answer(ctl, skv_ctl_query(ctl, SKV_QUERY_SEQS, &answer));
	seq = json_array_get(json_object_get(answer, "sequences"), 0);
	for (int i = 0; i < SKV_PAGE_KINDS; i++)
		p.of[i] = figure(json_object_get(seq, "pages"), names[i]);
	p.all = figure(seq, "pages_total");
	row(r, figure(seq, "tokens"), policy, &stack->model, &p, last);
	json_decref(answer);
}

static void decode(struct stack_fixture *stack, struct skv_ctl *ctl, const struct options *o, const char *policy,
                   struct report *r)
{
	struct pages last = {.all = 0};
	struct stack_times t;

	stack_fill(stack, 1, (uint32_t)o->prompt, (uint32_t)(o->tokens - o->prompt));
	for (long n = o->prompt + 1; n <= o->tokens; n++) {
		stack_step(stack, STACK_MOVING, &t);
		if (n % o->every == 0)
			look(ctl, stack, policy, r, &last);
	}
	stack_empty(stack);
}

/*
 * Makes a sequence of each length: a prompt, then one decoded token. The step that decodes it first compresses the
 * prompt's tokens.
 */
static void append(struct stack_fixture *stack, struct skv_ctl *ctl, const struct options *o, const char *policy,
                   struct report *r)
{
	struct pages last = {.all = 0};
	struct stack_times t;

	for (long i = 0; i < o->n_lengths; i++) {
		stack_fill(stack, 1, (uint32_t)o->length[i] - 1, 1);
		stack_step(stack, STACK_MOVING, &t);
		look(ctl, stack, policy, r, &last);
		stack_empty(stack);
	}
}

/* ---- lengths alone ------------------------------------------------------------------------------ */

static void say(const struct stack_fixture *stack, const struct options *o, const char *policy, struct report *r)
{
	struct pages last = {.all = 0}, p;
	uint64_t pages[SKV_PAGE_KINDS];

	for (long i = 0; i < o->n_lengths; i++) {
		if (!geometry_pages(stack->session, (uint32_t)o->length[i], pages)) {
			fprintf(stderr,
			        "sparsekv-bench: memory: %s: what it keeps does not follow from lengths alone\n", policy);
			exit(1);
		}
		for (int group = 0; group < SKV_PAGE_KINDS; group++)
			p.of[group] = (double)pages[group];
		p.all = (double)skv_pages_of((uint32_t)o->length[i]) * stack->model.n_layers;
		row(r, (double)o->length[i], policy, &stack->model, &p, &last);
	}
}

static void run(struct stack_fixture *stack, struct skv_ctl *ctl, const struct options *o, const char *policy,
                struct report *r)
{
	struct skv_model m = {
		.size = sizeof m,
		.n_layers = (uint32_t)o->layers,
		.n_heads = o->heads,
		.n_kv_heads = o->kv_heads,
		.head_dim = (uint32_t)o->dim,
		.kv_dtype = SKV_BF16,
		.max_tokens = (uint32_t)(o->n_lengths ? o->length[o->n_lengths - 1] : o->tokens),
		.n_ranks = 1,
		.name = "memory",
		.rope = {.type = SKV_ROPE_DEFAULT, .theta = 500000},
	};

	geometry_begin(&m, (uint32_t)o->width);
	stack_open(stack, &m, policy);
	geometry_end();
	if (o->geometry)
		say(stack, o, policy, r);
	else if (o->n_lengths)
		append(stack, ctl, o, policy, r);
	else
		decode(stack, ctl, o, policy, r);
	stack_close(stack);
}

/* ---- options ------------------------------------------------------------------------------------ */

static const char about[] = "Decodes a sequence under each policy and asks the daemon what it has in memory.";

/* Fills in defaults, and checks that the options fit together. */
static int complete(struct options *o)
{
	if (o->prompt >= o->tokens)
		return bench_bad("prompt", "that long", "less than the tokens in all");
	if (o->geometry && !o->n_lengths)
		for (long n = 1024; n <= 524288; n *= 2)
			o->length[o->n_lengths++] = n;
	for (int i = 0; i < o->n_lengths; i++)
		if (o->length[i] > SKV_MAX_TOKENS / 2 || (i > 0 && o->length[i] <= o->length[i - 1]))
			return bench_bad("lengths", "they", "ascending, and none above half of what a sequence may have,");
	if (!o->dim)
		o->dim = o->device ? 64 : 32;
	if (!o->n_policies) {
		memcpy(o->policy, usual, sizeof usual);
		o->n_policies = sizeof usual / sizeof *usual;
	}
	return 0;
}

/* Returns 0, or -1 after an error was reported. */
static int parse(struct options *o, int argc, char **argv)
{
	const struct eng_option table[] = {
		ENG_TEXTS("policy", "SPEC", o->policy, &o->n_policies,
		            "a policy; again for another one (full, and policies that select or evict, which keep or\n"
		            "attend to 1024 tokens where they have a budget)"),
		ENG_COUNT("prompt", &o->prompt, 1, SKV_MAX_TOKENS / 2, "tokens of the prompt (128)"),
		ENG_COUNT("tokens", &o->tokens, 2, SKV_MAX_TOKENS / 2, "its length at last (16384)"),
		ENG_COUNT("every", &o->every, 1, SKV_MAX_TOKENS / 2, "steps between two questions (200)"),
		ENG_COUNTS("lengths", "LIST", o->length, &o->n_lengths, 2, UINT32_MAX,
		              "decode no sequence so far, but append one of each of these lengths, ascending, as a prompt"),
		ENG_FLAG("geometry", &o->geometry,
		           "have none at all: what lengths alone say, of policies that evict nothing; --lengths\n"
		           "1024 and so on, twice as many each, to 524288"),
		ENG_COUNT("width", &o->width, 32, 65536,
		             "elements of a code, of codecs for deltakv and palu, which are zeros (a quarter of those of\n"
		             "K and V of a token, and half)"),
		ENG_DEVICE(&o->device, "on that device (host memory)"),
		ENG_COUNT("layers", &o->layers, 1, SKV_MAX_LAYERS, "layers (4)"),
		BENCH_HEADS(&o->heads, &o->kv_heads, "q heads/kv heads (4/2)"),
		ENG_COUNT("dim", &o->dim, 16, SKV_MAX_HEAD_DIM, "head dimension (32; on a device 64)"),
		BENCH_CSV(&o->csv),
	};
	const struct bench_command command = {"memory", NULL, about, table, sizeof table / sizeof *table};
	int e;

	*o = (struct options){.prompt = 128, .tokens = 16384, .every = 200, .layers = 4, .heads = 4, .kv_heads = 2};
	e = bench_options(&command, argc, argv);
	return e ? e : complete(o);
}

static int measure(struct report *r, const void *options)
{
	const struct options *o = options;
	struct stack_fixture stack;
	struct skv_ctl ctl;

	stack_start(&stack, o->device);
	need_answer(&ctl, skv_ctl_connect(&ctl, eng_private_socket(stack.daemon), "sparsekv-bench", TIMEOUT_MS));
	for (long i = 0; i < o->n_policies; i++)
		run(&stack, &ctl, o, o->policy[i], r);
	skv_ctl_close(&ctl);
	stack_stop(&stack);
	return 0;
}

int bench_memory(int argc, char **argv)
{
	struct options o;
	int e = parse(&o, argc, argv);

	return bench_report(e, measure, &o, columns, sizeof columns / sizeof *columns, o.csv);
}
