/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/attention.c - sparsekv-bench attention: measures the attention kernels, and compares them with a plain read of
 * the same memory.
 *
 * A measurement is one pass over all layers of a kernel fixture, which are so many that no cache still has the data of
 * a layer when its turn comes again. The pages are in random order, the worst case for the kernels, while the plain
 * read goes through the same bytes in order of their addresses. The kernels take turns, and for each the median of its
 * passes is reported. On a device, a pass is the replay of a recorded CUDA graph, as in a session's steps, and is timed
 * by the device's events; it has at least PASS_LAYERS layers.
 *
 * GB/s counts the bytes of K and V of the tokens that a kernel was asked to attend to, each token once.
 */
#include "bench/kernel-fixture.h"
#include "bench/bench.h"
#include <cblas.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>

#define MAX_REPEAT 101

struct options {
	long threads[BENCH_LIST_MAX], tokens[BENCH_LIST_MAX], dims[BENCH_LIST_MAX];
	long heads[BENCH_LIST_MAX], kv_heads[BENCH_LIST_MAX];
	uint32_t dtypes[BENCH_LIST_MAX];
	int n_threads, n_tokens, n_shapes, n_dtypes;
	long repeat, prefill;
	uint32_t only[64]; /* decode kernels to measure; none: all */
	int n_only;
	const char *csv;
	struct fixture_options fixture;
};

/* ---- measured kernels ------------------------------------------------------------------------ */

typedef uint32_t line __attribute__((vector_size(64)));

/*
 * Returns the sum of all words in a range, which takes a plain read at memory speed. Eight independent sums keep enough
 * loads in flight. The addresses ascend, so the processor's prefetchers work well; explicit prefetches made the read
 * slower. The function is compiled for several instruction sets, because the program is built for the oldest processor,
 * whose 16-byte loads do not reach memory speed.
 */
__attribute__((target_clones("avx512f", "avx2", "default")))
static uint32_t read_range(const uint8_t *p, size_t bytes)
{
	line sums[8] = {0};
	for (size_t i = 0; i + sizeof sums <= bytes; i += sizeof sums) {
		const line *l = (const line *)(p + i);
#pragma GCC unroll 8
		for (int j = 0; j < 8; j++)
			sums[j] += l[j];
	}
	uint32_t sum = 0;
	for (int j = 0; j < 8; j++)
		for (int i = 0; i < 16; i++)
			sum += sums[j][i];
	return sum;
}

static uint32_t read_result; /* the sum is stored here so that no compiler removes the read */

static void read_layer(struct kernel_fixture *b, uint32_t layer)
{
	size_t bytes = b->layer_bytes, part = bytes / (size_t)b->threads & ~(size_t)511;
	const uint8_t *p = b->sh.pool + layer * bytes;
	uint32_t sum = 0;
	if (b->o->device) {
		fixture_need(b, b->o->device->read(p, bytes, b->work.stream));
		return;
	}
	if (b->threads == 1) {
		__atomic_store_n(&read_result, read_range(p, bytes), __ATOMIC_RELAXED);
		return;
	}
#pragma omp parallel for num_threads(b->threads) reduction(+ : sum)
	for (int t = 0; t < b->threads; t++)
		sum += read_range(p + t * part, part);
	__atomic_store_n(&read_result, sum, __ATOMIC_RELAXED);
}

static void dense(struct kernel_fixture *b, uint32_t layer)
{
	b->sh.layer = layer;
	b->o->kern->decode_dense(&b->sh, &b->step, b->q, b->out, NULL, &b->work);
}

/* Dense decode attention of several rows of each sequence. */
static void rows(struct kernel_fixture *b, uint32_t layer)
{
	b->sh.layer = layer;
	b->o->kern->decode_dense(&b->sh, &b->rows, b->q, b->out, NULL, &b->work);
}

/* Dense decode attention that also computes scores of pages, as in a layer that selects pages for other layers. */
static void with_scores(struct kernel_fixture *b, uint32_t layer)
{
	struct skv_scores ev = {.rows = 1, .page = b->page_weight, .page_stride = (b->pages + 3) / 4 * 4};
	b->sh.layer = layer;
	b->o->kern->decode_dense(&b->sh, &b->step, b->q, b->out, &ev, &b->work);
}

static void and_select(struct kernel_fixture *b, uint32_t layer)
{
	struct skv_scores ev = {.rows = 1, .page = b->page_weight, .page_stride = (b->pages + 3) / 4 * 4};
	struct skv_select sel = {.budget.share = (float)b->o->budget};
	with_scores(b, layer);
	b->o->kern->select(&b->sh, &b->step, &ev, false, &sel, &b->made_pages, &b->work);
}

