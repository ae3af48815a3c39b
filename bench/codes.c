/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/codes.c - sparsekv-bench codes: measures the kernels that compress K and V and attend to compressed tokens.
 *
 * The benchmark compresses the sequences of one layer, with a codec of random weights: first a prompt, then the block
 * after it. Then the benchmark measures attention to a number of listed tokens in three ways: to K and V rows, as if
 * nothing were compressed; to rows that are first decompressed to memory; and by a fused kernel that decompresses while
 * it attends, if there is one. Attention to all tokens is measured for comparison.
 *
 * The speed of gathering reference tokens depends on how many tokens share them. So two kinds of rows are measured:
 * random rows, and rows around a few centres. The lists of tokens are random, and several lists take turns, so that a
 * cache has little of a list's data when the list is used again.
 *
 * GB/s counts the records, references and rows that a kernel must read or write, once for each token and sequence.
 * TFLOP/s counts the products of the decoder, the encoder and the search for references. The fused kernel does not
 * compute the decoder's products for V, so they are not counted for it.
 */
#include "bench/kernel-fixture.h"
#include "bench/bench.h"
#include "kernels/compress.h"
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#define MAX_REPEAT 101
#define LISTS 4      /* number of lists that take turns */
#define SLICE 4096u  /* number of prompt tokens that one call compresses */
#define BLOCK 32u    /* number of tokens of a decoding sequence that one call compresses */
#define RESIDUAL 128u     /* number of tokens in the residual window: the newest tokens, which stay uncompressed */
#define CENTRES 256u

/* page tables of a sequence: K and V rows, codes, references; number of these tables */
enum { ROWS, CODES, REFS, TABLES };

struct options {
	long tokens[BENCH_LIST_MAX], batch[BENCH_LIST_MAX], listed[BENCH_LIST_MAX], bits[BENCH_LIST_MAX];
	int n_tokens, n_batch, n_listed, n_bits;
	long ref_bits, repeat, dim;
	uint32_t heads, kv_heads;
	const char *csv;
	struct fixture_options fixture;
};

/* What is measured: sequences of one layer that compresses. */
struct setup {
	struct kernel_fixture fixture;
	struct report *report;
	long repeat;
	const char *rows; /* kind of the rows: random, or around centres */
	struct skv_codec code;
	struct skv_shape coded; /* shape of the layer, with its codes */
	/* packed: number of compressed tokens; pages: number of entries in a page table */
	uint32_t tokens, batch, packed, pages;
	skv_pte *table;        /* [batch][TABLES][pages] */
	/* [slices + 2][batch]: sequences before each call that compresses, and after the last call */
	struct skv_kseq *seq;
	uint32_t slices;
	void *q, *out;
	double dense; /* milliseconds of attention to all tokens */
};

/* ---- a layer --------------------------------------------------------------------------------- */

static uint32_t records_pages(const struct setup *y, uint32_t records, uint32_t bytes)
{
	const uint32_t each = (uint32_t)(y->fixture.sh.page_bytes / bytes);
	return (records + each - 1) / each;
}

/* Makes a matrix [rows][columns] of random numbers: fp32 on the host, bf16 on a device. */
static void *random_matrix(struct setup *y, uint64_t *rng, size_t rows, size_t columns)
{
	const float size = 1 / sqrtf((float)columns);
	const bool narrow = y->fixture.o->device;
	uint8_t *w = fixture_get(rows * columns * (narrow ? 2 : 4));

	for (size_t i = 0; i < rows * columns; i++) {
		const float x = size * (float)((double)(bench_random(rng) >> 40) * 0x1p-23 - 1);
		uint32_t bits;

		memcpy(&bits, &x, sizeof bits);
		if (narrow)
			((uint16_t *)w)[i] = (uint16_t)(bits >> 16);
		else
			((float *)w)[i] = x;
	}
	return fixture_there(&y->fixture, w, rows * columns * (narrow ? 2 : 4));
}

/*
 * Makes a codec for K and V with d elements a token, with the proportions of the one for Llama-3.1-8B: the encoder has
 * a hidden layer of 3 d / 2 elements, and the decoder has no hidden layer.
 */
