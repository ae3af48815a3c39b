/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/scale.c - sparsekv-bench scale: simulates hosts that share prefixes, and reports how much of the prompts they
 * find in their memory, on their disks and in a shared store.
 *
 * A trace of requests is generated (scale-trace.h) or read from a file, and its prompts are looked up in the tiers
 * (scale-cache.h). The table has a row for each policy, routing and size of the store, all with the same trace. The
 * bytes of a token under a policy are computed as the growth of a long sequence: its pages of K and V, codes and
 * references, by the client library's rules, as in sparsekv-bench memory --geometry. Blocks are transferred in their
 * stored form, so a policy that compresses moves fewer bytes.
 */
#include "bench/bench.h"
#include "bench/zero-weights.h"
#include "bench/scale-cache.h"
#include "bench/scale-trace.h"
#include "bench/stack-fixture.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)
/* bytes of a token are the growth of a sequence from this length to twice this length, per token */
#define MARGINAL_TOKENS 32768u

struct options {
	/* options for the bytes of a token */
	const char *policy[BENCH_LIST_MAX];
	int n_policies, n_dtypes;
	long bytes, layers, dim;
	uint32_t heads, kv_heads, dtypes[BENCH_LIST_MAX];
	/* options of the trace; below 0: the workload's value is used */
	uint32_t workload, routing[4];
	int n_routings;
	long seed, requests, hosts, tenants, prompts, context;
	double rate, system, message, answer, turns, think, branch;
	const char *trace, *replay;
	/* sizes of the tiers, in MiB; lifetime of a block in the store, in seconds */
	long memory, disk, store[BENCH_LIST_MAX], ttl;
	int n_stores;
	/* speeds: prefill in tokens/s, network in Gbit/s, disk in GB/s */
	double prefill, network, disk_rate;
	const char *csv;
};

static const char *const routings[] = {"random", "chat", "prefix", NULL}; /* indexed by enum scale_routing */

static const struct column columns[] = {
	{"policy", -34},      {"routing", -8},      {"store_mib", 0},    {"bytes", 0},        {"requests", 0},
	{"prompt_tokens", 0}, {"memory", 4},        {"disk", 4},         {"store", 4},        {"hit", 4},
	{"computed_per_s", 0}, {"written_MB_per_s", 1}, {"read_MB_per_s", 1}, {"time_saved", 4}, {"store_keys", 0},
	{"busiest_host", 2},
};

static int complain(const char *what, const char *why)
{
	fprintf(stderr, "sparsekv-bench: scale: %s: %s\n", what, why);
	return -1;
}

/* ---- bytes of a token ------------------------------------------------------------------------------ */

static double bytes_at(const struct stack_fixture *stack, const char *policy, uint32_t tokens)
{
	uint64_t pages[SKV_PAGE_KINDS];

	if (!geometry_pages(stack->session, tokens, pages)) {
		complain(policy, "what it keeps does not follow from lengths alone; --bytes says what a token takes");
		exit(1);
	}
	return (double)(pages[SKV_PAGES_KV] + pages[SKV_PAGES_CODES] + pages[SKV_PAGES_REFS]) *
	       (double)skv_page_bytes(&stack->model);
}

static double marginal_bytes(struct stack_fixture *stack, const struct options *o, const char *policy)
{
	struct skv_model m = {
		.size = sizeof m,
		.n_layers = (uint32_t)o->layers,
		.n_heads = o->heads,
		.n_kv_heads = o->kv_heads,
		.head_dim = (uint32_t)o->dim,
		.kv_dtype = o->dtypes[0],
		.max_tokens = 2 * MARGINAL_TOKENS,
		.n_ranks = 1,
		.name = "scale",
		.rope = {.type = SKV_ROPE_DEFAULT, .theta = 500000},
	};
	double bytes;

	geometry_begin(&m, 0);
	stack_open(stack, &m, policy);
	geometry_end();
	bytes = bytes_at(stack, policy, 2 * MARGINAL_TOKENS) - bytes_at(stack, policy, MARGINAL_TOKENS);
	stack_close(stack);
	return bytes / MARGINAL_TOKENS;
}

static void all_marginal_bytes(const struct options *o, double *bytes)
{
	struct stack_fixture stack;

	if (!o->bytes)
		stack_start(&stack, 0);
	for (int i = 0; i < o->n_policies; i++)
		bytes[i] = o->bytes ? (double)o->bytes : marginal_bytes(&stack, o, o->policy[i]);
	if (!o->bytes)
		stack_stop(&stack);
}

