/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/correction.c - sparsekv-bench correction: measures the error of sparse prefill, and how much of it a correction
 * removes.
 *
 * The rows have the locality that the paper Delta Attention found in large models: a synthetic stack of layers is built
 * with it (synthetic-layers.h). For comparison, the same stack is also measured without any similarity between rows.
 * The kernels are those of the client library. There are three tables, each like a figure of the paper:
 *
 *   outputs   of every layer under every method: its output compared with that of all-dense attention: Figure 9
 *   locality  similarity of the errors of neighbouring rows by their distance, with dense inputs: Figure 6b
 *   lemma     the bound of Lemma 1 and the bounded value, with dense inputs: Figure 11
 */
#include "bench/bench.h"
#include "bench/fidelity.h"
#include "engine/error-similarity.h"
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#define LAST 128u /* most rows at the end of a prompt that the columns "…_last" are computed from */

struct options {
	struct synthetic_shape shape;
	double topics[BENCH_LIST_MAX];
	int n_topics;
	long sinks, window, gamma;
	uint32_t table; /* index of the table in tables[] */
	const char *csv;
};

/* ---- methods --------------------------------------------------------------------------------- */

#define MAX_WAYS 16

static void add(struct synthetic_method *ways, uint32_t *n, const char *name, const struct skv_prefill *plan,
                uint32_t correct, bool tail)
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

/* Lists all methods of reading the prompt. HiP and Kascade get parameters for prompts of thousands of tokens. */
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

/*
 * Reports a method's rows. `of_streaming` [layers] gets the errors of the first method, streaming, which later methods
 * are compared with.
 */
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

static void measure_outputs(struct report *r, const struct options *o, struct synthetic_layers *layers,
                            const struct synthetic_shape *s, const struct synthetic_layer *dense)
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

static void measure_locality(struct report *r, const struct options *o, struct synthetic_layers *layers,
                             const struct synthetic_shape *s, const struct synthetic_layer *dense)
{
	float *out = need(malloc((size_t)s->tokens * s->heads * s->dim * sizeof *out));
	struct synthetic_method ways[MAX_WAYS];
	const uint32_t n = list_ways(o, ways);

	for (uint32_t w = 0; w < n; w++)
		for (uint32_t l = 0; l < s->layers && !ways[w].plan.correct; l++) {
			struct eng_delta_similarity a;

			need(synthetic_attend(layers, &dense[l], &ways[w], out) ? out : NULL);
			a = fidelity_alike(s, dense[l].out, out, (uint32_t)o->gamma);
			report_row(r, s->topic, (double)l, ways[w].name, eng_delta_similarity_cosine(&a),
			           eng_delta_similarity_bin(&a, 0),
			           eng_delta_similarity_bin(&a, 1), eng_delta_similarity_bin(&a, 2), eng_delta_similarity_bin(&a, 3), eng_delta_similarity_bin(&a, 4),
			           eng_delta_similarity_bin(&a, 5), eng_delta_similarity_missed(&a), eng_delta_similarity_left(&a));
		}
	free(out);
}

static const struct column lemma_columns[] = {
	{"topic", 3}, {"layer", 0}, {"tokens", -12}, {"rest", 4}, {"bound", 4}, {"worst", 3},
};

static void measure_lemma(struct report *r, const struct options *o, struct synthetic_layers *layers,
                          const struct synthetic_shape *s, const struct synthetic_layer *dense)
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
	const struct column *columns;
	int n;
	void (*measure)(struct report *, const struct options *, struct synthetic_layers *, const struct synthetic_shape *,
	                const struct synthetic_layer *dense);
} tables[] = {
	{output_columns, sizeof output_columns / sizeof *output_columns, measure_outputs},
	{locality_columns, sizeof locality_columns / sizeof *locality_columns, measure_locality},
	{lemma_columns, sizeof lemma_columns / sizeof *lemma_columns, measure_lemma},
};
#define N_TABLES (sizeof tables / sizeof *tables)