static void codec_init(struct setup *y, uint64_t *rng, uint32_t bits, uint32_t ref_bits)
{
	const uint32_t d = skv_token_dims(&y->fixture.sh), dim = y->fixture.sh.head_dim;
	double *turn = fixture_get(dim / 2 * sizeof *turn);

	for (uint32_t i = 0; i < dim / 2; i++)
		turn[i] = pow(500000, -2.0 * i / dim);
	y->code = (struct skv_codec){.kind = SKV_COMPRESS_LATENT, .first = 16, .stride = 10, .n_refs = 4, .ref_bits = ref_bits,
	                             .id_bytes = 16 + y->tokens / 10 < 65536 ? 2 : 4, .bits = bits, .width = d / 4,
	                             .scale_block = 64, .enc_hidden = 3 * d / 2, .rope_scale = 1, .rope_dims = dim};
	y->code.enc_in = random_matrix(y, rng, 2 * y->code.enc_hidden, d);
	y->code.enc_out = random_matrix(y, rng, y->code.width, y->code.enc_hidden);
	y->code.dec_out = random_matrix(y, rng, d, y->code.width);
	y->code.rope_freq = fixture_there(&y->fixture, turn, dim / 2 * sizeof *turn);
}

/*
 * Makes the pages of a sequence's rows, bf16 numbers from -1 to 1. If `centred` is true, seven of eight elements of a
 * token's V are those of its centre. K is always random, because the rotary embedding would separate clusters of K
 * anyway.
 */
static uint16_t *make_rows(const struct setup *y, uint32_t pages, bool centred)
{
	/* `half` is the number of elements of K in a page */
	const size_t half = y->fixture.sh.page_bytes / 4, dim = y->fixture.sh.head_dim;
	uint16_t *rows = fixture_get(pages * y->fixture.sh.page_bytes);

#pragma omp parallel for
	for (uint32_t p = 0; p < pages; p++) {
		uint16_t *page = rows + p * 2 * half;
		uint64_t rng = p, centre[SKV_PAGE_TOKENS]; /* [token of the page]: seed of the centre's elements */

		for (uint32_t t = 0; t < SKV_PAGE_TOKENS; t++)
			centre[t] = bench_random(&rng) % CENTRES << 32;
		for (size_t e = 0; e < 2 * half; e++) {
			const size_t row = e / dim;
			uint64_t x = bench_random(&rng);
			uint64_t same = centre[row % SKV_PAGE_TOKENS] + row / SKV_PAGE_TOKENS * dim + e % dim;

			if (centred && e >= half && x % 8)
				x = bench_random(&same);
			/* keep random sign and mantissa bits, and set an exponent from 2^-8 to 2^-1 */
			page[e] = (uint16_t)((x >> 48 & 0x807f) | (119 + (x >> 40 & 7)) << 7);
		}
	}
	return rows;
}

static void fill(struct setup *y, bool centred)
{
	const struct skv_backend *d = y->fixture.o->device;
	const uint32_t pages = skv_pages_of(y->tokens);
	const size_t bytes = pages * y->fixture.sh.page_bytes;
	uint16_t *rows = make_rows(y, pages, centred);

	for (uint32_t i = 0; i < y->batch; i++) {
		uint8_t *to = y->fixture.sh.pool + i * bytes;

		if (d)
			fixture_need(&y->fixture, d->copy(to, i ? y->fixture.sh.pool : (uint8_t *)rows, bytes,
			                                  y->fixture.work.stream));
		else
			memcpy(to, rows, bytes);
	}
	if (d)
		fixture_need(&y->fixture, d->wait(y->fixture.work.stream));
	free(rows);
}

/*
 * Makes the page tables. The pool has the rows of all sequences first, then the codes, then the references; the pages
 * of a sequence are contiguous.
 */
static void tables_init(struct setup *y, const uint32_t pages[TABLES])
{
	skv_pte *t = fixture_get((size_t)y->batch * TABLES * y->pages * sizeof *t);
	uint32_t next = 0;

	for (uint32_t k = 0; k < TABLES; k++)
		for (uint32_t i = 0; i < y->batch; i++)
			for (uint32_t p = 0; p < pages[k]; p++)
				t[((size_t)i * TABLES + k) * y->pages + p] = skv_pte_make(SKV_PTE_PRIVATE, next++);
	y->table = fixture_there(&y->fixture, t, (size_t)y->batch * TABLES * y->pages * sizeof *t);
}

/*
 * Makes the sequences as they are before each call: one call for each slice of a prompt, then a call that compresses
 * the last block. The last set of sequences is the state in which that block is compressed, too.
 */
