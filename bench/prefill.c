/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/prefill.c - sparsekv-bench prefill: measures how fast one layer reads a prompt by dense attention and by sparse
 * methods.
 *
 * One layer reads a prompt by every requested method. The rows also attend to a prefix, which is not read again.
 * Computing the lists of what each tile attends to, and saving queries for it, is timed separately from attention. K
 * and V are in the pool before the measurement, because storing them takes the same time for all methods.
 *
 * TFLOP/s counts the products q·k and p·v of all pairs of a row and a token that it attends to. A dense row that
 * corrects other rows attends a second time, to the tokens that sparse rows see; this second time is not counted.
 * `speedup` is relative to dense attention in the same run.
 *
 * Kascade has different kinds of layers, each with a row of the table: `first` selects tokens but attends to all,
 * `anchor` selects tokens and attends to them, `reuse` attends to another layer's selection. The row `mean` is the mean
 * over the layers of a model with 32 layers, five of which select.
 */
#include "bench/bench.h"
#include "bench/prompt.h"
#include <math.h>
#include <stdlib.h>

#define MAX_REPEAT 101
#define LISTED 16384u    /* default rows of a call for methods that compute lists */
#define LONG_MS 1000     /* a pass that takes longer than this is not a warm-up pass: it counts */
#define ENOUGH_MS 4000   /* no further passes begin after this time */
#define LAYERS 32
#define SCORING 5        /* number of layers that select tokens */

struct options {
	long tokens[BENCH_LIST_MAX], prefixes[BENCH_LIST_MAX];
	uint32_t dtypes[BENCH_LIST_MAX], methods[2 * BENCH_LIST_MAX];
	int n_tokens, n_prefixes, n_dtypes, n_methods;
	long dim, chunk, gamma, repeat;
	uint32_t heads, kv_heads;
	const char *csv;
	struct fixture_options fixture;
};

/* A prompt, its report, and the figures of dense attention. */
struct setup {
	struct prompt prompt;
	struct report *report;
	const struct options *o;
	double dense, pairs; /* of dense attention: milliseconds; number of (row, token) pairs */
};

/* A method of reading the prompt, with its parameters, chunks and lists. */
struct way {
	const char *name;
	struct skv_prefill plan;
	struct skv_sparse sp;
	uint32_t chunk, n;              /* rows of a call; number of calls */
	/* [n]: a sequence for each call, in the kernels' memory; the same in host memory */
	struct skv_kseq *seq, *of_host;
	struct skv_tile_lists lists, extra;
	double pairs;
};

static const char *const names[] = {
	"dense", "streaming", "streaming+delta", "streaming+recompute", "hip", "hip+delta", "hip+recompute", "minference",
	"minference+delta", "minference+recompute", "kascade", "kascade+delta", "kascade+recompute",
	NULL,
};

static const struct column columns[] = {
	{"method", -22}, {"isa", -1},  {"heads", -1},   {"dim", 0},         {"dtype", -1},
	{"tokens", 0},   {"prefix", 0}, {"chunk", 0},   {"lists_ms", 3},    {"ms", 3},
	{"seen", 4},     {"tflop_per_s", 3}, {"speedup", 2},
};

/* ---- methods --------------------------------------------------------------------------------- */

static struct skv_tile_lists tiles_of(struct setup *y, const struct way *w, uint32_t rows, uint32_t unit,
                                      uint32_t stride)
{
	struct skv_tile_lists t = {.rows = rows, .tiles = skv_max_tiles(w->chunk, w->sp.tile), .stride = stride,
	                           .unit = unit};
	const size_t lists = (size_t)t.tiles * rows;

	t.ids = fixture_room(&y->prompt.fixture, lists * stride * sizeof *t.ids);
	t.count = fixture_room(&y->prompt.fixture, lists * sizeof *t.count);
	return t;
}

