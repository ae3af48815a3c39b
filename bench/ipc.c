/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/ipc.c - sparsekv-bench ipc: measures the time that calls of the client library and the daemon take on the host.
 *
 * Each call is timed by the host's clock, with a private daemon. On a device skv_attend() only queues work, so its time
 * is that of queueing. With pages in host memory the time of skv_attend() includes the attention itself, which is short
 * because the sequences are short. The work of a step is finished before the next step begins.
 */
#include "bench/bench.h"
#include "bench/stack-fixture.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SAMPLES 10000

struct options {
	uint32_t device;
	int n_batch;
	long batch[BENCH_LIST_MAX], layers, dim, tokens, repeat;
	uint32_t heads, kv_heads;
	const char *csv;
};

static const struct column columns[] = {
	{"operation", -20}, {"policy", -1}, {"batch", 0},    {"samples", 0},
	{"median_us", 2},   {"p99_us", 2},  {"us_a_seq", 3},
};

/* Times of one operation, in the order of the calls. */
struct samples {
	double us[MAX_SAMPLES];
	size_t n;
};

static void add(struct samples *s, double us)
{
	if (s->n < MAX_SAMPLES)
		s->us[s->n++] = us;
}

/* Reports a row if there are samples. `a_seq` is the time for each further sequence; NAN: the cell stays empty. */
static void report(struct report *r, const char *operation, const char *policy, double batch, struct samples *s,
                   double a_seq)
{
	if (s->n)
		report_row(r, operation, policy, batch, (double)s->n, bench_median(s->us, s->n),
		           bench_p99(s->us, s->n), a_seq);
}

/* ---- the control plane ----------------------------------------------------------------------- */

enum { CONNECT, OPEN, NEW, FIRST_BEGIN, DETACH, ATTACH, FORK, DROP, CLOSE, DISCONNECT, N_CONTROL };
static const char *const control_names[N_CONTROL] = {
	"connect", "open", "seq_new", "first step_begin", "seq_detach", "seq_attach", "seq_fork", "seq_drop", "close",
	"disconnect",
};

static double since(double begun)
{
	return (bench_now() - begun) * 1e6;
}

#define TIMED(what, call)                               \
	do {                                            \
		double begun_ = bench_now();            \
		call;                                   \
		add(&s[what], since(begun_));           \
	} while (0)

/* Times what an engine does that connects, works on one sequence, and disconnects. */
static void visit(const struct stack_fixture *stack, struct samples *s)
{
	struct skv_step_item item = SKV_STEP_ITEM(.n_tokens = 4 * SKV_PAGE_TOKENS, .flags = SKV_STEP_PROMPT);
	struct skv_client *c;
	struct skv_session *session;
	struct skv_seq *seq, *copy;

	TIMED(CONNECT, stack_need(skv_connect(&c, eng_private_socket(stack->daemon))));
	TIMED(OPEN, stack_need(skv_open(c, &stack->model, "full", &session)));
	TIMED(NEW, stack_need(skv_seq_new(session, "visitor", 0, &seq)));
	item.seq = seq;
	TIMED(FIRST_BEGIN, stack_need(skv_step_begin(session, &item, 1, stack->stream)));
	for (uint32_t l = 0; l < stack->model.n_layers; l++)
		stack_need(skv_attend(session, l, &SKV_ATTN(.q = stack->q, .k = stack->kv, .v = stack->kv, .out = stack->out)));
	stack_need(skv_step_end(session, NULL, NULL));
	if (stack->device)
		stack->device->wait(stack->stream);
	TIMED(DETACH, stack_need(skv_seq_detach(seq)));
	TIMED(ATTACH, stack_need(skv_seq_attach(session, "visitor", &seq)));
	TIMED(FORK, stack_need(skv_seq_fork(seq, NULL, SKV_ALL, &copy)));
	TIMED(DROP, stack_need(skv_seq_drop(copy)));
	stack_need(skv_seq_drop(seq));
	TIMED(CLOSE, skv_close(session));
	TIMED(DISCONNECT, skv_disconnect(c));
}