static void seqs_init(struct setup *y)
{
	y->slices = (y->packed + SLICE - 1) / SLICE;
	struct skv_kseq *seq = fixture_get((size_t)(y->slices + 2) * y->batch * sizeof *seq);

	for (uint32_t s = 0; s < y->slices + 2; s++)
		for (uint32_t i = 0; i < y->batch; i++) {
			const uint32_t to = (s + 1) * SLICE < y->packed ? (s + 1) * SLICE : y->packed;
			const uint32_t block = s == y->slices ? BLOCK : 0;

			seq[s * y->batch + i] = (struct skv_kseq){
				.table = y->table + (size_t)i * TABLES * y->pages, .layer_stride = y->pages, .len = y->tokens,
				.n_q = 1, .row = i, .n_compressed = s < y->slices ? s * SLICE : y->packed - block,
				.compress_to = s < y->slices ? to : block ? y->packed : 0};
		}
	y->seq = fixture_there(&y->fixture, seq, (size_t)(y->slices + 2) * y->batch * sizeof *seq);
}

static struct skv_batch batch_of(const struct setup *y, uint32_t step)
{
	return (struct skv_batch){.seq = y->seq + step * y->batch, .n = y->batch, .max_len = y->tokens, .max_q = 1,
	                          .max_compress = step < y->slices ? SLICE : step == y->slices ? BLOCK : 0};
}

static int setup_init(struct setup *y, const struct options *o, int n, uint32_t bits, bool centred)
{
	struct skv_shape sh = fixture_shape(o->heads, o->kv_heads, (uint32_t)o->dim, SKV_BF16);
	const uint32_t d = skv_token_dims(&sh), pages = skv_pages_of((uint32_t)o->tokens[n]);
	const uint32_t each = 2 * pages + 2; /* compressed tokens need no more pages than rows do */
	uint64_t rng = 1;

	*y = (struct setup){.report = y->report, .repeat = o->repeat, .rows = centred ? "centred" : "random"};
	if (fixture_open(&y->fixture, &o->fixture, sh, (size_t)o->batch[n] * each * sh.page_bytes, omp_get_max_threads()))
		return -1;
	y->tokens = (uint32_t)o->tokens[n];
	y->batch = (uint32_t)o->batch[n];
	y->packed = (y->tokens - RESIDUAL) / BLOCK * BLOCK;
	codec_init(y, &rng, bits, (uint32_t)o->ref_bits);
	const uint32_t codes = records_pages(y, skv_codes_before(&y->code, y->packed), skv_code_bytes(&y->code));
	const uint32_t refs = records_pages(y, skv_refs_before(&y->code, y->packed),
	                                    skv_ref_bytes(&y->code, d, SKV_BF16));
	const uint32_t of[TABLES] = {pages, codes, refs};
	y->pages = pages;
	tables_init(y, of);
	seqs_init(y);
	y->coded = y->fixture.sh;
	y->coded.layer = ROWS;
	y->coded.codes = CODES;
	y->coded.refs = REFS;
	y->coded.codec = &y->code;
	y->q = fixture_floats(&y->fixture, &rng, (size_t)y->batch * sh.n_heads * sh.head_dim);
	y->out = fixture_floats(&y->fixture, &rng, (size_t)y->batch * sh.n_heads * sh.head_dim);
	y->fixture.work.bytes = o->fixture.kern->workspace_bytes(&y->coded, y->batch, y->batch, y->tokens,
	                                                         y->fixture.threads);
	y->fixture.work.mem = fixture_there(&y->fixture, fixture_get(y->fixture.work.bytes), y->fixture.work.bytes);
	fill(y, centred);
	return 0;
}

static void setup_deinit(struct setup *y)
{
	const void *const held[] = {y->code.enc_in, y->code.enc_out, y->code.dec_out, y->code.rope_freq, y->table, y->seq, y->q, y->out,
	                            y->fixture.work.mem};

	for (size_t i = 0; i < sizeof held / sizeof *held; i++)
		fixture_free(&y->fixture, (void *)held[i]);
	fixture_close(&y->fixture);
}

/* ---- figures --------------------------------------------------------------------------------- */

static const struct column columns[] = {
	{"kernel", -1},  {"rows", -1},     {"bits", 0},       {"tokens", 0},       {"batch", 0},
	{"listed", 0},   {"ms", 4},        {"gb_per_s", 1},   {"tflop_per_s", 1}, {"of_dense", 4},
};

