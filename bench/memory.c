/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/memory.c - sparsekv-bench memory: what a long decode keeps in memory, by the daemon's books.
 *
 * One sequence after the other, each under a policy of its own, decodes random tokens, and every now and then the
 * daemon is asked, as sparsekvctl asks it: how many pages the sequence's tables have of K and V, of codes and references
 * in their place, and of bounds and notes, which policies keep besides. That follows from lengths alone, so a small model does.
 */
#include "bench/bench.h"
#include "bench/rig.h"
#include "daemon/ctl/conn.h"
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#define TIMEOUT_MS 60000

struct options {
	uint32_t device;
	const char *policy[BENCH_LIST_MAX];
	long n_policies, prompt, tokens, every, layers, dim;
	uint32_t heads, kv_heads;
	const char *csv;
};

static const char *const usual[] = {"full", "quest", "delta", "streaming", "h2o", "snapkv", "adakv", "rkv", "raas"};

static const struct column columns[] = {
	{"tokens", 0}, {"policy", -20}, {"kv_mib", 3}, {"codes_mib", 3}, {"refs_mib", 3},
	{"bounds_mib", 3}, {"notes_mib", 3}, {"kept", 3},
};

/* ---- the daemon's books ------------------------------------------------------------------------ */

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

/* What the only sequence has, as a row of the report. */
static void look(struct skv_ctl *ctl, const struct rig *rig, const char *policy, struct report *r)
{
	double mib = (double)skv_page_bytes(&rig->model) / (1 << 20);
	json_t *answer, *seq, *pages;

	need_answer(ctl, skv_ctl_query(ctl, SKV_QUERY_SEQS, &answer));
	seq = json_array_get(json_object_get(answer, "sequences"), 0);
	pages = json_object_get(seq, "pages");
	report_row(r, figure(seq, "tokens"), policy, figure(pages, "kv") * mib,
	           figure(pages, "codes") * mib, figure(pages, "refs") * mib, figure(pages, "bounds") * mib,
	           figure(pages, "notes") * mib,
	           figure(seq, "pages_resident") / figure(seq, "pages_total"));
	json_decref(answer);
}

static void decode(struct rig *rig, struct skv_ctl *ctl, const struct options *o, const char *policy, struct report *r)
{
	struct rig_times t;
	struct skv_model m = {
		.size = sizeof m,
		.n_layers = (uint32_t)o->layers,
		.n_heads = o->heads,
		.n_kv_heads = o->kv_heads,
		.head_dim = (uint32_t)o->dim,
		.kv_dtype = SKV_BF16,
		.max_tokens = (uint32_t)o->tokens,
		.n_ranks = 1,
		.name = "memory",
	};

	rig_open(rig, &m, policy);
	rig_fill(rig, 1, (uint32_t)o->prompt, (uint32_t)(o->tokens - o->prompt));
	for (long n = o->prompt + 1; n <= o->tokens; n++) {
		rig_step(rig, RIG_MOVING, &t);
		if (n % o->every == 0)
			look(ctl, rig, policy, r);
	}
	rig_empty(rig);
	rig_close(rig);
}

/* ---- options ------------------------------------------------------------------------------------ */

static void help(void)
{
	puts("usage: sparsekv-bench memory [OPTION...]\n\n"
	     "Decodes a sequence under each policy and asks the daemon what it has in memory.\n\n"
	     "  --policy SPEC    a policy; again for another one (full, quest, delta, streaming, h2o, snapkv,\n"
	     "                   adakv, rkv, raas, which keep or look at 1024 tokens where they have a budget)\n"
	     "  --prompt N       tokens that it begins with (128)\n"
	     "  --tokens N       its length at last (16384)\n"
	     "  --every N        steps between two questions (200)\n"
	     "  --device cuda:N  on that device (host memory)\n"
	     "  --layers N       (4)\n"
	     "  --heads Q/KV     q heads/kv heads (4/2)\n"
	     "  --dim N          head dimension (32; on a device 64)\n"
	     "  --csv FILE       the figures as CSV, too");
}

/* One option. 0: go on, 1: help was asked for, -1: an error was reported. */
static int take(struct options *o, int c)
{
	switch (c) {
	case 'p':
		if (o->n_policies == BENCH_LIST_MAX)
			return bench_bad("policy", optarg, "at most 16 of them");
		o->policy[o->n_policies++] = optarg;
		return 0;
	case 'm':
		return bench_number("prompt", optarg, 1, SKV_MAX_TOKENS / 2, &o->prompt);
	case 'n':
		return bench_number("tokens", optarg, 2, SKV_MAX_TOKENS / 2, &o->tokens);
	case 'e':
		return bench_number("every", optarg, 1, SKV_MAX_TOKENS / 2, &o->every);
	case 'v':
		return bench_device(optarg, &o->device);
	case 'l':
		return bench_number("layers", optarg, 1, SKV_MAX_LAYERS, &o->layers);
	case 'h':
		return bench_heads(optarg, &o->heads, &o->kv_heads);
	case 'd':
		return bench_number("dim", optarg, 16, SKV_MAX_HEAD_DIM, &o->dim);
	case 'c':
		o->csv = optarg;
		return 0;
	case '?' + 128:
		help();
		return 1;
	default:
		return -1;
	}
}

static int parse(struct options *o, int argc, char **argv)
{
	static const struct option longs[] = {
		{"policy", 1, 0, 'p'}, {"prompt", 1, 0, 'm'}, {"tokens", 1, 0, 'n'}, {"every", 1, 0, 'e'},
		{"device", 1, 0, 'v'}, {"layers", 1, 0, 'l'}, {"heads", 1, 0, 'h'},  {"dim", 1, 0, 'd'},
		{"csv", 1, 0, 'c'},    {"help", 0, 0, '?' + 128}, {0},
	};

	*o = (struct options){.prompt = 128, .tokens = 16384, .every = 200, .layers = 4, .heads = 4, .kv_heads = 2};
	for (int c, e; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;)
		if ((e = take(o, c)))
			return e;
	if (optind < argc)
		return bench_bad("option", argv[optind], "nothing after the options");
	if (o->prompt >= o->tokens)
		return bench_bad("prompt", "that long", "less than the tokens in all");
	if (!o->dim)
		o->dim = o->device ? 64 : 32;
	if (!o->n_policies) {
		memcpy(o->policy, usual, sizeof usual);
		o->n_policies = sizeof usual / sizeof *usual;
	}
	return 0;
}

int bench_memory(int argc, char **argv)
{
	struct options o;
	struct report report;
	struct rig rig;
	struct skv_ctl ctl;
	int e = parse(&o, argc, argv);

	if (e)
		return e > 0 ? 0 : 2;
	rig_start(&rig, o.device);
	need_answer(&ctl, skv_ctl_connect(&ctl, eng_private_socket(rig.daemon), "sparsekv-bench", TIMEOUT_MS));
	e = report_init(&report, columns, sizeof columns / sizeof *columns, o.csv);
	for (long i = 0; !e && i < o.n_policies; i++)
		decode(&rig, &ctl, &o, o.policy[i], &report);
	skv_ctl_close(&ctl);
	rig_stop(&rig);
	if (!e)
		e = report_deinit(&report);
	if (e)
		fprintf(stderr, "sparsekv-bench: --csv %s: %s\n", o.csv, strerror(-e));
	return e ? 1 : 0;
}