/*
 * Measures the calls outside of steps. The stack's own sequence keeps memory allocated, so that the first step of an
 * engine only leases pages.
 */
static void measure_control(struct report *r, struct stack_fixture *stack, const struct options *o)
{
	struct samples *s = calloc(N_CONTROL, sizeof *s);
	stack_fill(stack, 1, SKV_PAGE_TOKENS, 0);
	visit(stack, s); /* a first run, not counted, resolves symbols and warms the caches */
	for (int i = 0; i < N_CONTROL; i++)
		s[i].n = 0;
	for (long i = 0; i < o->repeat; i++)
		visit(stack, s);
	for (int i = 0; i < N_CONTROL; i++)
		report(r, control_names[i], "", NAN, &s[i], NAN);
	stack_empty(stack);
	free(s);
}

/* ---- steps ----------------------------------------------------------------------------------- */

/*
 * The policies whose steps are measured. Under the third, delta, layer 0 is dense, and layer 1 selects for all layers
 * after it.
 */
static const struct {
	const char *name, *spec;
	const char *layer[3]; /* names of what layers 0, 1 and all others do */
} policies[] = {
	{"full", "full", {"attend dense", "attend dense", "attend dense"}},
	{"streaming", "streaming?budget=1024", {"attend window", "attend window", "attend window"}},
	{"delta", "delta?budget=64&dense=1&layers=1", {"attend dense", "attend select", "attend pages"}},
};
#define N_POLICIES (sizeof policies / sizeof *policies)

enum { BEGIN, LAYERS, END = LAYERS + 3, MOVING, REPLAY_BEGIN = MOVING + 3, LAUNCH, REPLAYED, REPLAY_END, N_STEP };

#define WARM 5 /* steps of each kind that are run first and not counted */

/* Medians for the smallest batch, from which the cost of each further sequence is computed. */
struct base {
	double batch, us[N_STEP];
};

/* Returns the row of a layer: layers that do the same have the same row, that of the first of them. */
static int row_of(int policy, uint32_t layer)
{
	int l = layer < 2 ? (int)layer : 2, first = 0;
	while (strcmp(policies[policy].layer[first], policies[policy].layer[l]))
		first++;
	return first;
}

static void add_step(const struct stack_fixture *stack, int policy, enum stack_how how, const struct stack_times *t,
                     struct samples *s)
{
	if (how == STACK_REPLAY) {
		add(&s[REPLAY_BEGIN], t->begin);
		add(&s[LAUNCH], t->launch);
		add(&s[REPLAYED], t->replayed);
		add(&s[REPLAY_END], t->end);
		return;
	}
	for (uint32_t l = 0; l < stack->model.n_layers; l++)
		add(&s[(how == STACK_MOVING ? MOVING : LAYERS) + row_of(policy, l)], t->attend[l]);
	if (how == STACK_CALLS) {
		add(&s[BEGIN], t->begin);
		add(&s[END], t->end);
	}
}

static void take_steps(struct stack_fixture *stack, const struct options *o, int policy, enum stack_how how,
                       struct samples *s)
{
	struct stack_times t;
	for (long i = -WARM; i < o->repeat; i++) {
		stack_step(stack, how, &t);
		if (i >= 0 && !t.recorded)
			add_step(stack, policy, how, &t, s);
	}
}

static void measure_steps(struct report *r, struct stack_fixture *stack, const struct options *o, int policy, double batch,
                          struct base *base)
{
	static const char *const names[N_STEP] = {
		[BEGIN] = "step_begin", [END] = "step_end", [REPLAY_BEGIN] = "replay: step_begin",
		[LAUNCH] = "replay: launch", [REPLAYED] = "replay: replayed", [REPLAY_END] = "replay: step_end",
	};
	struct samples *s = calloc(N_STEP, sizeof *s);