/* ---- a trace, generated or read -------------------------------------------------------------------- */

struct source {
	const char *path; /* path of the file that is read; NULL: the trace is generated */
	struct scale_trace *made;
	struct scale_reader read;
	FILE *file;
	uint32_t hosts;
};

static void source_close(struct source *s)
{
	scale_trace_free(s->made);
	if (!s->file)
		return;
	scale_reader_deinit(&s->read);
	fclose(s->file);
}

/* Prints what is wrong with the trace or its file; returns -1. */
static int bad_file(const struct source *s, int e)
{
	char text[256];

	if (e == -EINVAL)
		snprintf(text, sizeof text, "%s:%lu: %s", s->path, s->read.line, s->read.error);
	else
		snprintf(text, sizeof text, "%s", strerror(-e));
	return complain(s->path ? "--replay" : "the trace", text);
}

static int source_open(struct source *s, const struct options *o, uint32_t routing)
{
	struct scale_trace_params p = {
		.seed = (uint64_t)o->seed,
		.requests = (uint64_t)o->requests,
		.hosts = (uint32_t)o->hosts,
		.routing = routing,
		.workload = scale_workload(o->workload),
	};
	int e;

	*s = (struct source){.path = o->replay, .hosts = p.hosts};
	if (o->replay) {
		s->file = fopen(o->replay, "r");
		if (!s->file)
			return complain(o->replay, strerror(errno));
		e = scale_reader_init(&s->read, s->file);
		s->hosts = s->read.hosts;
		return e < 0 ? bad_file(s, e) : 0;
	}
	p.workload.tenants = (uint32_t)o->tenants;
	p.workload.prompts = (uint32_t)o->prompts;
	p.workload.max_tokens = (uint32_t)o->context;
	p.workload.rate = o->rate;
	p.workload.system.mean = o->system;
	p.workload.message.mean = o->message;
	p.workload.answer.mean = o->answer;
	p.workload.turns = o->turns;
	p.workload.think = o->think;
	p.workload.branch = o->branch;
	s->made = scale_trace_new(&p);
	return s->made ? 0 : bad_file(s, -ENOMEM);
}

static int source_next(struct source *s, struct scale_request *ret)
{
	int e = s->file ? scale_reader_next(&s->read, ret) : scale_trace_next(s->made, ret);

	return e < 0 ? bad_file(s, e) : e;
}

/* Writes the trace to the file of the option --trace. */
static int write_trace(const struct options *o, uint32_t routing)
{
	FILE *f = fopen(o->trace, "w");
	struct scale_request r;
	struct source s;
	int e;

	if (!f)
		return complain(o->trace, strerror(errno));
	e = source_open(&s, o, routing);
	if (e == 0)
		scale_write_head(f, s.hosts);
	while (e == 0 && (e = source_next(&s, &r)) > 0) {
		scale_write_request(f, &r);
		e = 0;
	}
	source_close(&s);
	e = ferror(f) ? complain(o->trace, "it cannot be written") : e;
	return fclose(f) ? complain(o->trace, strerror(errno)) : e;
}

/* ---- rows ------------------------------------------------------------------------------------------ */

/*
 * Returns the time that hits save (time of prefill, minus time of reading from disk and store), as a share of the
 * prefill time of all prompts.
 */
static double time_saved(const struct options *o, const struct scale_counts *n, double bytes)
{
	const double all = (double)n->prompt_tokens / o->prefill;
	const double hit = (double)(n->hit_tokens[SCALE_MEMORY] + n->hit_tokens[SCALE_DISK] + n->hit_tokens[SCALE_STORE]);
	const double read = (double)n->hit_tokens[SCALE_STORE] * bytes / (o->network * 1e9 / 8) +
	                    (double)n->hit_tokens[SCALE_DISK] * bytes / (o->disk_rate * 1e9);

	return (hit / o->prefill - read) / all;
}

static void row(struct report *r, const struct options *o, int policy, uint32_t routing, long store, double bytes, uint32_t hosts,
                const struct scale_counts *n)
{
	const double prompt = (double)n->prompt_tokens, mb = bytes * SCALE_BLOCK / 1e6;
	const double seconds = n->last_us > n->first_us ? (double)(n->last_us - n->first_us) / 1e6 : NAN;
	double of[SCALE_TIERS], hit = 0;

	for (int i = 0; i < SCALE_TIERS; i++)
		hit += of[i] = (double)n->hit_tokens[i] / prompt;
	report_row(r, o->policy[policy], o->replay ? "file" : routings[routing], (double)store, bytes, (double)n->requests,
	           prompt / (double)n->requests, of[SCALE_MEMORY], of[SCALE_DISK], of[SCALE_STORE], hit,
	           prompt * (1 - hit) / seconds, (double)n->blocks_written * mb / seconds, (double)n->blocks_read * mb / seconds,
	           time_saved(o, n, bytes), (double)(n->max_blocks * scale_block_values((uint64_t)bytes * SCALE_BLOCK)),
	           (double)n->max_host_tokens * hosts / prompt);
}

