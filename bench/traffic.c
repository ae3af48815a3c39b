/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/traffic.c - sparsekv-bench traffic: measures the time of steps while requests arrive and end.
 *
 * Requests arrive at random, with a given mean number per step (a Poisson process). Each request gets the next policy
 * of the list. Prompts are read one after the other, one chunk in a step, together with the requests that decode. A
 * request ends with the last token of its answer. The lengths of prompts and answers are uniformly distributed from
 * half to one and a half times the option's value. K, V and arrivals are pseudo-random: they are the same in each run
 * with the same options.
 */
#include "bench/bench.h"
#include "bench/stack-fixture.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_STEPS 100000
#define MAX_REQUESTS 1024

struct options {
	uint32_t device, heads, kv_heads;
	long layers, dim, prompt, answer, chunk, most, steps;
	double rate;
	const char *policy[BENCH_LIST_MAX];
	int n_policies;
	const char *csv;
};

static const struct column columns[] = {
	{"step", -14}, {"steps", 0}, {"sequences", 1}, {"begin_p50_us", 1}, {"begin_p99_us", 1}, {"step_p50_us", 1}, {"step_p99_us", 1},
};

/*
 * Kinds of steps: with a chunk of a prompt; the first after a request began or stopped decoding; all others. If several
 * apply, the first one counts.
 */
enum { CHUNK, JOINED, LEFT, PLAIN, N_KINDS };
static const char *const kind_names[N_KINDS] = {"with a chunk", "one joined", "one left", "the same"};

struct request {
	struct skv_seq *seq;
	uint32_t prompt, answer; /* number of rows of the prompt still to read; number of tokens still to decode */
};

struct traffic {
	const struct options *o;
	struct stack_fixture stack;
	/* the first `decoding` requests decode; if there is one more, its prompt is being read */
	struct request request[MAX_REQUESTS];
	uint32_t n, decoding, waiting, came;
	uint64_t rng;
	bool joined, left;
	double *begin[N_KINDS], *whole[N_KINDS], sequences[N_KINDS];
	size_t count[N_KINDS];
};

static double chance(struct traffic *t)
{
	return (double)(bench_random(&t->rng) >> 11) * 0x1p-53;
}

/* Returns a random length, uniformly distributed from half of n to one and a half times n. */
static uint32_t about_as_long(struct traffic *t, long n)
{
	const uint32_t x = (uint32_t)((0.5 + chance(t)) * (double)n);

	return x ? x : 1;
}

/* Returns the number of requests that arrive in a step (Poisson distribution, by Knuth's algorithm). */
static uint32_t arrivals(struct traffic *t)
{
	uint32_t n = 0;

	for (double p = chance(t); p > exp(-t->o->rate); p *= chance(t))
		n++;
	return n;
}

static void start_one(struct traffic *t)
{
	struct request *r = &t->request[t->n++];

	*r = (struct request){.prompt = about_as_long(t, t->o->prompt), .answer = about_as_long(t, t->o->answer)};
	stack_need(skv_seq_new(t->stack.session, NULL, r->prompt + r->answer + 1, &r->seq));
	stack_need(skv_seq_policy(r->seq, t->o->policy[t->came++ % (uint32_t)t->o->n_policies]));
	t->waiting--;
}

static void end_done(struct traffic *t)
{
	t->left = false;
	for (uint32_t i = 0; i < t->decoding;) {
		if (t->request[i].answer > 0) {
			i++;
			continue;
		}
		stack_need(skv_seq_drop(t->request[i].seq));
		memmove(&t->request[i], &t->request[i + 1], (t->n - i - 1) * sizeof(*t->request));
		t->n--;
		t->decoding--;
		t->left = true;
	}
}

/* Fills the items of the next step, and returns their number. */
static uint32_t plan(struct traffic *t, struct skv_step_item *item)
{
	for (uint32_t i = 0; i < t->decoding; i++)
		item[i] = SKV_STEP_ITEM(.seq = t->request[i].seq, .n_tokens = 1);
	if (t->n == t->decoding)
		return t->n;
	const struct request *r = &t->request[t->decoding];
	const uint32_t rows = r->prompt < t->o->chunk ? r->prompt : (uint32_t)t->o->chunk;
	item[t->decoding] = SKV_STEP_ITEM(.seq = r->seq, .n_tokens = rows, .flags = SKV_STEP_PROMPT, .n_prompt_remaining = r->prompt - rows);
	return t->n;
}

static void add(struct traffic *t, uint32_t items, double begin, double whole)
{
	const int kind = t->n > t->decoding ? CHUNK : t->joined ? JOINED : t->left ? LEFT : PLAIN;

	t->begin[kind][t->count[kind]] = begin;
	t->whole[kind][t->count[kind]++] = whole;
	t->sequences[kind] += items;
}

/* Updates the requests after a step: rows that were read, tokens that were decoded. */
static void follow(struct traffic *t)
{
	for (uint32_t i = 0; i < t->decoding; i++)
		t->request[i].answer--;
	t->joined = false;
	if (t->n == t->decoding)
		return;
	struct request *r = &t->request[t->decoding];
	r->prompt -= r->prompt < t->o->chunk ? r->prompt : (uint32_t)t->o->chunk;
	t->joined = r->prompt == 0;
	t->decoding += t->joined;
}