/* Returns buffers for scores of tokens for each kv head. */
static struct skv_scores token_scores(const struct kernel_fixture *b)
{
	return (struct skv_scores){.rows = b->sh.n_kv_heads, .token = b->token_weight,
	                             .token_stride = b->pages * SKV_PAGE_TOKENS};
}

static void and_select_tokens(struct kernel_fixture *b, uint32_t layer)
{
	struct skv_scores ev = token_scores(b);
	struct skv_select sel = {.budget.share = (float)b->o->budget};
	b->sh.layer = layer;
	b->o->kern->decode_dense(&b->sh, &b->step, b->q, b->out, &ev, &b->work);
	b->o->kern->select(&b->sh, &b->step, &ev, true, &sel, &b->made_tokens, &b->work);
}

/*
 * The attention of a layer that selects tokens and attends to its own selection: it reads all keys, and the values of
 * the selected tokens.
 */
static void anchor(struct kernel_fixture *b, uint32_t layer)
{
	struct skv_scores ev = token_scores(b);
	struct skv_select sel = {.budget.share = (float)b->o->budget};
	b->sh.layer = layer;
	b->o->kern->decode_topk(&b->sh, &b->step, b->q, b->out, &ev, &sel, &b->made_tokens, &b->work);
}

/*
 * Scores pages by their bounds, as in a layer that selects pages by bounds. The content of the bounds does not affect
 * the time, so the layer's first pages are used as if they contained bounds.
 */
static void bounds(struct kernel_fixture *b, uint32_t layer)
{
	struct skv_scores ev = {.rows = 1, .page = b->page_weight, .page_stride = (b->pages + 3) / 4 * 4};
	b->sh.layer = b->sh.state = layer;
	b->o->kern->score_pages(&b->sh, &b->step, b->q, SKV_REDUCE_MAX, &ev, &b->work);
}

static void window(struct kernel_fixture *b, uint32_t layer)
{
	struct skv_window w = {.sinks = 16, .budget.share = (float)b->o->budget};
	b->sh.layer = layer;
	b->o->kern->decode_window(&b->sh, &b->step, b->q, b->out, &w, &b->work);
}

static void pages_seq(struct kernel_fixture *b, uint32_t layer)
{
	b->sh.layer = layer;
	b->o->kern->decode_pages(&b->sh, &b->step, b->q, b->out, &b->page_list[0], &b->work);
}

static void pages_head(struct kernel_fixture *b, uint32_t layer)
{
	b->sh.layer = layer;
	b->o->kern->decode_pages(&b->sh, &b->step, b->q, b->out, &b->page_list[1], &b->work);
}

static void tokens_seq(struct kernel_fixture *b, uint32_t layer)
{
	b->sh.layer = layer;
	b->o->kern->decode_tokens(&b->sh, &b->step, b->q, b->out, &b->token_list[0], &b->work);
}

static void tokens_head(struct kernel_fixture *b, uint32_t layer)
{
	b->sh.layer = layer;
	b->o->kern->decode_tokens(&b->sh, &b->step, b->q, b->out, &b->token_list[1], &b->work);
}

static void use_sketches(struct kernel_fixture *b, uint32_t layer)
{
	b->sh.layer = layer;
	b->sh.state = b->layers + layer;
}

static struct skv_shape without_sketches(const struct kernel_fixture *b)
{
	struct skv_shape sh = b->sh;
	sh.sketch_bits = 0;
	return sh;
}

/* Appends K and V of one token to each sequence. Their values do not affect the time, so q is used as K and V. */
static void append(struct kernel_fixture *b, uint32_t layer)
{
	struct skv_shape sh = without_sketches(b);
	sh.layer = layer;
	b->o->kern->append(&sh, &b->step, NULL, b->q, b->q, &b->work);
}

static void append_sketch(struct kernel_fixture *b, uint32_t layer)
{
	use_sketches(b, layer);
	b->o->kern->append(&b->sh, &b->step, NULL, b->q, b->q, &b->work);
}

/* Scores all tokens by the sketches of their keys, as in a layer that selects tokens by sketches. */
static void scan(struct kernel_fixture *b, uint32_t layer)
{
	struct skv_scores ev = token_scores(b);
	use_sketches(b, layer);
	b->o->kern->score_sketches(&b->sh, &b->step, b->q, &ev, &b->work);
}