	stack_fill(stack, (uint32_t)batch, (uint32_t)o->tokens, 3 * ((uint32_t)o->repeat + WARM));
	take_steps(stack, o, policy, STACK_CALLS, s);
	if (stack->device) {
		take_steps(stack, o, policy, STACK_MOVING, s);
		take_steps(stack, o, policy, STACK_REPLAY, s);
	}
	stack_empty(stack);
	for (int i = 0; i < N_STEP; i++) {
		char name[32];
		double median = s[i].n ? bench_median(s[i].us, s[i].n) : NAN;
		double more = batch - base->batch;
		snprintf(name, sizeof name, "%s%s", i >= MOVING && i < MOVING + 3 ? "moving: " : "",
		         names[i] ? names[i] : policies[policy].layer[(i - LAYERS) % (MOVING - LAYERS)]);
		report(r, name, policies[policy].name, batch, &s[i], more > 0 ? (median - base->us[i]) / more : NAN);
		if (!(more > 0))
			base->us[i] = median;
	}
	free(s);
}

/* ---- options --------------------------------------------------------------------------------- */

static const char about[] =
	"Times the calls of the client library against a private daemon, one by one: an engine that comes\n"
	"and goes, and steps of decoding sequences under the policies full, streaming and delta. On a\n"
	"device also steps whose K and V lie elsewhere each time (moving), and replays of a recording.";

/* Returns 0, or -1 after an error was reported. */
static int parse(struct options *o, int argc, char **argv)
{
	const struct eng_option table[] = {
		ENG_DEVICE(&o->device, "pages on that device (host memory)"),
		ENG_COUNTS("batch", "LIST", o->batch, &o->n_batch, 1, UINT32_MAX, "sequences in a step, ascending (1,8,64,256)"),
		ENG_COUNT("layers", &o->layers, 3, SKV_MAX_LAYERS, "layers (28)"),
		BENCH_HEADS(&o->heads, &o->kv_heads, "q heads/kv heads (12/2)"),
		ENG_COUNT("dim", &o->dim, 16, SKV_MAX_HEAD_DIM, "head dimension (128)"),
		ENG_COUNT("tokens", &o->tokens, 1, SKV_MAX_TOKENS / 2, "length of the sequences at first (32)"),
		ENG_COUNT("repeat", &o->repeat, 1, MAX_SAMPLES, "samples: steps, engines (200)"),
		BENCH_CSV(&o->csv),
	};
	const struct bench_command command = {"ipc", NULL, about, table, sizeof table / sizeof *table};

	*o = (struct options){
		.batch = {1, 8, 64, 256}, .n_batch = 4, .layers = 28, .heads = 12, .kv_heads = 2, .dim = 128,
		.tokens = 32, .repeat = 200,
	};
	return bench_options(&command, argc, argv);
}

static struct skv_model model_of(const struct options *o)
{
	struct skv_model m = SKV_MODEL_INIT;

	m.n_layers = (uint32_t)o->layers;
	m.n_heads = o->heads;
	m.n_kv_heads = o->kv_heads;
	m.head_dim = (uint32_t)o->dim;
	m.kv_dtype = SKV_BF16;
	m.max_tokens = (uint32_t)(o->tokens + 3 * (o->repeat + WARM) + 4 * SKV_PAGE_TOKENS);
	snprintf(m.name, sizeof m.name, "bench");
	return m;
}

static int measure(struct report *r, const void *options)
{
	const struct options *o = options;
	const struct skv_model m = model_of(o);
	struct stack_fixture stack;

	stack_start(&stack, o->device);
	for (size_t p = 0; p < N_POLICIES; p++) {
		struct base base = {.batch = (double)o->batch[0]};
		stack_open(&stack, &m, policies[p].spec);
		if (p == 0)
			measure_control(r, &stack, o);
		for (long b = 0; b < o->n_batch; b++)
			measure_steps(r, &stack, o, (int)p, (double)o->batch[b], &base);
		stack_close(&stack);
	}
	stack_stop(&stack);
	return 0;
}

int bench_ipc(int argc, char **argv)
{
	struct options o;
	int e = parse(&o, argc, argv);

	return bench_report(e, measure, &o, columns, sizeof columns / sizeof *columns, o.csv);
}