/* Sets the kernels' parameters from the method's plan. */
static void way_plan(struct setup *y, struct way *w)
{
	const struct skv_prefill *p = &w->plan;
	const struct skv_shape *sh = &y->prompt.fixture.sh;
	const bool listed = p->how > SKV_PREFILL_STREAMING;

	w->sp = (struct skv_sparse){.tile = 64, .sinks = p->sinks, .window = p->window, .by_tile = listed,
	                            .gamma = p->gamma,
	                            .delta = p->correct == SKV_CORRECT_DELTA, .segment = p->segment, .n_saved_queries = listed};
	if (p->how == SKV_PREFILL_HIP) {
		w->lists = tiles_of(y, w, sh->n_heads, 8, p->keep[SKV_HIP_STAGES - 1] / 8);
	} else if (p->how == SKV_PREFILL_MINFERENCE) {
		w->sp.n_saved_queries = SKV_MINFERENCE_ROWS;
		w->lists = tiles_of(y, w, sh->n_heads, 64, y->prompt.end / 64 + 1);
		w->extra = tiles_of(y, w, sh->n_heads, 1, p->vertical);
	} else if (p->how == SKV_PREFILL_KASCADE) {
		w->sp.tile = skv_kascade_tile(sh->n_heads / sh->n_kv_heads);
		w->lists = tiles_of(y, w, sh->n_kv_heads, 1, skv_budget_of(p->top, y->prompt.end, p->top_floor));
	}
	w->sp.lists = w->lists.ids ? &w->lists : NULL;
	w->sp.extra = w->extra.ids ? &w->extra : NULL;
}

static void way_work(struct setup *y, const struct way *w)
{
	const struct kernel_fixture *b = &y->prompt.fixture;
	const struct skv_kernels *kern = b->o->kern;
	const struct skv_batch bounds = {.n = 1, .max_len = y->prompt.end, .max_q = w->chunk};
	size_t bytes = kern->workspace_bytes(&b->sh, 1, w->chunk, y->prompt.end, b->threads);

	if (w->plan.how && kern->prefill_sparse_bytes(&b->sh, &bounds, &w->sp, b->threads) > bytes)
		bytes = kern->prefill_sparse_bytes(&b->sh, &bounds, &w->sp, b->threads);
	prompt_scratch(&y->prompt, bytes);
}

static void way_init(struct setup *y, struct way *w, uint32_t method)
{
	const struct skv_prefill_config config = {.method = method, .gamma = (uint32_t)y->o->gamma, .keep = 2048,
	                                          .segment = 2048, .vertical = 1000, .slash = 6096, .top.share = 0.1f};
	const uint32_t tokens = y->prompt.end - y->prompt.prefix;

	*w = (struct way){.name = names[method]};
	skv_prefill_of(&config, &w->plan);
	w->chunk = y->o->chunk ? (uint32_t)y->o->chunk : w->plan.how > SKV_PREFILL_STREAMING ? LISTED : tokens;
	w->chunk = w->chunk < tokens ? w->chunk : tokens;
	way_plan(y, w);
	w->n = prompt_cut(&y->prompt, y->prompt.prefix, y->prompt.end, w->chunk, &w->of_host, &w->seq);
	const uint32_t tail = w->plan.gamma ? y->prompt.end % w->plan.gamma + w->plan.tail : 0;
	for (uint32_t i = 0; i < w->n && tail; i++)
		w->of_host[i].dense_from = tail < y->prompt.end ? y->prompt.end - tail : 0;
	prompt_copy(&y->prompt.fixture, w->seq, w->of_host, w->n * sizeof *w->seq);
	way_work(y, w);
}

static void way_deinit(struct setup *y, struct way *w)
{
	struct skv_tile_lists *const tiles[] = {&w->lists, &w->extra};

	for (int i = 0; i < 2; i++)
		if (tiles[i]->ids) {
			fixture_free(&y->prompt.fixture, tiles[i]->ids);
			fixture_free(&y->prompt.fixture, tiles[i]->count);
		}
	free(w->of_host);
	fixture_free(&y->prompt.fixture, w->seq);
}

/*
 * Counts the tokens in the lists of each tile of a call, summed over all heads. tokens[i] gets the sum of tile i.
 */
