/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/attention.c - sparsekv-bench attention.
 *
 * A pool like the daemon's (a shared memfd) holds as many layers of the same batch as it takes to be
 * far larger than the caches. A measurement is one pass over all layers, so nothing is still in a
 * cache when its layer comes round again. Pages lie in random order: the worst case for the kernels,
 * while the streaming read that they are compared with reads the same bytes in the order of their
 * addresses. Kernels take turns, and of every kernel's passes the median counts.
 *
 * GB/s counts the K and V bytes of the tokens that a kernel was asked to look at, once each.
 */
#include "bench/bench.h"
#include "kernels/kernels.h"
#include <cblas.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_REPEAT 101

struct options {
	long threads[BENCH_LIST_MAX], tokens[BENCH_LIST_MAX], dims[BENCH_LIST_MAX];
	long heads[BENCH_LIST_MAX], kv_heads[BENCH_LIST_MAX];
	uint32_t dtypes[BENCH_LIST_MAX];
	int n_threads, n_tokens, n_shapes, n_dtypes;
	long batch, memory, repeat, prefill;
	double budget;
	const char *csv;
	const struct skv_kernels *kern;
};

/* The memory of one configuration: `layers` layers of `batch` sequences of `tokens` tokens. */
struct bed {
	const struct options *o;
	struct skv_shape sh;
	uint32_t tokens, layers, pages; /* pages of one sequence in one layer */
	int threads;
	size_t pool_bytes;
	struct skv_kseq *seq; /* [batch] */
	struct skv_batch step; /* all of them, one row each */
	skv_pte *table;       /* [layer][batch][pages] */
	float *q, *out;       /* [batch][n_heads][head_dim] */
	struct skv_list page_list[2], token_list[2]; /* a sequence; a kv head */
	float *token_weight, *page_weight;
	struct skv_work work;
};

static const char *dtype_name(uint32_t dtype)
{
	return dtype == SKV_F32 ? "fp32" : dtype == SKV_F16 ? "fp16" : "bf16";
}

static void *get(size_t bytes)
{
	void *p = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
	if (!p) {
		fprintf(stderr, "sparsekv-bench: no memory for %zu bytes\n", bytes);
		exit(1);
	}
	memset(p, 0, bytes);
	return p;
}

/* ---- set up ---------------------------------------------------------------------------------- */

/* `keep` of n units, at random, ascending. */
static uint32_t choose(uint64_t *rng, uint32_t n, uint32_t keep, uint32_t *ret_ids)
{
	uint32_t m = 0;
	for (uint32_t i = 0; i < n; i++)
		if (bench_random(rng) % (n - i) < keep - m)
			ret_ids[m++] = i;
	return m;
}

static void list_init(struct bed *b, uint64_t *rng, struct skv_list *l, uint32_t rows, uint32_t units)
{
	uint32_t keep = (uint32_t)(units * b->o->budget);
	*l = (struct skv_list){.rows = rows, .stride = units, .most = keep};
	l->ids = get((size_t)b->o->batch * rows * units * sizeof(uint32_t));
	l->count = get((size_t)b->o->batch * rows * sizeof(uint32_t));
	for (uint32_t r = 0; r < b->o->batch * rows; r++)
		l->count[r] = choose(rng, units, keep, l->ids + (size_t)r * units);
}

static void list_deinit(struct skv_list *l)
{
	free(l->ids);
	free(l->count);
}

/* Sequence i as one that is all prompt. */
static struct skv_kseq prompt_of(const struct bed *b, uint32_t i)
{
	struct skv_kseq s = b->seq[i];
	s.n_q = s.len;
	s.row = 0;
	return s;
}

/* K and V of a pool: small numbers, the same in every layer. */
static void fill_pool(struct bed *b, uint64_t *rng)
{
	const uint32_t rows = b->tokens, width = b->sh.n_kv_heads * b->sh.head_dim;
	float *k = get((size_t)rows * width * sizeof *k);
	for (size_t i = 0; i < (size_t)rows * width; i++)
		k[i] = (float)((double)(bench_random(rng) >> 40) * 0x1p-23 - 1);
	for (b->sh.layer = 0; b->sh.layer < b->layers; b->sh.layer++)
		for (uint32_t i = 0; i < b->o->batch; i++) {
			struct skv_kseq s = prompt_of(b, i);
			b->o->kern->append(&b->sh, &(struct skv_batch){&s, 1, rows, rows}, k, k, &b->work);
		}
	free(k);
}