static void step(struct traffic *t, bool counts)
{
	struct skv_step_item item[MAX_REQUESTS];

	end_done(t);
	t->waiting += arrivals(t);
	if (t->waiting > 0 && t->n == t->decoding && t->n < (uint32_t)t->o->most)
		start_one(t);
	const uint32_t n = plan(t, item);
	if (n == 0)
		return;
	const double begun = bench_now();
	stack_need(skv_step_begin(t->stack.session, item, n, t->stack.stream));
	const double begin = bench_now() - begun;
	stack_attend(&t->stack);
	stack_need(skv_step_end(t->stack.session, NULL, NULL));
	stack_wait(&t->stack);
	if (counts)
		add(t, n, begin * 1e6, (bench_now() - begun) * 1e6);
	follow(t);
}

static void report(struct report *r, struct traffic *t)
{
	for (int kind = 0; kind < N_KINDS; kind++) {
		const size_t n = t->count[kind];

		if (n > 0)
			report_row(r, kind_names[kind], (double)n, t->sequences[kind] / (double)n, bench_median(t->begin[kind], n),
			           bench_p99(t->begin[kind], n), bench_median(t->whole[kind], n), bench_p99(t->whole[kind], n));
		free(t->begin[kind]);
		free(t->whole[kind]);
	}
}

static int measure(struct report *r, const void *options)
{
	const struct options *o = options;
	struct skv_model m = SKV_MODEL_INIT;
	struct traffic *t = calloc(1, sizeof(*t));
	/* number of steps before the measurement, until about as many requests end as arrive */
	const long warm = o->answer + o->prompt / o->chunk;

	if (!t) {
		fprintf(stderr, "sparsekv-bench: out of memory\n");
		return -1;
	}
	t->o = o;
	t->rng = 1;
	for (int kind = 0; kind < N_KINDS; kind++) {
		t->begin[kind] = calloc((size_t)o->steps, sizeof(double));
		t->whole[kind] = calloc((size_t)o->steps, sizeof(double));
	}
	m.n_layers = (uint32_t)o->layers;
	m.n_heads = o->heads;
	m.n_kv_heads = o->kv_heads;
	m.head_dim = (uint32_t)o->dim;
	m.kv_dtype = SKV_BF16;
	m.max_tokens = (uint32_t)(2 * (o->prompt + o->answer) + SKV_PAGE_TOKENS);
	snprintf(m.name, sizeof(m.name), "bench");
	stack_start(&t->stack, o->device);
	stack_open(&t->stack, &m, o->policy[0]);
	for (long i = 0; i < warm + o->steps; i++)
		step(t, i >= warm);
	report(r, t);
	for (uint32_t i = 0; i < t->n; i++)
		stack_need(skv_seq_drop(t->request[i].seq));
	stack_close(&t->stack);
	stack_stop(&t->stack);
	free(t);
	return 0;
}

static const char about[] =
	"Times steps while requests come and go: they arrive by chance, their prompts are read a chunk a step\n"
	"beside those that decode, and they leave with the last token of their answer. Steps are those with a\n"
	"chunk of a prompt, the first ones after a request joined those that decode, or left them, and others.";

/* Returns 0, or -1 after an error was reported. */
static int parse(struct options *o, int argc, char **argv)
{
	const struct eng_option table[] = {
		ENG_DEVICE(&o->device, "pages on that device (host memory)"),
		ENG_TEXTS("policy", "SPEC", o->policy, &o->n_policies, "of the requests in turn; may be repeated (full)"),
		BENCH_SHARE("rate", &o->rate, "requests that arrive in a step, on average (0.1)"),
		ENG_COUNT("prompt", &o->prompt, 1, SKV_MAX_TOKENS / 4, "tokens of a prompt (2048)"),
		ENG_COUNT("answer", &o->answer, 1, SKV_MAX_TOKENS / 4, "and of its answer (256)"),
		ENG_COUNT("chunk", &o->chunk, 1, 2048, "rows of a prompt in a step (512)"),
		ENG_COUNT("most", &o->most, 1, MAX_REQUESTS, "requests at once (64)"),
		ENG_COUNT("steps", &o->steps, 1, MAX_STEPS, "that count (1000)"),
		ENG_COUNT("layers", &o->layers, 1, SKV_MAX_LAYERS, "layers (32)"),
		BENCH_HEADS(&o->heads, &o->kv_heads, "q heads/kv heads (32/8)"),
		ENG_COUNT("dim", &o->dim, 16, SKV_MAX_HEAD_DIM, "head dimension (128)"),
		BENCH_CSV(&o->csv),
	};
	const struct bench_command command = {"traffic", NULL, about, table, sizeof(table) / sizeof(*table)};

	*o = (struct options){
		.policy = {"full"}, .rate = 0.1, .prompt = 2048, .answer = 256, .chunk = 512, .most = 64, .steps = 1000,
		.layers = 32, .heads = 32, .kv_heads = 8, .dim = 128,
	};
	const int e = bench_options(&command, argc, argv);

	o->n_policies += o->n_policies == 0;
	return e;
}

int bench_traffic(int argc, char **argv)
{
	struct options o;
	int e = parse(&o, argc, argv);

	return bench_report(e, measure, &o, columns, sizeof(columns) / sizeof(*columns), o.csv);
}