/* Reports a row for n tokens; `bytes` and `flops` are those of one token. */
static void report(const struct setup *y, const char *kernel, double listed, double ms, double n, double bytes,
                   double flops)
{
	report_row(y->report, kernel, y->rows, (double)y->code.bits, (double)y->tokens, (double)y->batch, listed, ms,
	           bytes > 0 ? n * bytes / ms / 1e6 : NAN, flops > 0 ? n * flops / ms / 1e9 : NAN,
	           y->dense > 0 ? ms / y->dense : NAN);
}

static double row_bytes(const struct setup *y)
{
	return (double)y->fixture.sh.page_bytes / SKV_PAGE_TOKENS;
}

/* Returns the bytes that are read for a token with a code: its record and its references. */
static double kept_bytes(const struct setup *y)
{
	const uint32_t d = skv_token_dims(&y->fixture.sh);
	return skv_code_bytes(&y->code) + (double)y->code.n_refs * skv_ref_bytes(&y->code, d, SKV_BF16);
}

static double decoder_flops(const struct setup *y)
{
	return 2.0 * skv_token_dims(&y->fixture.sh) * y->code.width;
}

/* Returns the operations of encoding a token: the encoder runs for x and for b (engine/residuals.h). */
static double encoder_flops(const struct setup *y)
{
	const double d = skv_token_dims(&y->fixture.sh), hidden = y->code.enc_hidden;
	return 2 * (2 * 2 * hidden * d + 2 * hidden * y->code.width);
}

/* ---- measurements ---------------------------------------------------------------------------- */

/* Measures how fast a prompt is compressed in slices, and how fast a block at the end of each sequence is. */
static void measure_compression(struct setup *y)
{
	static double t[MAX_REPEAT];
	const double refs = skv_refs_before(&y->code, y->packed), d = skv_token_dims(&y->fixture.sh);
	const struct skv_kernels *k = y->fixture.o->kern;

	fixture_start(&y->fixture);
	for (uint32_t s = 0; s < y->slices; s++) {
		const struct skv_batch b = batch_of(y, s);
		k->compress(&y->coded, 1, &b, NULL, &y->fixture.work);
	}
	report(y, "pack prompt", NAN, fixture_stop(&y->fixture), (double)y->batch * y->packed, row_bytes(y),
	       encoder_flops(y) + refs * d);
	for (long rep = -1; rep < y->repeat; rep++) {
		const struct skv_batch b = batch_of(y, y->slices);

		fixture_start(&y->fixture);
		k->compress(&y->coded, 1, &b, NULL, &y->fixture.work);
		const double ms = fixture_stop(&y->fixture);
		if (rep >= 0)
			t[rep] = ms;
	}
	report(y, "pack block", NAN, bench_median(t, (size_t)y->repeat), (double)y->batch * BLOCK,
	       refs * skv_ref_bytes(&y->code, (uint32_t)d, SKV_BF16) / BLOCK, encoder_flops(y) + 2 * refs * d);
}

/* Arguments of attention to lists of tokens; `to` is memory for decompressed rows. */
struct pass {
	struct setup *y;
	struct skv_index_list list[LISTS];
	struct skv_decompressed to;
	struct skv_batch b;
};

static void dense(const struct pass *p, const struct skv_index_list *list)
{
	struct setup *y = p->y;
	(void)list;
	y->fixture.o->kern->decode_dense(&y->fixture.sh, &p->b, y->q, y->out, NULL, &y->fixture.work);
}

static void tokens(const struct pass *p, const struct skv_index_list *list)
{
	struct setup *y = p->y;
	y->fixture.o->kern->decode_tokens(&y->fixture.sh, &p->b, y->q, y->out, list, &y->fixture.work);
}

static void decompress(const struct pass *p, const struct skv_index_list *list)
{
	struct setup *y = p->y;
	y->fixture.o->kern->decompress(&y->coded, &p->b, list, &p->to, &y->fixture.work);
}

static void unfused(const struct pass *p, const struct skv_index_list *list)
{
	struct setup *y = p->y;
	struct skv_shape sh = y->fixture.sh;
	struct skv_batch over = p->b;

	decompress(p, list);
	sh.pool = p->to.pool;
	over.seq = p->to.seq;
	over.max_len = list->max_count;
	y->fixture.o->kern->decode_dense(&sh, &over, y->q, y->out, NULL, &y->fixture.work);
}

static void fused(const struct pass *p, const struct skv_index_list *list)
{
	struct setup *y = p->y;
	y->fixture.o->kern->decode_latent(&y->coded, &p->b, y->q, y->out, list, &y->fixture.work);
}