static void count_lists(struct setup *y, const struct skv_tile_lists *t, uint32_t tiles, double *tokens)
{
	uint32_t *count = fixture_get((size_t)tiles * t->rows * sizeof *count);

	prompt_copy(&y->prompt.fixture, count, t->count, (size_t)tiles * t->rows * sizeof *count);
	for (uint32_t i = 0; i < tiles * t->rows; i++)
		tokens[i / t->rows] += (double)count[i] * t->unit * y->prompt.fixture.sh.n_heads / t->rows;
	free(count);
}

/*
 * Returns the number of (row, token) pairs, over all heads, that the rows of a call attend to. The lists of the call
 * must have been computed.
 */
static double pairs_of(struct setup *y, const struct way *w, const struct skv_kseq *s)
{
	const struct skv_sparse *sp = &w->sp;
	const uint32_t first = s->len - s->n_q, heads = y->prompt.fixture.sh.n_heads, tile = first / sp->tile;
	double *listed = fixture_get(skv_max_tiles(s->n_q, sp->tile) * sizeof *listed), pairs = 0;

	if (sp->lists)
		count_lists(y, sp->lists, (s->len - 1) / sp->tile - tile + 1, listed);
	if (sp->extra)
		count_lists(y, sp->extra, (s->len - 1) / sp->tile - tile + 1, listed);
	for (uint32_t p = first; p < s->len; p++) {
		const uint32_t recent = sp->by_tile ? p - p % sp->tile : p + 1;
		const uint32_t from = recent > sp->window ? recent - sp->window : 0;
		if (!w->plan.how || skv_row_dense(s, sp, p))
			pairs += (double)heads * (p + 1);
		else
			pairs += (double)heads * (p + 1 - from + (sp->sinks < from ? sp->sinks : from)) + listed[p / sp->tile - tile];
	}
	free(listed);
	return pairs;
}

static void fill_lists(struct setup *y, const struct way *w, const struct skv_batch *step)
{
	const struct skv_kernels *kern = y->prompt.fixture.o->kern;
	const struct skv_shape *sh = &y->prompt.fixture.sh;
	const struct skv_prefill *p = &w->plan;
	const struct skv_workspace *work = &y->prompt.fixture.work;

	if (w->sp.n_saved_queries)
		kern->save_queries(sh, step, y->prompt.q, &w->sp, work);
	if (p->how == SKV_PREFILL_HIP)
		kern->hip_lists(sh, step, y->prompt.q, &w->sp, p->keep, &w->lists, work);
	else if (p->how == SKV_PREFILL_MINFERENCE)
		kern->minference_lists(sh, step, y->prompt.q, &w->sp, p->vertical, p->slash, &w->lists, &w->extra,
		                       work);
	else if (p->how == SKV_PREFILL_KASCADE)
		kern->kascade_lists(sh, step, y->prompt.q, &w->sp, p->top, p->top_floor, &w->lists, work);
}

/*
 * Reads the whole prompt once. ret_ms gets the milliseconds of computing lists and of attention. The first pass also
 * counts the pairs.
 */
static void pass(struct setup *y, struct way *w, bool first, double ret_ms[2])
{
	const struct skv_kernels *kern = y->prompt.fixture.o->kern;
	struct kernel_fixture *b = &y->prompt.fixture;

	ret_ms[0] = ret_ms[1] = 0;
	for (uint32_t i = 0; i < w->n; i++) {
		const struct skv_batch step = {.seq = &w->seq[i], .n = 1, .max_len = w->of_host[i].len,
		                               .max_q = w->chunk};
		if (w->sp.n_saved_queries) {
			fixture_start(b);
			fill_lists(y, w, &step);
			ret_ms[0] += fixture_stop(b);
		}
		fixture_start(b);
		if (w->plan.how)
			kern->prefill_sparse(&b->sh, &step, y->prompt.q, y->prompt.out, &w->sp, &b->work);
		else
			kern->prefill_dense(&b->sh, &step, y->prompt.q, y->prompt.out, &b->work);
		ret_ms[1] += fixture_stop(b);
		if (first)
			w->pairs += pairs_of(y, w, &w->of_host[i]);
	}
}

