/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/step-deltakv.c - sparsekv-bench step: compares steps under the policy deltakv with steps under full and omnikv,
 * with the whole stack (daemon, client library, kernels). omnikv makes the same selection as deltakv but reads
 * uncompressed rows, so the difference to omnikv is the cost of compression and decompression.
 *
 * The same sequences are measured under one policy after the other. The sequences are filled without attention. Each
 * policy runs a multiple of BLOCK steps, so that all sequences compress equally often; the mean of these steps is the
 * whole cost of a step. The memory of the sequences is as reported by the daemon.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "bench/synthetic-codec.h"
#include "bench/stack-fixture.h"
#include "bench/step.h"
#include "daemon/ctl/conn.h"

#define WARM 3            /* number of steps after a change of the policy that are not counted */
#define BLOCK 32          /* number of tokens that deltakv compresses at a time */
#define SLICE 32768u      /* if memory is short: number of prompt tokens that are compressed before more are added */
#define TIMEOUT_MS 60000
#define MOST 3            /* most budgets, and most context lengths */

struct run {
	struct report *r;
	struct step_options o;
	struct stack_fixture stack;
	struct skv_ctl ctl;
	enum synthetic_rows rows;
	uint8_t *k, *v; /* rows of K and V */
	char codec[256];
	double dense_ms, dense_whole_ms; /* times under full, for the batch that all policies are measured with */
};

/* The memory of sequences: bytes of a token by kind; bytes of a sequence; number of sequences that fit. */
struct account {
	double kv, codes, refs, sequence, fit;
};

/* Figures of a policy: median time of attention, and mean time of a step, in milliseconds. */
struct figures {
	double ms, whole_ms;
};

_Noreturn static void die(const char *why)
{
	fprintf(stderr, "sparsekv-bench: step: %s\n", why);
	exit(1);
}

/* ---- the daemon's accounting -------------------------------------------------------------------- */

static json_t *ask(struct run *x, enum skv_query what)
{
	json_t *answer;

	if (skv_ctl_query(&x->ctl, what, &answer) < 0)
		die(x->ctl.err);
	return answer;
}

/* Returns the daemon's limit for the memory of all sequences, in bytes. */
static double pool_limit(struct run *x)
{
	json_t *answer = ask(x, SKV_QUERY_STATUS);
	json_t *device = json_array_get(json_object_get(answer, "devices"), 0);
	double bytes = x->stack.device ? json_number_value(json_object_get(device, "pool_limit_bytes"))
	                             : json_number_value(json_object_get(json_object_get(answer, "limits"), "pool_bytes"));

	json_decref(answer);
	return bytes;
}

static struct account look(struct run *x)
{
	static const char *const kinds[] = {"kv", "codes", "refs"};
	json_t *answer = ask(x, SKV_QUERY_SEQS), *seq;
	const double page = (double)skv_page_bytes(&x->stack.model);
	double bytes[3] = {0}, tokens = 0, n = 0;
	struct account b;
	size_t i;

	json_array_foreach(json_object_get(answer, "sequences"), i, seq) {
		const json_t *pages = json_object_get(seq, "pages");

		/*
		 * the daemon limits the time that it spends on counting pages; the sequences that it did count are
		 * enough
		 */
		if (json_is_null(pages))
			continue;
		for (int kind = 0; kind < 3; kind++)
			bytes[kind] += page * json_number_value(json_object_get(pages, kinds[kind]));
		tokens += json_number_value(json_object_get(seq, "tokens"));
		n++;
	}
	json_decref(answer);
	b = (struct account){.kv = bytes[0] / tokens, .codes = bytes[1] / tokens, .refs = bytes[2] / tokens,
	                   .sequence = (bytes[0] + bytes[1] + bytes[2]) / n};
	b.fit = floor(pool_limit(x) / b.sequence);
	return b;
}

/* ---- sequences ------------------------------------------------------------------------------- */

/* Runs a step of one sequence, from token `at` on: n tokens of a prompt, without attention, or one decoded token. */
static int step_of(struct run *x, struct skv_seq *seq, uint32_t at, uint32_t n, bool prompt)
{
	const struct skv_step_item item = SKV_STEP_ITEM(.seq = seq, .n_tokens = n, .flags = prompt ? SKV_STEP_PROMPT : 0);
	const struct skv_model *m = &x->stack.model;
	const size_t row = (size_t)m->n_kv_heads * m->head_dim * skv_dtype_bytes(m->io_dtype);
	const struct skv_attn a = SKV_ATTN(.q = prompt ? NULL : x->stack.q, .k = x->k + at * row, .v = x->v + at * row,
	                           .out = prompt ? NULL : x->stack.out);
	int e = skv_step_begin(x->stack.session, &item, 1, x->stack.stream);

	if (e < 0)
		return e;
	for (uint32_t layer = 0; layer < m->n_layers; layer++)
		stack_need(skv_attend(x->stack.session, layer, &a));
	stack_need(skv_step_end(x->stack.session, NULL, NULL));
	return 0;
}