static int map_pool(struct bed *b)
{
	int fd = memfd_create("sparsekv-bench", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)b->pool_bytes) < 0)
		goto fail;
	b->sh.pool = mmap(NULL, b->pool_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (b->sh.pool == MAP_FAILED)
		goto fail;
	close(fd);
	return 0;
fail:
	fprintf(stderr, "sparsekv-bench: no pool of %zu bytes: %s\n", b->pool_bytes, strerror(errno));
	if (fd >= 0)
		close(fd);
	return -1;
}

static struct skv_shape shape_of(const struct options *o, int i, uint32_t dtype)
{
	struct skv_shape sh = {.n_heads = (uint32_t)o->heads[i], .n_kv_heads = (uint32_t)o->kv_heads[i],
	                       .head_dim = (uint32_t)o->dims[i], .dtype = dtype, .io_dtype = SKV_F32};
	sh.scale = 1 / sqrtf((float)sh.head_dim);
	sh.page_bytes = (size_t)2 * sh.n_kv_heads * SKV_PAGE_TOKENS * sh.head_dim * skv_dtype_bytes(dtype);
	return sh;
}

static int bed_init(struct bed *b, const struct options *o, int shape, uint32_t dtype, uint32_t tokens,
                    int threads)
{
	uint64_t rng = 1;
	*b = (struct bed){.o = o, .sh = shape_of(o, shape, dtype), .tokens = tokens, .threads = threads};
	b->pages = skv_pages_of(tokens);

	const uint32_t batch = (uint32_t)o->batch;
	size_t layer = (size_t)batch * b->pages * b->sh.page_bytes, want = (size_t)o->memory << 20;
	b->layers = (uint32_t)((want + layer - 1) / layer);
	b->pool_bytes = b->layers * layer;
	if (map_pool(b))
		return -1;

	const uint32_t n = b->layers * batch * b->pages;
	b->table = get(n * sizeof *b->table);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t j = (uint32_t)(bench_random(&rng) % (i + 1));
		b->table[i] = b->table[j];
		b->table[j] = skv_pte_make(SKV_PTE_FULL, i);
	}
	b->seq = get(batch * sizeof *b->seq);
	for (uint32_t i = 0; i < batch; i++)
		b->seq[i] = (struct skv_kseq){.table = b->table + (size_t)i * b->pages,
		                              .layer_stride = batch * b->pages, .len = tokens,
		                              .n_q = 1, .row = i};
	b->step = (struct skv_batch){.seq = b->seq, .n = batch, .max_len = tokens, .max_q = 1};

	size_t floats = (size_t)batch * b->sh.n_heads * b->sh.head_dim;
	b->q = get(floats * sizeof *b->q);
	b->out = get(floats * sizeof *b->out);
	for (size_t i = 0; i < floats; i++)
		b->q[i] = (float)((double)(bench_random(&rng) >> 40) * 0x1p-23 - 1);
	for (int i = 0; i < 2; i++) {
		list_init(b, &rng, &b->page_list[i], i ? b->sh.n_kv_heads : 1, b->pages);
		list_init(b, &rng, &b->token_list[i], i ? b->sh.n_kv_heads : 1, tokens);
	}
	b->token_weight = get((size_t)batch * b->pages * SKV_PAGE_TOKENS * sizeof(float));
	b->page_weight = get((size_t)batch * b->pages * sizeof(float));
	b->work.threads = threads;
	b->work.bytes = o->kern->work_bytes(&b->sh, batch, tokens, tokens, threads);
	b->work.mem = get(b->work.bytes);
	fill_pool(b, &rng);
	return 0;
}