static void scan_select(struct kernel_fixture *b, uint32_t layer)
{
	struct skv_scores ev = token_scores(b);
	struct skv_select sel = {.budget.share = (float)b->o->budget, .recent = 32};
	if (b->o->kern->select_sketches) {
		use_sketches(b, layer);
		b->o->kern->select_sketches(&b->sh, &b->step, b->q, ev.sum, &sel, &b->made_tokens, &b->work);
		return;
	}
	scan(b, layer);
	b->o->kern->select(&b->sh, &b->step, &ev, true, &sel, &b->made_tokens, &b->work);
}

/* All that a layer does in a step under the policy sketch. */
static void sketch(struct kernel_fixture *b, uint32_t layer)
{
	append_sketch(b, layer);
	scan_select(b, layer);
	b->o->kern->decode_tokens(&b->sh, &b->step, b->q, b->out, &b->made_tokens, &b->work);
}

/*
 * Which bytes count for a kernel's GB/s. ALL: K and V of all tokens. BUDGET: K and V of the budget's tokens. BOUNDS:
 * bounds of all pages. ONE: K and V of one token. ONE_SKETCHED: K, V and sketch of one token. SKETCHES: sketches of all
 * tokens. SKETCH: what SKETCHES and BUDGET count.
 */
enum touched { ALL, BUDGET, BOUNDS, ONE, ONE_SKETCHED, SKETCHES, SKETCH };
static const struct {
	const char *name;
	void (*layer)(struct kernel_fixture *, uint32_t);
	enum touched touched;
} kinds[] = {
	{"read", read_layer, ALL},         {"dense", dense, ALL},      {"rows", rows, ALL},
	{"scores", with_scores, ALL},       {"+ select", and_select, ALL},
	{"+ tokens", and_select_tokens, ALL}, {"anchor", anchor, ALL},
	{"bounds", bounds, BOUNDS},        {"window", window, BUDGET},
	{"pages/seq", pages_seq, BUDGET},  {"pages/head", pages_head, BUDGET},
	{"tokens/seq", tokens_seq, BUDGET}, {"tokens/head", tokens_head, BUDGET},
	{"append", append, ONE},           {"append+code", append_sketch, ONE_SKETCHED},
	{"scan", scan, SKETCHES},    {"scan+select", scan_select, SKETCHES},
	{"sketch", sketch, SKETCH},
};
#define N_KINDS (sizeof kinds / sizeof *kinds)
enum { READ, DENSE };

/* Returns whether a kernel is measured. READ and DENSE always are, because the others are compared with them. */
static bool can(const struct kernel_fixture *b, const struct options *o, size_t kind)
{
	bool wanted = o->n_only == 0 || kind <= DENSE;

	for (int i = 0; i < o->n_only; i++)
		wanted |= o->only[i] == kind;
	if (kinds[kind].layer == rows && !o->fixture.rows)
		return false;
	if (o->fixture.rest && kinds[kind].touched == BUDGET) /* BUDGET is computed for sequences of equal length */
		return false;
	return wanted && (b->sketches || kinds[kind].touched < ONE_SKETCHED);
}

#define PASS_LAYERS 8u

/*
 * Returns the number of layers in a pass. On a device it is at least PASS_LAYERS, as in peers.py, so that the launch of
 * the recording takes a negligible part of the time.
 */
static uint32_t pass_layers(const struct kernel_fixture *b)
{
	return b->o->device ? (PASS_LAYERS + b->layers - 1) / b->layers * b->layers : b->layers;
}

/* Runs a kernel in all layers, one after the other. */
static void pass(struct kernel_fixture *b, size_t kind)
{
	for (uint32_t n = 0; n < pass_layers(b); n++)
		kinds[kind].layer(b, n % b->layers);
}

static const struct column columns[] = {
	{"kernel", -1},  {"isa", -1},      {"heads", -1},      {"dim", 0},   {"dtype", -1},
	{"threads", 0},  {"tokens", 0},    {"batch", 0},       {"ms", 5},    {"gb_per_s", 2},
	{"of_read", 3},  {"of_dense", 3},  {"gflop_per_s", 1},
};

static void report(struct report *r, const struct kernel_fixture *b, const char *kind, uint32_t tokens, double ms,
                   double gbps, double of_read, double of_dense, double gflops)
{
	char heads[32];
	snprintf(heads, sizeof heads, "%u/%u", b->sh.n_heads, b->sh.n_kv_heads);
	report_row(r, kind, b->o->kern->name, heads, (double)b->sh.head_dim, eng_cli_dtypes[b->sh.dtype],
	           (double)b->threads, (double)tokens, (double)b->o->batch, ms, gbps, of_read, of_dense,
	           gflops);
}