static int simulate(struct report *report, const struct options *o, int policy, uint32_t routing, long store, double bytes)
{
	struct scale_cache_params p = {
		.block_bytes = (uint64_t)bytes * SCALE_BLOCK,
		.memory_bytes = (uint64_t)o->memory * MIB,
		.disk_bytes = (uint64_t)o->disk * MIB,
		.store_bytes = (uint64_t)store * MIB,
		.ttl_us = (uint64_t)o->ttl * 1000000,
	};
	struct scale_cache *c = NULL;
	struct scale_request r;
	struct source s;
	int e = source_open(&s, o, routing);

	if (e == 0) {
		p.hosts = s.hosts;
		c = scale_cache_new(&p);
		e = c ? 0 : complain("the tiers", strerror(ENOMEM));
	}
	while (e == 0 && (e = source_next(&s, &r)) > 0) {
		e = scale_cache_request(c, &r, NULL);
		if (e < 0)
			complain("the tiers", strerror(-e));
	}
	if (e == 0 && scale_cache_counts(c)->requests == 0)
		e = complain("the trace", "there is no request in it");
	if (e == 0)
		row(report, o, policy, routing, store, bytes, p.hosts, scale_cache_counts(c));
	scale_cache_free(c);
	source_close(&s);
	return e;
}

static int measure(struct report *r, const void *options)
{
	const struct options *o = options;
	double bytes[BENCH_LIST_MAX];
	int e = o->trace ? write_trace(o, o->routing[0]) : 0;

	if (e < 0)
		return -1;
	all_marginal_bytes(o, bytes);
	for (int i = 0; i < o->n_policies; i++)
		for (int k = 0; k < o->n_routings; k++)
			for (int s = 0; s < o->n_stores; s++)
				if (simulate(r, o, i, o->routing[k], o->store[s], bytes[i]) < 0)
					return -1;
	return 0;
}

/* ---- options --------------------------------------------------------------------------------------- */

static const char about[] =
	"Simulates hosts that share prefixes of prompts through a store: a trace of requests is made, or read, and looked\n"
	"up block by block in the host's memory, on its disk and in the store. memory, disk, store and hit are shares of\n"
	"the prompts' tokens, time_saved is one of the time that computing all of them takes; a row for each policy,\n"
	"routing and size of the store.";

static void as_workload(struct options *o)
{
	const struct scale_workload w = scale_workload(o->workload);
	const struct {
		double *to, from;
	} reals[] = {{&o->rate, w.rate},    {&o->system, w.system.mean}, {&o->message, w.message.mean}, {&o->answer, w.answer.mean},
	             {&o->turns, w.turns}, {&o->think, w.think},        {&o->branch, w.branch}};

	for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
		if (*reals[i].to < 0)
			*reals[i].to = reals[i].from;
	o->tenants = o->tenants < 0 ? w.tenants : o->tenants;
	o->prompts = o->prompts < 0 ? w.prompts : o->prompts;
	o->context = o->context < 0 ? w.max_tokens : o->context;
}

/* Fills in defaults, and checks that the options fit together. */
static int complete(struct options *o)
{
	as_workload(o);
	if (o->replay && o->trace)
		return bench_bad("trace", o->trace, "no --replay with it");
	if ((o->replay || o->trace) && o->n_routings > 1)
		return bench_bad("routing", "several", "one: a file says where its requests go");
	if (!o->n_routings && (o->replay || o->trace))
		o->routing[o->n_routings++] = SCALE_ROUTING_CHAT;
	if (!o->n_routings)
		for (uint32_t i = 0; routings[i]; i++)
			o->routing[o->n_routings++] = i;
	if (!(o->rate > 0))
		return bench_bad("rate", "0", "a number above 0");
	if (!o->n_policies)
		o->policy[o->n_policies++] = "full";
	return 0;
}

