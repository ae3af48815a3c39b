/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/ranks.c - sparsekv-bench ranks: measures decode steps of one process with all heads, and of tensor-parallel
 * ranks that have a part of the heads each: how much time ranks save, and how much their communication costs.
 *
 * The ranks here compute only attention: they have no model weights, and exchange only scores and commits. On devices,
 * rank r uses the r-th device from the given one, and ranks communicate through NCCL. In host memory each rank has a
 * part of the threads.
 */
#include "bench/bench.h"
#include "bench/stack-fixture.h"
#include "engine/ranks.h"
#include "engine/backend.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_SAMPLES 1000
#define WARM 12u

struct options {
	uint32_t device, heads, kv_heads;
	const char *policy[BENCH_LIST_MAX];
	int n_policies, n_batch;
	long batch[BENCH_LIST_MAX], ranks, tokens, layers, dim, repeat, threads;
	const char *csv;
};

static const struct column columns[] = {
	{"policy", -34}, {"batch", 0}, {"launches", -9}, {"ranks", 0}, {"scores", -9}, {"attention_ms", 3}, {"step_ms", 3}, {"speedup", 2},
};

static const struct {
	const char *name;
	enum stack_how how;
} launches[] = {{"calls", STACK_CALLS}, {"replayed", STACK_REPLAY}};

/*
 * Times of one run in milliseconds, by kind of launch: attention of all layers, by the device's clock, and whole steps
 * until all work is done.
 */
struct run {
	double attention[2][MAX_SAMPLES], step[2][MAX_SAMPLES];
};

/*
 * Reduces scores between ranks. If `scores` is false, scores are not reduced, to measure what this saves; the selection
 * of tokens is then wrong.
 */
struct agreement {
	int (*all_reduce_max)(void *ctx, float *data, size_t count, void *stream);
	void *ctx;
	bool scores;
};

static int all_reduce_max(void *ctx, float *data, size_t count, void *stream)
{
	const struct agreement *a = ctx;

	return count > 16 && !a->scores ? 0 : a->all_reduce_max(a->ctx, data, count, stream);
}

static void be_rank(const struct options *o, const char *socket, const char *policy, uint32_t n, bool scores, uint32_t batch,
                    struct run *to)
{
	struct skv_model m = SKV_MODEL_INIT;
	struct eng_ranks *ranks = NULL;
	struct stack_fixture stack;
	struct agreement agree;
	struct stack_times t;
	struct eng_error err = {""};
	int e = n > 1 ? eng_ranks_start(&ranks, n, &err) : 0;
	const bool first = eng_ranks_number(ranks) == 0;
	struct eng_backend where;

	stack_connect(&stack, socket, o->device == SKV_DEVICE_HOST ? o->device : o->device + eng_ranks_number(ranks));
	where = (struct eng_backend){.device = stack.model.device, .stream = stack.stream};
	m.n_layers = (uint32_t)o->layers;
	m.n_heads = o->heads;
	m.n_kv_heads = o->kv_heads;
	m.head_dim = (uint32_t)o->dim;
	m.kv_dtype = SKV_BF16;
	m.rope = (struct skv_rope){.type = SKV_ROPE_DEFAULT, .theta = 500000};
	m.max_tokens = (uint32_t)(o->tokens + 2 * (o->repeat + WARM) + SKV_PAGE_TOKENS);
	snprintf(m.name, sizeof m.name, "ranks-%d", (int)eng_ranks_first(ranks));
	e = e ? e : eng_ranks_open(ranks, &where, &err);
	e = e ? e : eng_ranks_split(ranks, &m, &err);
	if (e) {
		fprintf(stderr, "sparsekv-bench: %s\n", err.text);
		exit(1);
	}
	agree = (struct agreement){m.all_reduce_max, m.all_reduce_ctx, scores};
	if (ranks) {
		m.all_reduce_max = all_reduce_max;
		m.all_reduce_ctx = &agree;
	}
	stack_need(skv_set_threads(stack.client, (uint32_t)(o->threads / n ? o->threads / n : 1)));
	stack_open(&stack, &m, policy);
	stack_fill(&stack, batch, (uint32_t)o->tokens, 2 * (WARM + (uint32_t)o->repeat));
	for (int how = 0; how < (stack.device ? 2 : 1); how++)
		for (uint32_t i = 0; i < WARM + o->repeat; i++) {
			stack_step(&stack, launches[how].how, &t);
			if (i < WARM || !first)
				continue;
			to->attention[how][i - WARM] = t.device_ms;
			to->step[how][i - WARM] = t.whole / 1e3;
		}
	stack_empty(&stack);
	stack_close(&stack);
	eng_ranks_close(ranks);
	stack_stop(&stack);
	exit(eng_ranks_end(ranks, 0, &err) < 0);
}