/* Returns the median time of passes, in which the lists take turns. */
static double time_of(const struct pass *p, void (*run)(const struct pass *, const struct skv_index_list *))
{
	static double t[MAX_REPEAT];

	for (long rep = -LISTS; rep < p->y->repeat; rep++) {
		fixture_start(&p->y->fixture);
		run(p, &p->list[(rep + LISTS) % LISTS]);
		const double ms = fixture_stop(&p->y->fixture);
		if (rep >= 0)
			t[rep] = ms;
	}
	return bench_median(t, (size_t)p->y->repeat);
}

static void pass_init(struct pass *p, struct setup *y, uint32_t listed)
{
	const uint32_t pages = skv_pages_of(listed);
	uint64_t rng = 3;

	*p = (struct pass){.y = y, .b = batch_of(y, y->slices + 1), .to = {.pages = pages}};
	for (int l = 0; l < LISTS; l++) {
		uint32_t *ids = fixture_get((size_t)y->batch * listed * sizeof *ids), *count = fixture_get(y->batch * sizeof *count);

		for (uint32_t i = 0; i < y->batch; i++)
			count[i] = fixture_choose(&rng, y->tokens, listed, ids + (size_t)i * listed);
		p->list[l] = (struct skv_index_list){.rows = 1, .stride = listed, .max_count = listed,
		                               .ids = fixture_there(&y->fixture, ids,
		                                                    (size_t)y->batch * listed * sizeof *ids),
		                               .count = fixture_there(&y->fixture, count, y->batch * sizeof *count)};
	}
	p->to.pool = fixture_room(&y->fixture, (size_t)y->batch * pages * y->fixture.sh.page_bytes);
	p->to.seq = fixture_room(&y->fixture, y->batch * sizeof *p->to.seq);
	p->to.table = fixture_room(&y->fixture, y->batch * pages * sizeof(skv_pte));
}

static void pass_deinit(struct pass *p)
{
	for (int l = 0; l < LISTS; l++) {
		fixture_free(&p->y->fixture, p->list[l].ids);
		fixture_free(&p->y->fixture, p->list[l].count);
	}
	fixture_free(&p->y->fixture, p->to.pool);
	fixture_free(&p->y->fixture, p->to.seq);
	fixture_free(&p->y->fixture, p->to.table);
}

static void measure_dense(struct setup *y)
{
	const struct pass p = {.y = y, .b = batch_of(y, y->slices + 1)};

	y->dense = time_of(&p, dense);
	report(y, "dense", y->tokens, y->dense, (double)y->batch * y->tokens, row_bytes(y), 0);
}

static void measure_lists(struct setup *y, uint32_t listed)
{
	const struct skv_kernels *k = y->fixture.o->kern;
	const double n = (double)y->batch * listed, rows = row_bytes(y), kept = kept_bytes(y), flops = decoder_flops(y);
	struct pass p;

	pass_init(&p, y, listed);
	report(y, "tokens", listed, time_of(&p, tokens), n, rows, 0);
	report(y, "decompress", listed, time_of(&p, decompress), n, kept + rows, flops);
	report(y, "unfused", listed, time_of(&p, unfused), n, kept + 2 * rows, flops);
	if (k->fuses_latent && k->fuses_latent(&y->coded))
		report(y, "fused", listed, time_of(&p, fused), n, kept, flops / 2);
	pass_deinit(&p);
}

/* ---- options --------------------------------------------------------------------------------- */

static const char about[] =
	"Times the kernels of a layer that compresses: compression, and attention to listed tokens as if nothing\n"
	"were compressed, decompressed in memory first (unfused), and fused; next to attention to all tokens.\n"
	"K and V are random, or around 256 centres.";

/* Replaces options that were not given with their defaults. */
static void complete(struct options *o)
{
	const bool device = o->fixture.device;

	if (!o->n_tokens) {
		o->tokens[0] = device ? 131072 : 4096;
		o->tokens[1] = 524288;
		o->n_tokens = device ? 2 : 1;
	}
	if (!o->n_batch) {
		o->batch[0] = device ? 8 : 2;
		o->batch[1] = 2;
		o->n_batch = device ? 2 : 1;
	}
	if (!o->n_listed)
		for (long n = device ? 2048 : 256, most = device ? 32768 : 1024; n <= most; n *= device ? 2 : 4)
			o->listed[o->n_listed++] = n;
	if (!o->heads) {
		o->heads = device ? 32 : 8;
		o->kv_heads = device ? 8 : 2;
	}
	o->dim = o->dim ? o->dim : device ? 128 : 64;
}