static void measure_decode(struct report *r, struct kernel_fixture *b, const struct options *o)
{
	static double t[N_KINDS][MAX_REPEAT];
	void *graph[N_KINDS] = {0};
	double ms[N_KINDS], bytes = (double)b->layer_bytes;
	const double sketches = (skv_sketch_row(&b->sh) + 2.0) / ((double)b->sh.page_bytes / b->sh.n_kv_heads / SKV_PAGE_TOKENS);
	const double share[] = {[ALL] = 1, [BUDGET] = b->o->budget, [BOUNDS] = 1.0 / SKV_PAGE_TOKENS, [ONE] = 1.0 / b->tokens,
	                        [ONE_SKETCHED] = (1 + sketches) / b->tokens, [SKETCHES] = sketches, [SKETCH] = sketches + b->o->budget};

	/*
	 * Pass -1 is not counted, because it wakes up threads and touches scratch memory first. On a device, passes 0
	 * and later are replays.
	 */
	for (long rep = -1; rep < o->repeat; rep++)
		for (size_t k = 0; k < N_KINDS; k++) {
			if (!can(b, o, k))
				continue;
			fixture_start(b);
			if (graph[k])
				fixture_play(b, graph[k]);
			else
				pass(b, k);
			double ms_of_pass = fixture_stop(b);
			if (rep >= 0)
				t[k][rep] = ms_of_pass / pass_layers(b);
			else
				graph[k] = fixture_record(b, pass, k);
		}
	for (size_t k = 0; k < N_KINDS; k++) {
		ms[k] = bench_median(t[k], (size_t)o->repeat);
		fixture_forget(b, graph[k]);
	}
	for (size_t k = 0; k < N_KINDS; k++) {
		if (!can(b, o, k))
			continue;
		double gbps = bytes * share[kinds[k].touched] / ms[k] / 1e6;
		report(r, b, kinds[k].name, b->tokens, ms[k], gbps, gbps / (bytes / ms[READ] / 1e6),
		       k == READ ? NAN : ms[k] / ms[DENSE], NAN);
	}
}

/* Measures a matrix product of OpenBLAS, with as many threads as the kernels use. */
static void measure_blas(struct report *r, const struct kernel_fixture *b, long repeat)
{
	static double t[MAX_REPEAT];
	const int m = 1024;
	float *x = calloc((size_t)3 * m * m, sizeof *x);

	openblas_set_num_threads(b->threads);
	for (long rep = -1; x && rep < repeat; rep++) {
		double begin = bench_now();
		cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, m, m, 1, x, m, x + m * m, m, 0,
		            x + 2 * m * m, m);
		if (rep >= 0)
			t[rep] = (bench_now() - begin) * 1e3;
	}
	double ms = bench_median(t, (size_t)repeat);
	report(r, b, "sgemm", (uint32_t)m, ms, NAN, NAN, NAN, 2.0 * m * m * m / ms / 1e6);
	free(x);
}

static void fill(struct kernel_fixture *b, const struct skv_batch *prompt, const float *q, float *out)
{
	const struct skv_shape sh = without_sketches(b);
	(void)out;
	b->o->kern->append(&sh, prompt, NULL, q, q, &b->work);
}

static void fill_code(struct kernel_fixture *b, const struct skv_batch *prompt, const float *q, float *out)
{
	(void)out;
	b->o->kern->append(&b->sh, prompt, NULL, q, q, &b->work);
}

static void prefill(struct kernel_fixture *b, const struct skv_batch *prompt, const float *q, float *out)
{
	b->o->kern->prefill_dense(&b->sh, prompt, q, out, &b->work);
}

/*
 * Measures a prompt in one call of each kernel: storing K and V in their pages, storing them with sketches, and
 * attention.
 */