/*
 * Fills a sequence up to `len` tokens. If `compresses` is true, decodes a token now and then, because the tokens of a
 * prompt are compressed in the next decode step.
 */
static int fill(struct run *x, struct skv_seq *seq, uint32_t len, bool compresses)
{
	uint32_t uncompressed = 0;
	int e = 0;

	for (uint32_t at = 0, n; at < len && e == 0; at += n) {
		const bool prompt = !compresses || uncompressed < SLICE;

		n = !prompt ? 1 : len - at < STACK_CHUNK ? len - at : STACK_CHUNK;
		uncompressed = prompt ? uncompressed + n : 0;
		e = step_of(x, seq, at, n, prompt);
	}
	return e;
}

/* Returns the length of sequence i. Lengths differ, so that the sequences compress in different steps. */
static uint32_t length_of(const struct run *x, uint32_t i)
{
	return (uint32_t)x->o.tokens - i % BLOCK;
}

static uint32_t steps_of(const struct run *x)
{
	return ((uint32_t)x->o.repeat + BLOCK - 1) / BLOCK * BLOCK;
}

/* Returns the capacity of a sequence in tokens, for steps under this number of policies. */
static uint32_t room(const struct run *x, uint32_t policies)
{
	return (uint32_t)x->o.tokens + policies * (steps_of(x) + WARM) + 1;
}

/*
 * Returns the number of uncompressed sequences that fit in memory beside the pages that a step of a prompt leases ahead
 * of need.
 */