static void bed_deinit(struct bed *b)
{
	munmap(b->sh.pool, b->pool_bytes);
	for (int i = 0; i < 2; i++) {
		list_deinit(&b->page_list[i]);
		list_deinit(&b->token_list[i]);
	}
	free(b->table);
	free(b->seq);
	free(b->q);
	free(b->out);
	free(b->token_weight);
	free(b->page_weight);
	free(b->work.mem);
}

/* ---- what is measured ------------------------------------------------------------------------ */

typedef uint32_t line __attribute__((vector_size(64)));

/*
 * The sum of all words: a plain read at the speed of the memory. Eight independent sums keep enough
 * loads in flight; the addresses ascend, so the processor's own prefetchers do the rest (asking for
 * lines by hand made it slower). Cloned, because the program is built for the oldest processor and
 * 16-byte loads alone do not reach the memory's speed.
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

static uint32_t read_result; /* stored to, so that no compiler leaves the read out */

static void read_layer(struct bed *b, uint32_t layer)
{
	size_t bytes = b->pool_bytes / b->layers, part = bytes / (size_t)b->threads & ~(size_t)511;
	const uint8_t *p = b->sh.pool + layer * bytes;
	uint32_t sum = 0;
	if (b->threads == 1) {
		__atomic_store_n(&read_result, read_range(p, bytes), __ATOMIC_RELAXED);
		return;
	}
#pragma omp parallel for num_threads(b->threads) reduction(+ : sum)
	for (int t = 0; t < b->threads; t++)
		sum += read_range(p + t * part, part);
	__atomic_store_n(&read_result, sum, __ATOMIC_RELAXED);
}

static void dense(struct bed *b, uint32_t layer)
{
	b->sh.layer = layer;
	b->o->kern->decode_dense(&b->sh, &b->step, b->q, b->out, NULL, &b->work);
}

static void with_evidence(struct bed *b, uint32_t layer)
{
	struct skv_evidence ev = {.rows = 1, .token = b->token_weight, .page = b->page_weight,
	                          .token_stride = b->pages * SKV_PAGE_TOKENS, .page_stride = b->pages};
	b->sh.layer = layer;
	b->o->kern->decode_dense(&b->sh, &b->step, b->q, b->out, &ev, &b->work);
}

static void window(struct bed *b, uint32_t layer)
{
	struct skv_window w = {.sinks = 16, .budget.share = (float)b->o->budget};
	b->sh.layer = layer;
	b->o->kern->decode_window(&b->sh, &b->step, b->q, b->out, &w, &b->work);
}

static void pages_seq(struct bed *b, uint32_t layer)
{
	b->sh.layer = layer;
	b->o->kern->decode_pages(&b->sh, &b->step, b->q, b->out, &b->page_list[0], &b->work);
}

static void pages_head(struct bed *b, uint32_t layer)
{
	b->sh.layer = layer;
	b->o->kern->decode_pages(&b->sh, &b->step, b->q, b->out, &b->page_list[1], &b->work);
}

static void tokens_seq(struct bed *b, uint32_t layer)
{
	b->sh.layer = layer;
	b->o->kern->decode_tokens(&b->sh, &b->step, b->q, b->out, &b->token_list[0], &b->work);
}

static void tokens_head(struct bed *b, uint32_t layer)
{
	b->sh.layer = layer;
	b->o->kern->decode_tokens(&b->sh, &b->step, b->q, b->out, &b->token_list[1], &b->work);
}

static const struct {
	const char *name;
	void (*layer)(struct bed *, uint32_t);
	bool sparse;
} kinds[] = {
	{"read", read_layer, false},        {"dense", dense, false},
	{"evidence", with_evidence, false}, {"window", window, true},
	{"pages/seq", pages_seq, true},     {"pages/head", pages_head, true},
	{"tokens/seq", tokens_seq, true},   {"tokens/head", tokens_head, true},
};
#define N_KINDS (sizeof kinds / sizeof *kinds)
enum { READ, DENSE };

static const struct column columns[] = {
	{"kernel", -1},  {"isa", -1},      {"heads", -1},      {"dim", 0},   {"dtype", -1},
	{"threads", 0},  {"tokens", 0},    {"batch", 0},       {"ms", 4},    {"gb_per_s", 2},
	{"of_read", 3},  {"of_dense", 3},  {"gflop_per_s", 1},
};