/* ---- measuring ------------------------------------------------------------------------------- */

/* Runs passes. ret_ms gets the medians of the milliseconds of computing lists and of attention. */
static void measure(struct setup *y, struct way *w, double ret_ms[2])
{
	static double lists[MAX_REPEAT + 1], attention[MAX_REPEAT + 1];
	double all = 0;
	size_t n = 0;

	for (long rep = -1; rep < y->o->repeat && all < ENOUGH_MS; rep++) {
		double ms[2];
		pass(y, w, rep < 0, ms);
		if (rep < 0 && ms[0] + ms[1] < LONG_MS)
			continue;
		all += ms[0] + ms[1];
		lists[n] = ms[0];
		attention[n++] = ms[1];
	}
	ret_ms[0] = bench_median(lists, n);
	ret_ms[1] = bench_median(attention, n);
}

/* Reports a row. `pairs` is NAN if the row is a mean over several layers. */
static void report(const struct setup *y, const struct way *w, const char *layer, double lists, double ms, double pairs)
{
	const struct kernel_fixture *b = &y->prompt.fixture;
	char heads[32], name[64];

	snprintf(heads, sizeof heads, "%u/%u", b->sh.n_heads, b->sh.n_kv_heads);
	snprintf(name, sizeof name, "%s%s%s", w->name, *layer ? " " : "", layer);
	report_row(y->report, name, b->o->kern->name, heads, (double)b->sh.head_dim, eng_cli_dtypes[b->sh.dtype],
	           (double)(y->prompt.end - y->prompt.prefix), (double)y->prompt.prefix, (double)w->chunk, lists, ms, pairs / y->pairs,
	           4.0 * b->sh.head_dim * pairs / ms / 1e9, y->dense / ms);
}

static void measure_way(struct setup *y, uint32_t method)
{
	struct way w;
	double ms[2];

	way_init(y, &w, method);
	measure(y, &w, ms);
	if (method == 0) {
		y->dense = ms[1];
		y->pairs = w.pairs;
	}
	const double first = ms[0] + y->dense, anchor = ms[0] + ms[1];
	if (w.plan.how == SKV_PREFILL_KASCADE) {
		report(y, &w, "first", ms[0], first, y->pairs);
		report(y, &w, "anchor", ms[0], anchor, w.pairs);
		report(y, &w, "reuse", NAN, ms[1], w.pairs);
		report(y, &w, "mean", ms[0] * SCORING / LAYERS,
		       (first + (SCORING - 1) * anchor + (LAYERS - SCORING) * ms[1]) / LAYERS, NAN);
	} else {
		report(y, &w, "", w.sp.n_saved_queries ? ms[0] : NAN, anchor, w.pairs);
	}
	way_deinit(y, &w);
}

/* ---- options --------------------------------------------------------------------------------- */

static const char about[] =
	"Times how one layer reads a prompt: densely, and by the methods that policies have as their parameter\n"
	"prefill, with these parameters' defaults.";

static struct skv_shape shape_of(const struct options *o, uint32_t dtype)
{
	struct skv_shape sh = fixture_shape(o->heads, o->kv_heads, (uint32_t)o->dim, dtype);

	sh.io_dtype = o->fixture.device ? dtype : SKV_F32;
	return sh;
}

/* Fills in defaults, and checks that the options fit together. */
static int complete(struct options *o)
{
	const bool device = o->fixture.device;

	if (!o->n_tokens) {
		o->tokens[0] = device ? 32768 : 4096;
		o->tokens[1] = 131072;
		o->n_tokens = device ? 2 : 1;
	}
	if (!o->heads) {
		o->heads = device ? 32 : 8;
		o->kv_heads = device ? 8 : 2;
	}
	o->dim = o->dim ? o->dim : device ? 128 : 64;
	if (!o->n_dtypes)
		o->dtypes[o->n_dtypes++] = device ? SKV_BF16 : SKV_F32;
	for (int d = 0; d < o->n_dtypes; d++) {
		struct skv_shape sh = shape_of(o, o->dtypes[d]);
		const char *why = o->fixture.kern->unsupported(&sh);
		if (!why && o->dim % 16)
			why = "the dimension must be a multiple of 16";
		if (why) {
			fprintf(stderr, "sparsekv-bench: prefill: %s\n", why);
			return -1;
		}
	}
	return 0;
}