/* Runs one measurement in a process of its own, because CUDA does not survive fork(). Returns 0 or -1. */
static int run(const struct options *o, const char *socket, const char *policy, uint32_t n, bool scores, uint32_t batch, struct run *to)
{
	pid_t pid;
	int status;

	fflush(NULL); /* otherwise the child process would print the buffered output again when it exits */
	pid = fork();
	if (pid == 0)
		be_rank(o, socket, policy, n, scores, batch, to);
	return waitpid(pid, &status, 0) == pid && status == 0 ? 0 : -1;
}

static int measure_batch(struct report *r, const struct options *o, const char *socket, const char *policy, uint32_t batch, struct run *x)
{
	const struct {
		uint32_t ranks;
		bool scores;
	} runs[] = {{1, true}, {(uint32_t)o->ranks, true}, {(uint32_t)o->ranks, false}};
	double alone[2] = {NAN, NAN};

	for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
		if (run(o, socket, policy, runs[i].ranks, runs[i].scores, batch, x) < 0)
			return -1;
		for (int how = 0; how < (o->device == SKV_DEVICE_HOST ? 1 : 2); how++) {
			const double attention = bench_median(x->attention[how], (size_t)o->repeat);

			alone[how] = i == 0 ? attention : alone[how];
			report_row(r, policy, (double)batch, launches[how].name, (double)runs[i].ranks,
			           runs[i].ranks == 1 ? "" : runs[i].scores ? "reduced" : "own", attention,
			           bench_median(x->step[how], (size_t)o->repeat), alone[how] / attention);
		}
	}
	return 0;
}

static int measure(struct report *r, const void *options)
{
	const struct options *o = options;
	struct run *x = mmap(NULL, sizeof *x, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct eng_private *daemon;
	struct skv_client *client;
	struct eng_error err;
	int e = 0;

	if (x == MAP_FAILED || eng_private_start(0, NULL, &daemon, &client, &err) < 0) {
		fprintf(stderr, "sparsekv-bench: %s\n", x == MAP_FAILED ? "out of memory" : err.text);
		return -1;
	}
	for (int p = 0; p < o->n_policies && e == 0; p++)
		for (int b = 0; b < o->n_batch && e == 0; b++)
			e = measure_batch(r, o, eng_private_socket(daemon), o->policy[p], (uint32_t)o->batch[b], x);
	skv_disconnect(client);
	eng_private_stop(daemon);
	munmap(x, sizeof *x);
	return e;
}

static const char about[] =
	"Times decode steps of a batch on one process with all heads, and on tensor-parallel ranks: attention of all layers\n"
	"by the device's clock, and steps from their begin until they are done; with scores that select for all heads\n"
	"reduced between ranks, as they must be, and left as they are, which shows what the reduction costs.";

/* Returns 0, or -1 after an error was reported. */
static int parse(struct options *o, int argc, char **argv)
{
	const struct eng_option table[] = {
		ENG_DEVICE(&o->device, "the first rank's device; the others have the next ones (host memory)"),
		ENG_TEXTS("policy", "SPEC", o->policy, &o->n_policies, "once or more (full, delta?budget=0.1&layers=2,11,21)"),
		ENG_COUNT("ranks", &o->ranks, 2, ENG_RANKS_MAX, "(2)"),
		ENG_COUNTS("batch", "LIST", o->batch, &o->n_batch, 1, UINT32_MAX, "sequences in a step (8,32)"),
		ENG_COUNT("tokens", &o->tokens, SKV_PAGE_TOKENS, SKV_MAX_TOKENS / 2, "of a sequence, at most, at first (32768)"),
		ENG_COUNT("layers", &o->layers, 1, SKV_MAX_LAYERS, "layers (32)"),
		BENCH_HEADS(&o->heads, &o->kv_heads, "of all ranks: q heads/kv heads (32/8)"),
		ENG_COUNT("dim", &o->dim, 16, SKV_MAX_HEAD_DIM, "head dimension (128)"),
		ENG_COUNT("threads", &o->threads, 1, 1024, "of all ranks, in host memory (2)"),
		ENG_COUNT("repeat", &o->repeat, 1, MAX_SAMPLES, "steps (50)"),
		BENCH_CSV(&o->csv),
	};
	const struct bench_command command = {"ranks", NULL, about, table, sizeof table / sizeof *table};

	*o = (struct options){
		.policy = {"full", "delta?budget=0.1&layers=2,11,21"}, .n_policies = 2, .batch = {8, 32}, .n_batch = 2, .ranks = 2,
		.tokens = 32768, .layers = 32, .heads = 32, .kv_heads = 8, .dim = 128, .threads = 2, .repeat = 50,
	};
	return bench_options(&command, argc, argv);
}

int bench_ranks(int argc, char **argv)
{
	struct options o;
	int e = parse(&o, argc, argv);

	return bench_report(e, measure, &o, columns, sizeof columns / sizeof *columns, o.csv);
}