static void report(struct report *r, const struct bed *b, const char *kind, uint32_t tokens, double ms,
                   double gbps, double of_read, double of_dense, double gflops)
{
	char heads[32];
	snprintf(heads, sizeof heads, "%u/%u", b->sh.n_heads, b->sh.n_kv_heads);
	report_row(r, kind, b->o->kern->name, heads, (double)b->sh.head_dim, dtype_name(b->sh.dtype),
	           (double)b->threads, (double)tokens, (double)b->o->batch, ms, gbps, of_read, of_dense,
	           gflops);
}

static void measure_decode(struct report *r, struct bed *b)
{
	static double t[N_KINDS][MAX_REPEAT];
	double ms[N_KINDS], bytes = (double)b->pool_bytes / b->layers;

	/* Pass -1 is not counted: it wakes threads and touches scratch. */
	for (long rep = -1; rep < b->o->repeat; rep++)
		for (size_t k = 0; k < N_KINDS; k++) {
			double begin = bench_now();
			for (uint32_t layer = 0; layer < b->layers; layer++)
				kinds[k].layer(b, layer);
			if (rep >= 0)
				t[k][rep] = (bench_now() - begin) * 1e3 / b->layers;
		}
	for (size_t k = 0; k < N_KINDS; k++)
		ms[k] = bench_median(t[k], (size_t)b->o->repeat);
	for (size_t k = 0; k < N_KINDS; k++) {
		double touched = kinds[k].sparse ? bytes * b->o->budget : bytes, gbps = touched / ms[k] / 1e6;
		report(r, b, kinds[k].name, b->tokens, ms[k], gbps, gbps / (bytes / ms[READ] / 1e6),
		       k == READ ? NAN : ms[k] / ms[DENSE], NAN);
	}
}

/* A prompt in one call, beside a matrix product of OpenBLAS on the same threads. */
static void measure_prefill(struct report *r, struct bed *b)
{
	static double t[2][MAX_REPEAT];
	const uint32_t n = b->tokens, heads = b->sh.n_heads, dim = b->sh.head_dim;
	const int m = 1024;
	float *q = get((size_t)n * heads * dim * sizeof *q);
	float *out = get((size_t)n * heads * dim * sizeof *out);
	float *x = get((size_t)3 * m * m * sizeof *x);
	/* q k and p v, over the lower triangle */
	double flop = 4.0 * heads * dim * ((double)n * (n + 1) / 2), blas_flop = 2.0 * m * m * m;

	for (size_t i = 0; i < (size_t)n * heads * dim; i++)
		q[i] = b->q[i % ((size_t)heads * dim)];
	openblas_set_num_threads(b->threads);
	for (long rep = -1; rep < b->o->repeat; rep++) {
		struct skv_kseq s = prompt_of(b, 0);
		b->sh.layer = (uint32_t)(rep + 1) % b->layers;
		double begin = bench_now();
		b->o->kern->prefill_dense(&b->sh, &(struct skv_batch){&s, 1, n, n}, q, out, &b->work);
		double middle = bench_now();
		cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, m, m, 1, x, m, x + m * m, m, 0,
		            x + 2 * m * m, m);
		if (rep >= 0) {
			t[0][rep] = (middle - begin) * 1e3;
			t[1][rep] = (bench_now() - middle) * 1e3;
		}
	}
	double ms = bench_median(t[0], (size_t)b->o->repeat);
	double blas_ms = bench_median(t[1], (size_t)b->o->repeat);
	report(r, b, "sgemm", (uint32_t)m, blas_ms, NAN, NAN, NAN, blas_flop / blas_ms / 1e6);
	report(r, b, "prefill", n, ms, NAN, NAN, NAN, flop / ms / 1e6);
	free(q);
	free(out);
	free(x);
}

/* ---- options --------------------------------------------------------------------------------- */