static const char *const table_names[N_TABLES + 1] = {"outputs", "locality", "lemma", NULL};

static const char about[] =
	"Runs a prompt through a synthetic model whose neighbouring rows are alike, densely and in sparse ways, and\n"
	"compares outputs, or what neighbouring rows miss (locality), or both sides of Lemma 1 (lemma).";

/* ---- the command ----------------------------------------------------------------------------- */

static int check(const struct options *o)
{
	const struct synthetic_shape *s = &o->shape;
	const struct skv_shape sh = {.n_heads = s->heads, .n_kv_heads = s->kv_heads, .head_dim = s->dim, .dtype = SKV_F32,
	                             .io_dtype = SKV_F32};
	const char *expected = s->kern->unsupported(&sh);

	if (expected)
		fprintf(stderr, "sparsekv-bench: --heads, --dim: expected %s\n", expected);
	return expected ? -1 : 0;
}

static int parse(struct options *o, int argc, char **argv)
{
	struct synthetic_shape *s = &o->shape;
	int e;
	const struct eng_option table[] = {
		ENG_NAME("table", "NAME", &o->table, table_names, "outputs, locality or lemma (outputs)"),
		BENCH_COSINES("topic", o->topics, &o->n_topics,
		              "cosine of the queries of rows 64 apart; 0: rows have nothing in common (0.998,0)"),
		ENG_COUNT("tokens", &s->tokens, 2, 1 << 20, "of the prompt (8192)"),
		ENG_COUNT("layers", &s->layers, 1, 64, "of the synthetic model (3)"),
		BENCH_HEADS(&s->heads, &s->kv_heads, "q heads/kv heads (8/2)"),
		ENG_COUNT("dim", &s->dim, 16, 256, "head dimension (64)"),
		ENG_COUNT("sinks", &o->sinks, 0, 1 << 20, "of streaming (16)"),
		ENG_COUNT("window", &o->window, 1, 1 << 20, "of streaming (128)"),
		ENG_POWER("gamma", &o->gamma, 2, 4096, "a power of two from 2 to 4096 (64)"),
		ENG_COUNT("seed", &s->seed, 0, INT32_MAX, "of the synthetic model (1)"),
		ENG_COUNT("threads", &s->threads, 1, 1024, "OpenMP threads (as many as there are processors)"),
		BENCH_CSV(&o->csv),
	};
	const struct bench_command command = {"correction", NULL, about, table, sizeof table / sizeof *table};

	*o = (struct options){
		.shape = {.tokens = 8192, .heads = 8, .kv_heads = 2, .dim = 64, .layers = 3, .seed = 1,
		          .threads = omp_get_max_threads(), .kern = skv_kernels_host(NULL)},
		.topics = {0.998, 0}, .n_topics = 2, .sinks = 16, .window = 128, .gamma = 64,
	};
	e = bench_options(&command, argc, argv);
	if (!e && !s->kern) {
		fputs("sparsekv-bench: SPARSEKV_ISA: expected avx512, avx2 or generic, and a processor that has it\n",
		      stderr);
		return -1;
	}
	return e ? e : check(o);
}

static int measure(struct report *r, const void *options)
{
	static const struct synthetic_method dense = {.name = "dense"};
	const struct options *o = options;

	for (int i = 0; i < o->n_topics; i++) {
		struct synthetic_shape shape = o->shape;
		struct synthetic_layers *layers;
		struct synthetic_layer *ref;

		shape.topic = o->topics[i];
		layers = need(synthetic_layers_new(&shape));
		ref = need(synthetic_run(layers, &dense));
		tables[o->table].measure(r, o, layers, &shape, ref);
		synthetic_outputs_free(layers, ref);
		synthetic_layers_free(layers);
	}
	return 0;
}

int bench_correction(int argc, char **argv)
{
	struct options o;
	int e = parse(&o, argc, argv);

	return bench_report(e, measure, &o, tables[o.table].columns, tables[o.table].n, o.csv);
}
