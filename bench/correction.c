/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/correction.c - sparsekv-bench correction.
 *
 * What sparse prompts lose and a correction gives back, where rows are as Delta Attention found them in large models: a stack
 * of layers that is made so (synthetic-layers.h), and the same with nothing alike from row to row. Kernels are those that ship. Three
 * tables, as its figures are:
 *
 *   outputs   of every layer under every way, what it gives beside what dense attention gives all the way: 9
 *   locality  how alike what neighbouring rows miss is, by their distance, with dense inputs: 6b
 *   lemma     the bound of Lemma 1 and what is bounded, with dense inputs: 11
 */
#include "bench/bench.h"
#include "bench/fidelity.h"
#include "engine/delta-similarity.h"
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#define LAST 128u /* rows of a prompt that are looked at as its last ones */

struct options {
	struct synthetic_shape shape;
	double topics[BENCH_LIST_MAX];
	int n_topics;
	long sinks, window, gamma;
	const char *table, *csv;
};

/* ---- ways ------------------------------------------------------------------------------------ */

#define MAX_WAYS 16

static void add(struct synthetic_method *ways, uint32_t *n, const char *name, const struct skv_prefill *plan, uint32_t correct,
                bool tail)
{
	ways[*n] = (struct synthetic_method){.name = name, .plan = *plan, .tail = tail};
	ways[*n].plan.correct = correct;
	(*n)++;
}

static struct skv_prefill streaming_of(const struct options *o)
{
	const uint32_t gamma = (uint32_t)o->gamma;

	return (struct skv_prefill){.how = SKV_PREFILL_STREAMING, .gamma = gamma, .tail = gamma > LAST ? gamma : LAST,
	                            .sinks = (uint32_t)o->sinks, .window = (uint32_t)o->window};
}