static void measure_prefill(struct report *r, struct kernel_fixture *b, long repeat)
{
	static double t[MAX_REPEAT];
	const uint32_t n = b->tokens, heads = b->sh.n_heads, dim = b->sh.head_dim;
	struct skv_batch prompt = fixture_prompt(b, 0);
	uint64_t rng = 2;
	float *q = fixture_floats(b, &rng, (size_t)n * heads * dim);
	float *out = fixture_floats(b, &rng, (size_t)n * heads * dim);
	/* products q·k and p·v of each row with all tokens up to it */
	const double flop = 4.0 * heads * dim * ((double)n * (n + 1) / 2);
	const struct {
		const char *name;
		void (*layer)(struct kernel_fixture *, const struct skv_batch *, const float *q, float *out);
		double flop;
	} parts[] = {{"fill", fill, NAN}, {"fill+code", fill_code, NAN}, {"prefill", prefill, flop}};

	for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
		if (parts[p].layer == fill_code && !b->sketches)
			continue;
		for (long rep = -1; rep < repeat; rep++) {
			b->sh.layer = (uint32_t)(rep + 1) % b->layers;
			b->sh.state = b->layers + b->sh.layer;
			fixture_start(b);
			parts[p].layer(b, &prompt, q, out);
			double pass = fixture_stop(b);
			if (rep >= 0)
				t[rep] = pass;
		}
		double ms = bench_median(t, (size_t)repeat);
		report(r, b, parts[p].name, n, ms, NAN, NAN, NAN, parts[p].flop / ms / 1e6);
	}
	fixture_free(b, (void *)prompt.seq);
	fixture_free(b, q);
	fixture_free(b, out);
}

/* ---- options --------------------------------------------------------------------------------- */

static struct skv_shape shape_of(const struct options *o, int i, uint32_t dtype)
{
	return fixture_shape((uint32_t)o->heads[i], (uint32_t)o->kv_heads[i], (uint32_t)o->dims[i], dtype);
}

static int check_shapes(const struct options *o, int n_dims)
{
	if (o->n_shapes != n_dims) {
		fprintf(stderr,
		        "sparsekv-bench: --heads names %d shapes and --dim %d: expected one dimension for"
		        " each\n", o->n_shapes, n_dims);
		return -1;
	}
	for (int i = 0; i < n_dims * o->n_dtypes; i++) {
		struct skv_shape sh = shape_of(o, i / o->n_dtypes, o->dtypes[i % o->n_dtypes]);
		const char *why = o->fixture.kern->unsupported(&sh);
		if (why) {
			fprintf(stderr, "sparsekv-bench: --heads %u/%u --dim %u --dtype %s: %s\n", sh.n_heads,
			        sh.n_kv_heads, sh.head_dim, eng_cli_dtypes[sh.dtype], why);
			return -1;
		}
	}
	return 0;
}

static const char about[] =
	"Times the attention kernels of the host, or of a device: decode over all tokens, of one row of each\n"
	"sequence, and of several with --rows, with attention\n"
	"scores and a selection by them (+ select: pages; + tokens: tokens for each kv head), over the keys\n"
	"alone, with such a selection and the values of what it selects (anchor), scores of pages by bounds,\n"
	"and over a budget as a window, as pages and as tokens (one list a sequence, one a kv head), next to a\n"
	"plain streaming read of the same memory; a step's K and V into their page (append), with their sketches\n"
	"(append+code), scores of tokens by sketches (scan), with a selection by them (scan+select), and all of a\n"
	"layer under the policy sketch (sketch); a prompt's K and V into their pages (fill), with sketches\n"
	"(fill+code), and prefill, on the host next to OpenBLAS.";

/* Sets defaults, chooses the kernels, and checks that the options fit together. */
static int complete(struct options *o, uint32_t device, const char *isa, int n_dims)
{
	if (isa)
		o->fixture.kern = skv_kernels_host(isa);
	if (device) {
		o->threads[0] = o->n_threads = 1;
		if (fixture_enter(&o->fixture, device))
			return -1;
	}
	if (!o->fixture.kern) {
		fputs("sparsekv-bench: --isa or SPARSEKV_ISA: expected avx512, avx2 or generic, and a"
		      " processor that has it\n", stderr);
		return -1;
	}
	for (int n = 0; n < o->n_tokens; n++)
		if (o->fixture.rest > o->tokens[n]) {
			fprintf(stderr, "sparsekv-bench: --rest %ld: expected at most --tokens, %ld\n", o->fixture.rest, o->tokens[n]);
			return -1;
		}
	if (!o->n_dtypes) {
		o->dtypes[0] = device ? SKV_F16 : SKV_F32;
		o->dtypes[1] = SKV_BF16;
		o->n_dtypes = 2;
	}
	return check_shapes(o, n_dims);
}