static void help(void)
{
	puts("usage: sparsekv-bench attention [OPTION...]\n\n"
	     "Times the host attention kernels: decode over everything, with evidence, and over a\n"
	     "budget of it as a window, as pages and as tokens (one list a sequence, one a kv head),\n"
	     "next to a plain streaming read of the same memory; and prefill next to OpenBLAS.\n\n"
	     "  --threads LIST   OpenMP threads (1,2)\n"
	     "  --tokens LIST    length of the sequences (16384)\n"
	     "  --heads LIST     q heads/kv heads (8/2,32/8)\n"
	     "  --dim LIST       head dimension, one for each of --heads (64,128)\n"
	     "  --dtype LIST     fp32, fp16, bf16 (fp32,bf16)\n"
	     "  --batch N        sequences in a step (1)\n"
	     "  --budget X       share of the tokens that sparse layers look at (0.1)\n"
	     "  --memory MIB     memory to go through, at least (512)\n"
	     "  --prefill N      length of the prompt, 0 for none (4096)\n"
	     "  --repeat N       passes, of which the median counts (9)\n"
	     "  --isa NAME       avx512, avx2 or generic (the best that this processor has)\n"
	     "  --csv FILE       the figures as CSV, too");
}

static int bad(const char *name, const char *value, const char *expected)
{
	fprintf(stderr, "sparsekv-bench: --%s %s: expected %s\n", name, value, expected);
	return -1;
}

static int parse_heads(struct options *o, const char *text)
{
	char rest;
	o->n_shapes = 0;
	for (const char *p = text; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
		int n = o->n_shapes, got;
		if (n == BENCH_LIST_MAX)
			return bad("heads", text, "fewer of them");
		got = sscanf(p, "%ld/%ld%c", &o->heads[n], &o->kv_heads[n], &rest);
		if (got < 2 || (got == 3 && rest != ',') || o->kv_heads[n] < 1 || o->heads[n] < 1)
			return bad("heads", text, "q heads/kv heads, such as 8/2,32/8");
		o->n_shapes++;
	}
	return 0;
}

static int parse_dtypes(struct options *o, const char *text)
{
	static const char *const names[] = {[SKV_F32] = "fp32", [SKV_F16] = "fp16", [SKV_BF16] = "bf16"};
	o->n_dtypes = 0;
	for (const char *p = text; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
		size_t len = strcspn(p, ",");
		uint32_t d = 0;
		while (d < 3 && (strlen(names[d]) != len || strncmp(names[d], p, len)))
			d++;
		if (d == 3 || o->n_dtypes == BENCH_LIST_MAX)
			return bad("dtype", text, "fp32, fp16 or bf16, separated by commas");
		o->dtypes[o->n_dtypes++] = d;
	}
	return 0;
}

static int parse_number(const char *name, const char *text, long least, long most, long *ret)
{
	char *end, expected[64];
	errno = 0;
	long x = strtol(text, &end, 10);
	snprintf(expected, sizeof expected, "a whole number from %ld to %ld", least, most);
	if (end == text || *end || errno || x < least || x > most)
		return bad(name, text, expected);
	*ret = x;
	return 0;
}

static int check_shapes(const struct options *o, int n_dims)
{
	if (o->n_shapes != n_dims) {
		fprintf(stderr,
		        "sparsekv-bench: --heads names %d shapes and --dim %d: expected one dimension for"
		        " each\n", o->n_shapes, n_dims);
		return -1;
	}
	for (int i = 0; i < n_dims; i++) {
		struct skv_shape sh = shape_of(o, i, SKV_F32);
		const char *why = o->kern->unsupported(&sh);
		if (why) {
			fprintf(stderr, "sparsekv-bench: --heads %u/%u --dim %u: %s\n", sh.n_heads,
			        sh.n_kv_heads, sh.head_dim, why);
			return -1;
		}
	}
	return 0;
}