static uint32_t fitting(struct run *x, uint32_t policies)
{
	const double layers = x->stack.model.n_layers, page = (double)skv_page_bytes(&x->stack.model);
	const double ahead = 4 * layers * skv_pages_of(STACK_CHUNK) * page;
	const double n = floor((pool_limit(x) - ahead) / (layers * skv_pages_of(room(x, policies)) * page));

	return n < 1 ? 1 : n > 64 ? 64 : (uint32_t)n;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static struct figures measure(struct run *x)
{
	const uint32_t n = steps_of(x);
	double *ms = calloc(n, sizeof *ms), whole = 0;
	struct figures f;
	struct stack_times t;
	uint32_t taken = 0;

	for (uint32_t i = 0; i < n + WARM; i++) {
		stack_step(&x->stack, x->stack.device ? STACK_REPLAY : STACK_CALLS, &t);
		if (i < WARM || t.recorded)
			continue;
		ms[taken++] = t.device_ms;
		whole += t.whole / 1e3;
	}
	f = (struct figures){.ms = bench_median(ms, taken), .whole_ms = whole / taken};
	free(ms);
	return f;
}

static struct figures measure_under(struct run *x, const char *spec)
{
	for (uint32_t i = 0; i < x->stack.n; i++)
		stack_need(skv_seq_policy(x->stack.seq[i], spec));
	return measure(x);
}

static void report(struct run *x, const char *attention, long budget, struct figures f, double share,
                   const struct account *b)
{
	const struct step_options *o = &x->o;
	const bool same = x->stack.n == o->batch;
	char heads[32];

	snprintf(heads, sizeof heads, "%u/%u", o->heads, o->kv_heads);
	step_row(x->r, &(struct step_row){
		.setting = "deltakv", .attention = attention, .heads = heads,
		.rows = x->rows == SYNTHETIC_RANDOM ? "random" : "clustered",
		.dim = o->dim, .layers = o->layers, .batch = x->stack.n, .tokens = o->tokens, .budget = budget,
		.ms = f.ms, .speedup = same ? x->dense_ms / f.ms : NAN,
		.whole_ms = f.whole_ms, .whole_speedup = same ? x->dense_whole_ms / f.whole_ms : NAN, .share = share,
		.kv = b ? b->kv : NAN, .codes = b ? b->codes : NAN, .refs = b ? b->refs : NAN, .fit = b ? b->fit : NAN,
	});
}

/* ---- one context ----------------------------------------------------------------------------- */

static void deltakv_spec(const struct run *x, long budget, char *to, size_t bytes)
{
	snprintf(to, bytes, "deltakv?budget=%ld&bits=4&block=%u&file=%s", budget, BLOCK, x->codec);
}

/* Adds sequences, one by one, until no more fit. Each sequence is compressed while it is filled. */
static void fill_up(struct run *x, const char *spec, uint32_t policies)
{
	for (;;) {
		struct skv_seq *seq;
		uint32_t i = x->stack.n;
		int e;

		stack_sequences(&x->stack, 1, room(x, policies));
		seq = x->stack.seq[i];
		stack_need(skv_seq_policy(seq, spec));
		e = fill(x, seq, length_of(x, i), true);
		if (e == 0)
			continue;
		if (e != -ENOSPC && e != -EDQUOT)
			stack_need(e);
		stack_need(skv_seq_drop(seq));
		x->stack.n--;
		return;
	}
}

static void copy_rows(struct run *x)
{
	const struct skv_model *m = &x->stack.model;
	const size_t bytes = (size_t)x->o.tokens * m->n_kv_heads * m->head_dim * skv_dtype_bytes(m->io_dtype);
	void *k = synthetic_rows(m, x->rows, false, (uint32_t)x->o.tokens), *v = synthetic_rows(m, x->rows, true,
		(uint32_t)x->o.tokens);

	if (!k || !v)
		die("no memory for rows");
	x->k = stack_rows_copy(&x->stack, k, bytes);
	x->v = stack_rows_copy(&x->stack, v, bytes);
}

static void take_turns(struct run *x, const long *budgets, uint32_t n, bool largest)
{
	const uint32_t policies = 2 + 2 * n;
	struct figures read[MOST], f;
	struct account b;
	char spec[400];

	x->o.batch = x->o.batch ? x->o.batch : fitting(x, policies);
	copy_rows(x);
	stack_sequences(&x->stack, (uint32_t)x->o.batch, room(x, policies));
	for (uint32_t i = 0; i < x->stack.n; i++)
		stack_need(fill(x, x->stack.seq[i], length_of(x, i), false));
	f = measure_under(x, "full");
	x->dense_ms = f.ms;
	x->dense_whole_ms = f.whole_ms;
	b = look(x);
	report(x, "full", 0, f, NAN, &b);
	for (uint32_t i = 0; i < n; i++) {
		snprintf(spec, sizeof spec, "omnikv?budget=%ld&more=0", budgets[i]);
		read[i] = measure_under(x, spec);
		report(x, "omnikv", budgets[i], read[i], NAN, NULL);
	}
	for (uint32_t i = 0; i < n; i++) {
		deltakv_spec(x, budgets[i], spec, sizeof spec);
		f = measure_under(x, spec);
		b = look(x);
		report(x, "deltakv", budgets[i], f, 1 - read[i].whole_ms / f.whole_ms, &b);
	}
	if (largest) {
		deltakv_spec(x, budgets[n / 2], spec, sizeof spec);
		fill_up(x, spec, policies);
		report(x, "deltakv", budgets[n / 2], measure_under(x, spec), NAN, NULL);
	}
	stack_empty(&x->stack);
	stack_rows_free(&x->stack, x->k);
	stack_rows_free(&x->stack, x->v);
}

/* ---- all contexts ---------------------------------------------------------------------------- */

static struct skv_model model_of(const struct step_options *o, uint32_t max_tokens)
{
	return (struct skv_model){
		.size = sizeof(struct skv_model),
		.n_layers = (uint32_t)o->layers,
		.n_heads = o->heads,
		.n_kv_heads = o->kv_heads,
		.head_dim = (uint32_t)o->dim,
		.kv_dtype = SKV_BF16,
		.max_tokens = max_tokens,
		.n_ranks = 1,
		.name = "bench",
		.rope = {.type = SKV_ROPE_LLAMA3, .theta = 500000, .factor = 8, .low = 1, .high = 4, .original = 8192},
	};
}

void step_deltakv(struct report *r, const struct step_options *given)
{
	const long contexts[] = {given->tokens ? given->tokens : 131072, 524288};
	const long budgets[] = {given->budget ? given->budget : 2048, 4096, 8192};
	const uint32_t n_contexts = given->tokens ? 1 : 2, n_budgets = given->budget ? 1 : 3;
	struct run x = {.r = r, .o = *given};
	struct skv_model m;

	step_defaults(&x.o, &(struct step_options){.heads = 32, .kv_heads = 8, .layers = 32, .dim = 128});
	stack_start(&x.stack, x.o.device);
	if (skv_ctl_connect(&x.ctl, eng_private_socket(x.stack.daemon), "sparsekv-bench", TIMEOUT_MS) < 0)
		die(x.ctl.err);
	x.o.tokens = contexts[n_contexts - 1];
	m = model_of(&x.o, room(&x, 2 + 2 * n_budgets));
	synthetic_codec(&m, x.codec, sizeof x.codec);
	stack_open(&x.stack, &m, "full");
	for (uint32_t i = 0; i < n_contexts; i++)
		for (x.rows = SYNTHETIC_RANDOM; x.rows <= SYNTHETIC_CLUSTERED; x.rows++) {
			if (given->rows && given->rows - 1 != (int)x.rows)
				continue;
			x.o.tokens = contexts[i];
			x.o.batch = given->batch;
			take_turns(&x, budgets, n_budgets, given->largest);
		}
	stack_close(&x.stack);
	skv_ctl_close(&x.ctl);
	stack_stop(&x.stack);
}