/* Returns 0, or -1 after an error was reported. */
static int parse(struct options *o, int argc, char **argv)
{
	const struct eng_option table[] = {
		ENG_TEXTS("policy", "SPEC", o->policy, &o->n_policies,
		            "one that evicts nothing and keeps nothing besides; again for another one (full)"),
		ENG_COUNT("bytes", &o->bytes, 1, 1l << 30, "of a token, in place of what follows from policy and shape"),
		ENG_COUNT("layers", &o->layers, 1, SKV_MAX_LAYERS, "layers (32)"),
		BENCH_HEADS(&o->heads, &o->kv_heads, "q heads/kv heads (32/8)"),
		ENG_COUNT("dim", &o->dim, 16, SKV_MAX_HEAD_DIM, "head dimension (128)"),
		BENCH_DTYPES(o->dtypes, &o->n_dtypes, "of K and V (bf16)"),
		ENG_NAME("workload", "NAME", &o->workload, scale_workload_names,
		           "conversation, toolagent or chat, whose values are those of the options below (conversation)"),
		ENG_REAL("rate", &o->rate, 0, 1000000000, "requests a second, of all hosts together"),
		ENG_COUNT("tenants", &o->tenants, 1, 1000000, "tenants; nothing is shared between two"),
		ENG_COUNT("prompts", &o->prompts, 1, 1000000, "system prompts of each"),
		ENG_REAL("system", &o->system, 1, 1 << 24, "tokens of a system prompt"),
		ENG_REAL("message", &o->message, 1, 1 << 24, "tokens of a message"),
		ENG_REAL("answer", &o->answer, 1, 1 << 24, "tokens of an answer"),
		ENG_REAL("turns", &o->turns, 1, 1000000, "turns of a chat"),
		ENG_REAL("think", &o->think, 0, 1000000000, "seconds from one to the next"),
		ENG_REAL("branch", &o->branch, 0, 1, "share of turns that go back to an earlier one"),
		ENG_COUNT("context", &o->context, 4, SKV_MAX_TOKENS, "tokens of prompt and answer, at most"),
		ENG_COUNT("seed", &o->seed, 0, INT64_MAX, "of the trace (1)"),
		ENG_COUNT("requests", &o->requests, 1, INT64_MAX, "of the trace (20000)"),
		ENG_COUNT("hosts", &o->hosts, 1, SCALE_MAX_HOSTS, "hosts (8)"),
		ENG_NAMES("routing", o->routing, &o->n_routings, routings,
		            "where requests go: anywhere (random), those of a chat or of a system prompt to one host\n"
		            "(random,chat,prefix; with a file chat)"),
		ENG_COUNT("memory", &o->memory, 0, 1l << 40, "MiB of a host's memory for sequences (1048576)"),
		ENG_COUNT("disk", &o->disk, 0, 1l << 40, "MiB of a host's disk (0)"),
		ENG_COUNTS("store", "LIST", o->store, &o->n_stores, 0, 1l << 40, "MiB of the store; 0: there is none (0,4194304)"),
		ENG_COUNT("ttl", &o->ttl, 0, 1l << 40, "seconds after which the store lets a block go; 0: none (0)"),
		ENG_REAL("prefill", &o->prefill, 1, 1000000000, "tokens a second that a host computes of prompts (200000)"),
		ENG_REAL("network", &o->network, 1, 1000000, "Gbit/s of a host from the store (100)"),
		ENG_REAL("disk-rate", &o->disk_rate, 1, 1000000, "GB/s of a host from its disk (12)"),
		ENG_TEXT("trace", "FILE", &o->trace, "write the trace there, too, a request a line"),
		ENG_TEXT("replay", "FILE", &o->replay, "simulate the trace in that file, and make none"),
		BENCH_CSV(&o->csv),
	};
	const struct bench_command command = {"scale", NULL, about, table, sizeof table / sizeof *table};
	int e;

	*o = (struct options){
		.layers = 32, .heads = 32, .kv_heads = 8, .dim = 128, .dtypes = {SKV_BF16},
		.rate = -1, .tenants = -1, .prompts = -1, .system = -1, .message = -1, .answer = -1, .turns = -1, .think = -1,
		.branch = -1, .context = -1, .seed = 1, .requests = 20000, .hosts = 8,
		.memory = 1 << 20, .store = {0, 4 << 20}, .n_stores = 2, .prefill = 200000, .network = 100, .disk_rate = 12,
	};
	e = bench_options(&command, argc, argv);
	return e ? e : complete(o);
}

int bench_scale(int argc, char **argv)
{
	struct options o;
	int e = parse(&o, argc, argv);

	return bench_report(e, measure, &o, columns, sizeof columns / sizeof *columns, o.csv);
}