/* Returns 0, or -1 after an error was reported. */
static int parse(struct options *o, int argc, char **argv)
{
	uint32_t device = SKV_DEVICE_HOST;
	int e;
	const struct eng_option table[] = {
		ENG_COUNTS("tokens", "LIST", o->tokens, &o->n_tokens, 1, UINT32_MAX,
		              "length of the prompt (4096; of a device 32768,131072)"),
		ENG_COUNTS("prefix", "LIST", o->prefixes, &o->n_prefixes, 0, UINT32_MAX, "tokens before it that are there already (0)"),
		ENG_NAMES("methods", o->methods, &o->n_methods, names,
		            "dense is always measured, and first\n"
		            "(streaming,streaming+recompute,streaming+delta,hip,hip+delta,minference,kascade)"),
		ENG_COUNT("chunk", &o->chunk, 0, SKV_MAX_TOKENS,
		             "rows of a call (0: all of them, but where there are lists 16384)"),
		ENG_POWER("gamma", &o->gamma, 2, 4096, "of +delta and +recompute (64)"),
		BENCH_HEADS(&o->heads, &o->kv_heads, "q heads/kv heads (8/2; of a device 32/8)"),
		ENG_COUNT("dim", &o->dim, 16, SKV_MAX_HEAD_DIM, "head dimension (64; of a device 128)"),
		BENCH_DTYPES(o->dtypes, &o->n_dtypes, "fp32, fp16, bf16 (fp32; of a device bf16)"),
		ENG_COUNT("repeat", &o->repeat, 1, MAX_REPEAT,
		             "passes, of which the median counts (5); fewer where they take seconds"),
		ENG_DEVICE(&device, "on that device instead of the host"),
		BENCH_CSV(&o->csv),
	};
	const struct bench_command command = {"prefill", NULL, about, table, sizeof table / sizeof *table};

	*o = (struct options){.n_prefixes = 1, .gamma = 64, .repeat = 5, .methods = {1, 3, 2, 4, 5, 7, 10}, .n_methods = 7,
	                      .fixture = {.kern = skv_kernels_host(NULL)}};
	e = bench_options(&command, argc, argv);
	if (e)
		return e;
	return device && fixture_enter(&o->fixture, device) ? -1 : complete(o);
}

/* Measures all methods on one prompt; dense attention is the first. */
static int measure_all(struct report *r, const struct options *o, uint32_t dtype, long tokens, long prefix)
{
	struct setup y = {.report = r, .o = o};

	if (tokens + prefix > SKV_MAX_TOKENS) {
		fprintf(stderr, "sparsekv-bench: prefill: %ld tokens and a prefix of %ld: expected up to %u\n",
		        tokens, prefix, SKV_MAX_TOKENS);
		return -1;
	}
	if (prompt_init(&y.prompt, &o->fixture, shape_of(o, dtype), (uint32_t)tokens, (uint32_t)prefix))
		return -1;
	measure_way(&y, 0);
	for (int i = 0; i < o->n_methods; i++)
		if (o->methods[i] > 0)
			measure_way(&y, o->methods[i]);
	prompt_deinit(&y.prompt);
	return 0;
}

static int measure_layers(struct report *r, const void *options)
{
	const struct options *o = options;

	for (int d = 0; d < o->n_dtypes; d++)
		for (int n = 0; n < o->n_tokens; n++)
			for (int f = 0; f < o->n_prefixes; f++)
				if (measure_all(r, o, o->dtypes[d], o->tokens[n], o->prefixes[f]))
					return -1;
	return 0;
}

int bench_prefill(int argc, char **argv)
{
	struct options o;
	int e = parse(&o, argc, argv);

	return bench_report(e, measure_layers, &o, columns, sizeof columns / sizeof *columns, o.csv);
}