static int check(const struct options *o)
{
	struct skv_shape sh = fixture_shape(o->heads, o->kv_heads, (uint32_t)o->dim, SKV_BF16);
	const char *why = o->fixture.kern->unsupported(&sh);

	for (int i = 0; i < o->n_bits && !why; i++)
		if (o->bits[i] != 16 && o->bits[i] != 8 && o->bits[i] != 4)
			return bench_bad("bits", "", "16, 8 or 4");
	if (!why && skv_token_dims(&sh) % 256)
		why = "2 * kv heads * dimension must be a multiple of 256";
	if (!why && skv_token_dims(&sh) > SKV_MAX_CODEC_DIM * 2 / 3)
		why = "2 * kv heads * dimension must be at most 2730";
	if (!why && o->n_batch != o->n_tokens)
		why = "--batch needs one number for each of --tokens";
	if (why)
		fprintf(stderr, "sparsekv-bench: codes: %s\n", why);
	return why ? -1 : 0;
}

/* Returns 0, or -1 after an error was reported. */
static int parse(struct options *o, int argc, char **argv)
{
	uint32_t device = SKV_DEVICE_HOST;
	int e;
	const struct eng_option table[] = {
		ENG_COUNTS("tokens", "LIST", o->tokens, &o->n_tokens, 512, UINT32_MAX,
		              "length of the sequences (4096; of a device 131072,524288)"),
		ENG_COUNTS("batch", "LIST", o->batch, &o->n_batch, 1, UINT32_MAX,
		              "sequences, one number for each of --tokens (2; of a device 8,2)"),
		ENG_COUNTS("listed", "LIST", o->listed, &o->n_listed, 1, UINT32_MAX,
		              "tokens that are attended to (256,1024; of a device 2048,4096,8192,16384,32768)"),
		ENG_COUNTS("bits", "LIST", o->bits, &o->n_bits, 4, UINT32_MAX, "of codes: 16, 8 or 4 (4,16)"),
		ENG_COUNT("ref-bits", &o->ref_bits, 4, 16, "of references: 16, 8 or 4 (16)"),
		BENCH_HEADS(&o->heads, &o->kv_heads, "q heads/kv heads (8/2; of a device 32/8)"),
		ENG_COUNT("dim", &o->dim, 1, SKV_MAX_HEAD_DIM, "head dimension (64; of a device 128)"),
		ENG_COUNT("repeat", &o->repeat, 1, MAX_REPEAT, "passes, of which the median counts (9)"),
		ENG_DEVICE(&device, "on that device instead of the host"),
		BENCH_CSV(&o->csv),
	};
	const struct bench_command command = {"codes", NULL, about, table, sizeof table / sizeof *table};

	*o = (struct options){.bits = {4, 16}, .n_bits = 2, .ref_bits = 16, .repeat = 9,
	                      .fixture = {.kern = skv_kernels_host(NULL)}};
	e = bench_options(&command, argc, argv);
	if (e)
		return e;
	if (device && fixture_enter(&o->fixture, device))
		return -1;
	complete(o);
	return check(o);
}

/* Measures one codec with sequences of one length and one kind of rows. */
static int measure(struct report *r, const struct options *o, int n, uint32_t bits, bool centred)
{
	struct setup y = {.report = r};
	const char *why;

	if (setup_init(&y, o, n, bits, centred))
		return -1;
	why = o->fixture.kern->unsupported_codec(&y.coded);
	if (why) {
		fprintf(stderr, "sparsekv-bench: codes: %s\n", why);
		return -1;
	}
	measure_compression(&y);
	measure_dense(&y);
	for (int l = 0; l < o->n_listed; l++)
		if (o->listed[l] <= o->tokens[n])
			measure_lists(&y, (uint32_t)o->listed[l]);
	setup_deinit(&y);
	return 0;
}

static int measure_all(struct report *r, const void *options)
{
	const struct options *o = options;

	for (int n = 0; n < o->n_tokens; n++)
		for (int b = 0; b < o->n_bits; b++)
			for (int centred = 0; centred < 2; centred++)
				if (measure(r, o, n, (uint32_t)o->bits[b], centred))
					return -1;
	return 0;
}

int bench_codes(int argc, char **argv)
{
	struct options o;
	int e = parse(&o, argc, argv);

	return bench_report(e, measure_all, &o, columns, sizeof columns / sizeof *columns, o.csv);
}