/* Returns 0, or -1 after an error was reported. */
static int parse(struct options *o, int argc, char **argv)
{
	uint32_t device = SKV_DEVICE_HOST;
	const char *isa = NULL;
	int n_dims = 2, e;
	const char *kind_names[N_KINDS + 1] = {0};
	const struct eng_option table[] = {
		ENG_COUNTS("threads", "LIST", o->threads, &o->n_threads, 1, UINT32_MAX, "OpenMP threads (1,2)"),
		ENG_COUNTS("tokens", "LIST", o->tokens, &o->n_tokens, 64, UINT32_MAX, "length of the sequences (16384)"),
		BENCH_SHAPES(o->heads, o->kv_heads, &o->n_shapes, "q heads/kv heads (8/2,32/8)"),
		ENG_COUNTS("dim", "LIST", o->dims, &n_dims, 1, UINT32_MAX, "head dimension, one for each of --heads (64,128)"),
		BENCH_DTYPES(o->dtypes, &o->n_dtypes, "fp32, fp16, bf16, fp8 (fp32,bf16; of a device fp16,bf16)"),
		ENG_COUNT("batch", &o->fixture.batch, 1, 4096, "sequences in a step (1)"),
		ENG_COUNT("rest", &o->fixture.rest, 1, SKV_MAX_TOKENS, "length of all sequences but the first (as long)"),
		ENG_COUNT("rows", &o->fixture.rows, 2, 16, "of each sequence, that decode at once (none)"),
		BENCH_SHARE("budget", &o->fixture.budget, "share of the tokens that sparse layers attend to (0.1)"),
		ENG_COUNT("bits", &o->fixture.sketch_bits, 1, 4, "of an element of a sketch (2)"),
		ENG_COUNT("memory", &o->fixture.memory, 1, 1 << 20, "MiB to go through, at least (512)"),
		ENG_COUNT("prefill", &o->prefill, 0, SKV_MAX_TOKENS, "length of the prompt, 0 for none (4096)"),
		ENG_COUNT("repeat", &o->repeat, 1, MAX_REPEAT, "passes, of which the median counts (9)"),
		ENG_NAMES("only", o->only, &o->n_only, kind_names, "which kernels of decode, beside read and dense (all)"),
		ENG_TEXT("isa", "NAME", &isa, "avx512, avx2 or generic (the best that this processor has)"),
		ENG_DEVICE(&device, "on that device instead; --threads and --isa have no meaning there"),
		BENCH_CSV(&o->csv),
	};
	const struct bench_command command = {"attention", NULL, about, table, sizeof table / sizeof *table};

	*o = (struct options){
		.threads = {1, 2}, .n_threads = 2, .tokens = {16384}, .n_tokens = 1, .heads = {8, 32},
		.kv_heads = {2, 8}, .dims = {64, 128}, .n_shapes = 2,
		.repeat = 9, .prefill = 4096,
		.fixture = {.batch = 1, .memory = 512, .budget = 0.1, .sketch_bits = 2, .kern = skv_kernels_host(NULL)},
	};
	for (size_t k = 0; k < N_KINDS; k++)
		kind_names[k] = kinds[k].name;
	e = bench_options(&command, argc, argv);
	return e ? e : complete(o, device, isa, n_dims);
}

static int measure(struct report *r, const struct options *o, struct skv_shape sh, int threads)
{
	struct kernel_fixture fixture;

	for (int n = 0; n < o->n_tokens; n++) {
		if (fixture_init(&fixture, &o->fixture, sh, (uint32_t)o->tokens[n], threads))
			return -1;
		measure_decode(r, &fixture, o);
		fixture_deinit(&fixture);
	}
	if (!o->prefill)
		return 0;
	if (fixture_init(&fixture, &o->fixture, sh, (uint32_t)o->prefill, threads))
		return -1;
	if (!o->fixture.device)
		measure_blas(r, &fixture, o->repeat);
	measure_prefill(r, &fixture, o->repeat);
	fixture_deinit(&fixture);
	return 0;
}

static int measure_all(struct report *r, const void *options)
{
	const struct options *o = options;

	for (int s = 0; s < o->n_shapes; s++)
		for (int d = 0; d < o->n_dtypes; d++)
			for (int t = 0; t < o->n_threads; t++)
				if (measure(r, o, shape_of(o, s, o->dtypes[d]), (int)o->threads[t]))
					return -1;
	return 0;
}

int bench_attention(int argc, char **argv)
{
	struct options o;
	int e = parse(&o, argc, argv);

	return bench_report(e, measure_all, &o, columns, sizeof columns / sizeof *columns, o.csv);
}