/* HiP and Kascade in sizes for prompts of thousands. */
static uint32_t list_ways(const struct options *o, struct synthetic_method ways[MAX_WAYS])
{
	const struct skv_prefill streaming = streaming_of(o);
	struct skv_prefill hip = streaming, kascade = streaming;
	uint32_t n = 0;

	hip.how = SKV_PREFILL_HIP;
	hip.sinks = 64;
	hip.window = 128;
	memcpy(hip.keep, (const uint32_t[]){1024, 512, 256}, sizeof hip.keep);
	kascade.how = SKV_PREFILL_KASCADE;
	kascade.sinks = kascade.window = 0;
	kascade.top.share = 0.1f;
	kascade.top_floor = 128;
	add(ways, &n, "streaming", &streaming, SKV_CORRECT_NONE, false);
	add(ways, &n, "streaming+recompute", &streaming, SKV_CORRECT_RECOMPUTE, false);
	add(ways, &n, "streaming+delta", &streaming, SKV_CORRECT_DELTA, false);
	add(ways, &n, "streaming+recompute", &streaming, SKV_CORRECT_RECOMPUTE, true);
	add(ways, &n, "streaming+delta", &streaming, SKV_CORRECT_DELTA, true);
	add(ways, &n, "hip", &hip, SKV_CORRECT_NONE, false);
	add(ways, &n, "hip+delta", &hip, SKV_CORRECT_DELTA, true);
	add(ways, &n, "kascade", &kascade, SKV_CORRECT_NONE, false);
	add(ways, &n, "kascade+delta", &kascade, SKV_CORRECT_DELTA, true);
	return n;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static void *need(void *p)
{
	if (!p) {
		fputs("sparsekv-bench: correction: out of memory; fewer --tokens may help\n", stderr);
		exit(1);
	}
	return p;
}

static uint32_t last_of(const struct synthetic_shape *s)
{
	return s->tokens > LAST ? s->tokens - LAST : 0;
}

static const struct column output_columns[] = {
	{"topic", 3}, {"layer", 0}, {"way", -20}, {"tail", 0}, {"cosine", 3}, {"cosine_last", 3}, {"ranks_last", 3},
	{"error", 3}, {"error_last", 3}, {"recovered", 3},
};

/* `of_streaming`: the errors of the first way, whose rows these are at first. */
static void report_outputs(struct report *r, const struct synthetic_shape *s, const struct synthetic_method *way,
                           const struct synthetic_layer *got, const struct synthetic_layer *dense, double *of_streaming)
{
	const uint32_t n = s->tokens, last = last_of(s), tail = n - synthetic_tail(s, way);

	for (uint32_t l = 0; l < s->layers; l++) {
		const float *out = got[l].out, *ref = dense[l].out;
		const double error = fidelity_error(s, out, ref, 0, n);

		of_streaming[l] = of_streaming[l] > 0 ? of_streaming[l] : error;
		report_row(r, s->topic, (double)l, way->name, (double)tail, fidelity_cosine(s, out, ref, 0, n),
		           fidelity_cosine(s, out, ref, last, n), fidelity_ranks(s, &got[l], &dense[l], last, n), error,
		           fidelity_error(s, out, ref, last, n), 1 - error / of_streaming[l]);
	}
}

static void measure_outputs(struct report *r, const struct options *o, struct synthetic_layers *layers, const struct synthetic_shape *s,
                            const struct synthetic_layer *dense)
{
	double *of_streaming = need(calloc(s->layers, sizeof *of_streaming));
	struct synthetic_method ways[MAX_WAYS];
	const uint32_t n = list_ways(o, ways);

	for (uint32_t w = 0; w < n; w++) {
		struct synthetic_layer *got = need(synthetic_run(layers, &ways[w]));

		report_outputs(r, s, &ways[w], got, dense, of_streaming);
		synthetic_outputs_free(layers, got);
	}
	free(of_streaming);
}

static const struct column locality_columns[] = {
	{"topic", 3}, {"layer", 0}, {"way", -12}, {"cosine", 3}, {"at_1", 3}, {"at_2", 3}, {"at_4", 3}, {"at_8", 3},
	{"at_16", 3}, {"at_32", 3}, {"missed", 3}, {"left", 3},
};

static void measure_locality(struct report *r, const struct options *o, struct synthetic_layers *layers, const struct synthetic_shape *s,
                             const struct synthetic_layer *dense)
{
	float *out = need(malloc((size_t)s->tokens * s->heads * s->dim * sizeof *out));
	struct synthetic_method ways[MAX_WAYS];
	const uint32_t n = list_ways(o, ways);

	for (uint32_t w = 0; w < n; w++)
		for (uint32_t l = 0; l < s->layers && !ways[w].plan.correct; l++) {
			struct eng_delta_similarity a;

			need(synthetic_attend(layers, &dense[l], &ways[w], out) ? out : NULL);
			a = fidelity_alike(s, dense[l].out, out, (uint32_t)o->gamma);
			report_row(r, s->topic, (double)l, ways[w].name, eng_delta_similarity_cosine(&a), eng_delta_similarity_bin(&a, 0),
			           eng_delta_similarity_bin(&a, 1), eng_delta_similarity_bin(&a, 2), eng_delta_similarity_bin(&a, 3), eng_delta_similarity_bin(&a, 4),
			           eng_delta_similarity_bin(&a, 5), eng_delta_similarity_missed(&a), eng_delta_similarity_left(&a));
		}
	free(out);
}

static const struct column lemma_columns[] = {
	{"topic", 3}, {"layer", 0}, {"tokens", -12}, {"rest", 4}, {"bound", 4}, {"worst", 3},
};

static void measure_lemma(struct report *r, const struct options *o, struct synthetic_layers *layers, const struct synthetic_shape *s,
                          const struct synthetic_layer *dense)
{
	const struct synthetic_method way = {.name = "streaming", .plan = streaming_of(o)};
	float *out = need(malloc((size_t)s->tokens * s->heads * s->dim * sizeof *out));

	for (uint32_t l = 0; l < s->layers; l++) {
		need(synthetic_attend(layers, &dense[l], &way, out) ? out : NULL);
		for (int best = 0; best < 2; best++) {
			const struct fidelity_lemma f =
				fidelity_lemma(s, &dense[l], &way.plan, best, out, last_of(s), s->tokens);

			report_row(r, s->topic, (double)l, best ? "the best" : "streaming", f.rest, f.bound, f.worst);
		}
	}
	free(out);
}

static const struct table {
	const char *name;
	const struct column *columns;
	int n;
	void (*measure)(struct report *, const struct options *, struct synthetic_layers *, const struct synthetic_shape *,
	                const struct synthetic_layer *dense);
} tables[] = {
	{"outputs", output_columns, sizeof output_columns / sizeof *output_columns, measure_outputs},
	{"locality", locality_columns, sizeof locality_columns / sizeof *locality_columns, measure_locality},
	{"lemma", lemma_columns, sizeof lemma_columns / sizeof *lemma_columns, measure_lemma},
};
#define N_TABLES (sizeof tables / sizeof *tables)

static const struct table *table_of(const char *name)
{
	for (size_t i = 0; i < N_TABLES; i++)
		if (!strcmp(name, tables[i].name))
			return &tables[i];
	return NULL;
}

/* ---- the command ----------------------------------------------------------------------------- */

static void help(void)
{
	puts("usage: sparsekv-bench correction [OPTION...]\n\n"
	     "  --table NAME      outputs, locality or lemma (outputs)\n"
	     "  --topic X,...     cosine of what rows 64 apart ask for; 0: rows have nothing in common (0.998,0)\n"
	     "  --tokens N        of the prompt (8192)\n"
	     "  --layers N        of the prompt's model (3)\n"
	     "  --heads Q/KV      (8/2)\n"
	     "  --dim N           of a head (64)\n"
	     "  --sinks N         of streaming (16)\n"
	     "  --window N        of streaming (128)\n"
	     "  --gamma N         a power of two from 2 to 4096 (64)\n"
	     "  --seed N          (1)\n"
	     "  --threads N       (as many as there are processors)\n"
	     "  --csv FILE        the same figures as CSV");
}

static int parse_topics(struct options *o, const char *text)
{
	char *end = (char *)text - 1;

	for (o->n_topics = 0; o->n_topics < BENCH_LIST_MAX; o->n_topics++) {
		const char *begin = end + 1;
		const double x = strtod(begin, &end);

		if (end == begin || (*end && *end != ',') || !(x >= 0 && x < 1))
			break;
		o->topics[o->n_topics] = x;
		if (!*end)
			return ++o->n_topics, 0;
	}
	return bench_bad("topic", text, "numbers from 0 on and below 1, separated by commas");
}

static int check(const struct options *o)
{
	const struct synthetic_shape *s = &o->shape;
	const struct skv_shape sh = {.n_heads = s->heads, .n_kv_heads = s->kv_heads, .head_dim = s->dim, .dtype = SKV_F32,
	                             .io_dtype = SKV_F32};
	const char *expected = s->kern->unsupported(&sh);

	if (!table_of(o->table))
		return bench_bad("table", o->table, "outputs, locality or lemma");
	if (o->gamma & (o->gamma - 1)) {
		fprintf(stderr, "sparsekv-bench: --gamma %ld: expected a power of two\n", o->gamma);
		return -1;
	}
	if (expected)
		fprintf(stderr, "sparsekv-bench: --heads, --dim: expected %s\n", expected);
	return expected ? -1 : 0;
}

static int take(struct options *o, int c)
{
	struct synthetic_shape *s = &o->shape;
	long x = 0;
	int e = 0;

	switch (c) {
	case 't':
		o->table = optarg;
		return 0;
	case 'p':
		return parse_topics(o, optarg);
	case 'n':
		e = bench_number("tokens", optarg, 2, 1 << 20, &x);
		s->tokens = (uint32_t)x;
		return e;
	case 'l':
		e = bench_number("layers", optarg, 1, 64, &x);
		s->layers = (uint32_t)x;
		return e;
	case 'h':
		return bench_heads(optarg, &s->heads, &s->kv_heads);
	case 'd':
		e = bench_number("dim", optarg, 16, 256, &x);
		s->dim = (uint32_t)x;
		return e;
	case 's':
		return bench_number("sinks", optarg, 0, 1 << 20, &o->sinks);
	case 'w':
		return bench_number("window", optarg, 1, 1 << 20, &o->window);
	case 'g':
		return bench_number("gamma", optarg, 2, 4096, &o->gamma);
	case 'r':
		e = bench_number("seed", optarg, 0, INT32_MAX, &x);
		s->seed = (uint64_t)x;
		return e;
	case 'j':
		e = bench_number("threads", optarg, 1, 1024, &x);
		s->threads = (int)x;
		return e;
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
		{"table", required_argument, NULL, 't'},   {"topic", required_argument, NULL, 'p'},
		{"tokens", required_argument, NULL, 'n'},  {"layers", required_argument, NULL, 'l'},
		{"heads", required_argument, NULL, 'h'},   {"dim", required_argument, NULL, 'd'},
		{"sinks", required_argument, NULL, 's'},   {"window", required_argument, NULL, 'w'},
		{"gamma", required_argument, NULL, 'g'},   {"seed", required_argument, NULL, 'r'},
		{"threads", required_argument, NULL, 'j'}, {"csv", required_argument, NULL, 'c'},
		{"help", no_argument, NULL, '?' + 128},    {0},
	};
	int e = 0;

	*o = (struct options){
		.shape = {.tokens = 8192, .heads = 8, .kv_heads = 2, .dim = 64, .layers = 3, .seed = 1,
		          .threads = omp_get_max_threads(), .kern = skv_kernels_host(NULL)},
		.topics = {0.998, 0}, .n_topics = 2, .sinks = 16, .window = 128, .gamma = 64, .table = "outputs",
	};
	for (int c; !e && (c = getopt_long(argc, argv, "", longs, NULL)) != -1;)
		e = take(o, c);
	if (!e && optind < argc) {
		fprintf(stderr, "sparsekv-bench: correction: unexpected argument '%s'\n", argv[optind]);
		return -1;
	}
	if (!e && !o->shape.kern) {
		fputs("sparsekv-bench: SPARSEKV_ISA: expected avx512, avx2 or generic, and a processor that has it\n", stderr);
		return -1;
	}
	return e ? e : check(o);
}

int bench_correction(int argc, char **argv)
{
	static const struct synthetic_method dense = {.name = "dense"};
	const struct table *table;
	struct options o;
	struct report r;
	int e = parse(&o, argc, argv);

	if (e)
		return e > 0 ? 0 : 2;
	table = table_of(o.table);
	e = report_init(&r, table->columns, table->n, o.csv);
	for (int i = 0; !e && i < o.n_topics; i++) {
		struct synthetic_layers *layers;
		struct synthetic_layer *ref;

		o.shape.topic = o.topics[i];
		layers = need(synthetic_layers_new(&o.shape));
		ref = need(synthetic_run(layers, &dense));
		table->measure(&r, &o, layers, &o.shape, ref);
		synthetic_outputs_free(layers, ref);
		synthetic_layers_free(layers);
	}
	e = e ? e : report_deinit(&r);
	if (e)
		fprintf(stderr, "sparsekv-bench: --csv %s: %s\n", o.csv, strerror(-e));
	return e ? 1 : 0;
}