/* 0: go on, 1: help was asked for, -1: an error was reported. */
static int parse(struct options *o, int argc, char **argv)
{
	static const struct option longs[] = {
		{"threads", 1, 0, 't'}, {"tokens", 1, 0, 'n'}, {"heads", 1, 0, 'h'},   {"dim", 1, 0, 'd'},
		{"dtype", 1, 0, 'y'},   {"batch", 1, 0, 'b'},  {"budget", 1, 0, 'g'},  {"memory", 1, 0, 'm'},
		{"prefill", 1, 0, 'p'}, {"repeat", 1, 0, 'r'}, {"isa", 1, 0, 'i'},     {"csv", 1, 0, 'c'},
		{"help", 0, 0, '?' + 128}, {0},
	};
	int n_dims = 2, e = 0;
	char *end;
	*o = (struct options){
		.threads = {1, 2}, .n_threads = 2, .tokens = {16384}, .n_tokens = 1, .heads = {8, 32},
		.kv_heads = {2, 8}, .dims = {64, 128}, .n_shapes = 2, .dtypes = {SKV_F32, SKV_BF16},
		.n_dtypes = 2, .batch = 1, .memory = 512, .repeat = 9, .prefill = 4096, .budget = 0.1,
		.kern = skv_kernels_host(NULL),
	};
	for (int c; !e && (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
		switch (c) {
		case 't':
			e = (o->n_threads = bench_list("threads", optarg, 1, o->threads)) < 0;
			break;
		case 'n':
			e = (o->n_tokens = bench_list("tokens", optarg, 64, o->tokens)) < 0;
			break;
		case 'd':
			e = (n_dims = bench_list("dim", optarg, 1, o->dims)) < 0;
			break;
		case 'h':
			e = parse_heads(o, optarg);
			break;
		case 'y':
			e = parse_dtypes(o, optarg);
			break;
		case 'b':
			e = parse_number("batch", optarg, 1, 4096, &o->batch);
			break;
		case 'm':
			e = parse_number("memory", optarg, 1, 1 << 20, &o->memory);
			break;
		case 'p':
			e = parse_number("prefill", optarg, 0, SKV_MAX_TOKENS, &o->prefill);
			break;
		case 'r':
			e = parse_number("repeat", optarg, 1, MAX_REPEAT, &o->repeat);
			break;
		case 'g':
			o->budget = strtod(optarg, &end);
			if (*end || !(o->budget > 0 && o->budget <= 1))
				e = bad("budget", optarg, "a share from 0 to 1");
			break;
		case 'i':
			o->kern = skv_kernels_host(optarg);
			break;
		case 'c':
			o->csv = optarg;
			break;
		case '?' + 128:
			help();
			return 1;
		default:
			return -1;
		}
	}
	if (!e && optind < argc) {
		fprintf(stderr, "sparsekv-bench: attention: unexpected argument '%s'\n", argv[optind]);
		return -1;
	}
	if (!e && !o->kern) {
		fputs("sparsekv-bench: --isa or SPARSEKV_ISA: expected avx512, avx2 or generic, and a"
		      " processor that has it\n", stderr);
		return -1;
	}
	return e ? -1 : check_shapes(o, n_dims);
}

int bench_attention(int argc, char **argv)
{
	struct options o;
	struct report r;
	struct bed bed;
	int e = parse(&o, argc, argv);

	if (e)
		return e > 0 ? 0 : 2;
	e = report_init(&r, columns, sizeof columns / sizeof *columns, o.csv);
	for (int s = 0; !e && s < o.n_shapes; s++)
		for (int d = 0; d < o.n_dtypes; d++)
			for (int t = 0; t < o.n_threads; t++) {
				for (int n = 0; n < o.n_tokens; n++) {
					if (bed_init(&bed, &o, s, o.dtypes[d], (uint32_t)o.tokens[n],
					             (int)o.threads[t]))
						return 1;
					measure_decode(&r, &bed);
					bed_deinit(&bed);
				}
				if (!o.prefill)
					continue;
				if (bed_init(&bed, &o, s, o.dtypes[d], (uint32_t)o.prefill,
				             (int)o.threads[t]))
					return 1;
				measure_prefill(&r, &bed);
				bed_deinit(&bed);
			}
	if (!e)
		e = report_deinit(&r);
	if (e) {
		fprintf(stderr, "sparsekv-bench: --csv %s: %s\n", o.csv, strerror(-e));
		return 1;
	}
	return 0;
}
