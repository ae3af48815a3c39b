/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/latent-case.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tests/ref/attention.h"

#define LAYERS 3u                             /* the tables have rows for them, as in kernel-case.c */
#define TABLES (LAYERS + 2 * CODE_LAYERS)     /* and tables of each layer's codes and references */

/* ---- codecs --------------------------------------------------------------------------------- */

enum turning { PLAIN, PART, PAIRS, SCALED, NONE };

static const struct form {
	uint32_t first, stride, near, ref_bits, id_bytes, bits, width, group, spans, hidden, wide;
	enum turning turning;
	bool norm;
} forms[CODE_FORMS] = {
	{16, 10, 4, 16, 2, 16, 64, 64, 0, 128, 0, PLAIN, false},
	{16, 10, 4, 16, 2, 4, 64, 64, 0, 64, 0, PLAIN, false},
	{16, 10, 4, 8, 4, 8, 64, 32, 0, 64, 64, PAIRS, false},
	{16, 10, 4, 4, 2, 4, 96, 32, 0, 0, 0, SCALED, false},
	{16, 3, 2, 16, 4, 0, 0, 32, 0, 0, 0, PLAIN, false},
	{32, 7, 3, 8, 2, 16, 32, 32, 0, 64, 128, PART, true},
	{16, 2, 1, 16, 2, 8, 32, 32, 0, 0, 64, PAIRS, true},
	{16, 40, 4, 16, 2, 16, 64, 64, 0, 192, 0, NONE, false},
	{16, 0, 0, 0, 0, 4, 64, 64, 0, 64, 0, PLAIN, false},
	{0, 0, 0, 0, 0, 16, 64, 64, 1, 0, 0, PLAIN, false},
	{0, 0, 0, 0, 0, 8, 64, 32, 1, 0, 0, SCALED, false},
	{16, 10, 4, 16, 2, 4, 64, 32, 1, 0, 0, PLAIN, true},
	{16, 10, 4, 16, 2, 4, 512, 64, 0, 64, 0, PLAIN, false},
	{16, 9, 2, 4, 2, 8, 128, 64, 0, 0, 0, PART, false},
};

/* Random numbers that bf16 represents exactly. */
static float *weights(size_t n, double size)
{
	float *w = malloc((n ? n : 1) * sizeof *w);

	for (size_t i = 0; i < n; i++)
		w[i] = ref_round(SKV_BF16, (float)(rnd_normal() * size));
	return w;
}

static void codec_init(struct ref_codec *k, const struct skv_shape *sh, const struct form *f)
{
	const uint32_t d = 2 * sh->n_kv_heads * sh->head_dim, parts = f->spans ? 2 : 1;
	const uint32_t width = f->width < d ? f->width : d;

	*k = (struct ref_codec){.kv_heads = sh->n_kv_heads, .dim = sh->head_dim, .dtype = sh->dtype, .first = f->first,
	                        .stride = f->stride, .near = f->near, .ref_bits = f->ref_bits, .id_bytes = f->id_bytes,
	                        .bits = f->bits, .width = width, .group = f->group, .spans = f->spans,
	                        .hidden = f->hidden, .wide = f->wide, .rope_scale = f->turning == SCALED ? 1.25 : 1,
	                        .rope_dims = f->turning == NONE ? 0 : f->turning == PART ? sh->head_dim / 2 : sh->head_dim,
	                        .interleaved = f->turning == PAIRS};
	if (f->hidden) {
		k->gate = weights((size_t)f->hidden * d, 1 / sqrt(d));
		k->up = weights((size_t)f->hidden * d, 1 / sqrt(d));
	}
	if (f->wide)
		k->open = weights((size_t)f->wide * width, 1 / sqrt(width));
	k->down = weights((size_t)width * (f->hidden ? f->hidden : d) / parts, 1 / sqrt(f->hidden ? f->hidden : d));
	k->out = weights((size_t)d * (f->wide ? f->wide : width) / parts, 0.2 * sqrt(64.0 / (width > 64 ? width : 64)));
	k->k_norm = f->norm ? weights(sh->head_dim, 1) : NULL;
	for (uint32_t i = 0; f->norm && i < sh->head_dim; i++)
		k->k_norm[i] = ref_round(SKV_BF16, 1 + k->k_norm[i] / 8);
	k->turn = malloc((k->rope_dims / 2 + 1) * sizeof *k->turn);
	for (uint32_t i = 0; i < k->rope_dims / 2; i++)
		k->turn[i] = pow(10000, -2.0 * i / k->rope_dims);
}

static void codec_deinit(struct ref_codec *k)
{
	free(k->gate);
	free(k->up);
	free(k->down);
	free(k->open);
	free(k->out);
	free(k->k_norm);
	free(k->turn);
}

/* ---- pages for records ----------------------------------------------------------------------- */

/* Counts the records of the first n tokens if all are compressed. */
static void count_records(const struct ref_codec *k, uint32_t n, uint32_t *codes, uint32_t *refs)
{
	*codes = *refs = 0;
	for (uint32_t t = 0; t < n; t++) {
		uint32_t number;
		const bool is = ref_is_reference(k, t, &number);

		*refs += is;
		*codes += !is && t >= k->first;
	}
}

static uint32_t pages_for(const struct code_case *k, uint32_t records, uint32_t bytes)
{
	if (records == 0) /* their size may be 0 */
		return 0;
	const uint32_t each = (uint32_t)(k->c.sh.page_bytes / bytes);

	return (records + each - 1) / each;
}

static skv_pte *table_of(struct code_case *k, uint32_t pages)
{
	skv_pte *t = calloc(k->stride, sizeof *t);

	ck_assert_uint_le(pages, k->stride);
	for (uint32_t p = 0; p < pages; p++)
		t[p] = skv_pte_make(SKV_PTE_PRIVATE, k->c.pool_pages++);
	return t;
}

void code_init(struct code_case *k, int shape, int form, uint32_t n, const uint32_t *len)
{
	static const struct {
		uint32_t heads, kv_heads, dim;
	} shapes[CODE_SHAPES / 3] = {{12, 4, 64}, {4, 1, 32}, {6, 2, 48}, {3, 1, 96}, {20, 2, 128}, {1, 1, 256}};
	const int i = shape % (CODE_SHAPES / 3);
	uint32_t n_q[CASE_SEQS];

	for (uint32_t s = 0; s < n; s++)
		n_q[s] = 1;
	*k = (struct code_case){.stride = 0};
	case_init(&k->c, (uint32_t)(shape / (CODE_SHAPES / 3)), shapes[i].heads, shapes[i].kv_heads, shapes[i].dim, n, len,
	          n_q);
	k->stride = skv_pages_of(k->c.max_len) + 3;
	for (uint32_t l = 0; l < CODE_LAYERS; l++) {
		struct code_layer *layer = &k->layer[l];

		codec_init(&layer->codec, &k->c.sh, &forms[form]);
		for (uint32_t s = 0; s < n; s++) {
			uint32_t codes, refs;

			count_records(&layer->codec, len[s], &codes, &refs);
			layer->codes[s] = table_of(k, pages_for(k, codes, ref_code_record(&layer->codec)));
			layer->refs[s] = table_of(k, pages_for(k, refs, ref_reference_record(&layer->codec)));
		}
	}
}

void code_deinit(struct code_case *k)
{
	for (uint32_t l = 0; l < CODE_LAYERS; l++) {
		codec_deinit(&k->layer[l].codec);
		for (uint32_t s = 0; s < k->c.n; s++) {
			free(k->layer[l].codes[s]);
			free(k->layer[l].refs[s]);
		}
	}
	case_deinit(&k->c);
}

/* ---- on a backend ---------------------------------------------------------------------------- */

static const void *matrix_to(struct code_case *k, const float *w, size_t n)
{
	uint16_t *narrow;
	const void *there;

	if (!w || !k->c.on->device)
		return w ? case_to(&k->c, w, n * sizeof *w) : NULL;
	narrow = malloc(n * sizeof *narrow);
	for (size_t i = 0; i < n; i++)
		ref_store(SKV_BF16, &narrow[i], w[i]);
	there = case_to(&k->c, narrow, n * sizeof *narrow);
	free(narrow);
	return there;
}

/* Interleaves the rows of gate and up. */
static const void *gate_up_to(struct code_case *k, const struct ref_codec *c)
{
	const size_t d = ref_dims(c);
	float *in;
	const void *there;

	if (!c->gate)
		return NULL;
	in = malloc(2 * c->hidden * d * sizeof *in);
	for (size_t i = 0; i < c->hidden; i++) {
		memcpy(in + 2 * i * d, c->gate + i * d, d * sizeof *in);
		memcpy(in + (2 * i + 1) * d, c->up + i * d, d * sizeof *in);
	}
	there = matrix_to(k, in, 2 * c->hidden * d);
	free(in);
	return there;
}

static struct skv_codec code_to(struct code_case *k, const struct ref_codec *c)
{
	const size_t d = ref_dims(c), parts = c->spans ? 2 * c->spans : 1;

	return (struct skv_codec){
		.first = c->first, .stride = c->stride, .n_refs = c->near, .ref_bits = c->ref_bits, .id_bytes = c->id_bytes,
		.bits = c->bits, .width = c->width, .scale_block = c->group, .spans = c->spans, .enc_hidden = c->hidden,
		.dec_hidden = c->wide, .rope_scale = (float)c->rope_scale, .rope_dims = c->rope_dims,
		.interleaved = c->interleaved,
		.enc_in = gate_up_to(k, c),
		.enc_out = matrix_to(k, c->down, c->width * (c->gate ? c->hidden : d) / parts),
		.dec_in = matrix_to(k, c->open, (size_t)c->wide * c->width),
		.dec_out = matrix_to(k, c->out, d * (c->open ? c->wide : c->width) / parts),
		.k_norm = c->k_norm ? case_to(&k->c, c->k_norm, c->dim * sizeof(float)) : NULL,
		.rope_freq = case_to(&k->c, c->turn, (c->rope_dims / 2 + 1) * sizeof(double)),
	};
}

/* All tables of a sequence; the rows of other layers have invalid ids. */
static const skv_pte *tables_to(struct code_case *k, uint32_t i)
{
	skv_pte *t = malloc(TABLES * k->stride * sizeof *t);
	const skv_pte *there;

	for (uint32_t e = 0; e < TABLES * k->stride; e++)
		t[e] = skv_pte_make(SKV_PTE_HOLE, SKV_PTE_ID_MASK);
	memcpy(t + k->c.sh.layer * k->stride, k->c.table[i], skv_pages_of(k->c.seq[i].len) * sizeof *t);
	for (uint32_t l = 0; l < CODE_LAYERS; l++) {
		memcpy(t + (LAYERS + 2 * l) * k->stride, k->layer[l].codes[i], k->stride * sizeof *t);
		memcpy(t + (LAYERS + 2 * l + 1) * k->stride, k->layer[l].refs[i], k->stride * sizeof *t);
	}
	there = case_to(&k->c, t, TABLES * k->stride * sizeof *t);
	free(t);
	return there;
}

bool code_on(struct code_case *k, const struct test_backend *b)
{
	const char *wrong = NULL;

	if (!case_on(&k->c, b))
		return false;
	case_append(&k->c, 400, 1);
	case_from(&k->c, k->seq, k->c.batch.seq, k->c.n * sizeof *k->seq);
	for (uint32_t i = 0; i < k->c.n; i++) {
		k->seq[i].table = tables_to(k, i);
		k->seq[i].layer_stride = k->stride;
	}
	for (uint32_t l = 0; l < CODE_LAYERS; l++) {
		k->layer[l].code = code_to(k, &k->layer[l].codec);
		k->sh[l] = k->c.sh;
		k->sh[l].codec = &k->layer[l].code;
		k->sh[l].codes = LAYERS + 2 * l;
		k->sh[l].refs = LAYERS + 2 * l + 1;
		wrong = b->kern->unsupported_codec(&k->sh[l]);
	}
	k->c.sh.codec = &k->layer[0].code; /* for case_work() */
	if (!wrong)
		return true;
	if (!b->device)
		ck_abort_msg("%s: %s", b->name, wrong);
	printf("%s: %u kv heads of %u, dtype %u: %s\n", b->name, k->c.sh.n_kv_heads, k->c.sh.head_dim, k->c.sh.dtype,
	       wrong);
	code_off(k);
	return false;
}

void code_off(struct code_case *k)
{
	k->c.sh.codec = NULL;
	case_off(&k->c);
}

struct skv_batch code_batch(struct code_case *k, uint32_t from, uint32_t n, const uint32_t *coded, const uint32_t *pack)
{
	struct skv_kseq seq[CASE_SEQS];
	struct skv_batch b = case_part(&k->c, 0, n);

	for (uint32_t i = 0; i < n; i++) {
		seq[i] = k->seq[from + i];
		seq[i].n_compressed = coded[from + i];
		seq[i].compress_to = pack[from + i];
		if (seq[i].compress_to > seq[i].n_compressed &&
		    seq[i].compress_to - seq[i].n_compressed > b.max_compress)
			b.max_compress = seq[i].compress_to - seq[i].n_compressed;
	}
	b.max_compress += rnd_below(40);
	b.seq = case_to(&k->c, seq, n * sizeof *seq);
	return b;
}

uint8_t *code_pool(const struct code_case *k)
{
	const size_t bytes = k->c.pool_pages * k->c.sh.page_bytes;
	uint8_t *pool = malloc(bytes);

	case_from(&k->c, pool, k->c.sh.pool, bytes);
	return pool;
}

void code_pool_to(const struct code_case *k, const uint8_t *pool)
{
	k->c.on->to(k->c.sh.pool, pool, k->c.pool_pages * k->c.sh.page_bytes);
}

/* ---- stored records -------------------------------------------------------------------------- */

uint8_t *code_record(const struct code_case *k, uint8_t *pool, uint32_t layer, uint32_t i, uint32_t token)
{
	const struct code_layer *l = &k->layer[layer];
	uint32_t number;
	const bool is = ref_is_reference(&l->codec, token, &number);
	const uint32_t bytes = is ? ref_reference_record(&l->codec) : ref_code_record(&l->codec);
	const uint32_t each = (uint32_t)(k->c.sh.page_bytes / bytes);
	const skv_pte e = (is ? l->refs : l->codes)[i][number / each];

	return pool + skv_pte_id(e) * k->c.sh.page_bytes + number % each * bytes;
}

void code_x(const struct code_case *k, const struct ref_codec *c, uint32_t i, uint32_t token, double *x)
{
	const uint32_t half = c->kv_heads * c->dim;

	for (uint32_t e = 0; e < half; e++) {
		x[e] = k->c.k[i][(size_t)token * half + e];
		x[half + e] = k->c.v[i][(size_t)token * half + e];
	}
	ref_turn(c, token, -1, x);
}

void code_reference(const struct code_case *k, uint8_t *pool, uint32_t layer, uint32_t i, uint32_t number, double *x)
{
	const struct ref_codec *c = &k->layer[layer].codec;
	const uint32_t token = number < c->first ? number : c->first + (number - c->first) * c->stride;

	ref_numbers(code_record(k, pool, layer, i, token), ref_dims(c), c->ref_bits, 64, c->dtype, x);
}

void code_base(const struct code_case *k, uint8_t *pool, uint32_t layer, uint32_t i, uint32_t token, double *b,
               double *terms)
{
	const struct ref_codec *c = &k->layer[layer].codec;
	const uint8_t *record = code_record(k, pool, layer, i, token);
	const uint32_t d = ref_dims(c);
	double *x = malloc(d * sizeof *x);

	memset(b, 0, d * sizeof *b);
	memset(terms, 0, d * sizeof *terms);
	for (uint32_t r = 0; r < c->near; r++) {
		const uint32_t id = ref_id(c, record, r), most = ref_usable(c, token) - 1;

		code_reference(k, pool, layer, i, id < most ? id : most, x);
		for (uint32_t e = 0; e < d; e++) {
			b[e] += x[e] / c->near;
			terms[e] += fabs(x[e]) / c->near;
		}
	}
	free(x);
}

/* ---- random records ------------------------------------------------------------------------- */

static void random_numbers(uint8_t *at, uint32_t n, uint32_t bits, uint32_t group, uint32_t dtype)
{
	for (uint32_t e = 0; e < n && bits == 16; e++)
		ref_store(dtype, at + e * (dtype == SKV_F32 ? 4 : 2), rnd_normal());
	if (bits == 16 || bits == 0)
		return;
	rnd_bytes(at, ref_numbers_bytes(n, bits, group, 2));
	for (uint32_t g = 0; g < n / group; g++) {
		ref_store(SKV_BF16, at + 4 * g, (float)(rnd_unit() * 4 / pow(2, bits)));
		ref_store(SKV_BF16, at + 4 * g + 2, -2 * (float)rnd_unit());
	}
}

void code_make_up_record(const struct code_case *k, uint8_t *pool, uint32_t i, uint32_t token, uint32_t usable)
{
	const struct ref_codec *c = &k->layer[0].codec;
	uint8_t *at = code_record(k, pool, 0, i, token);
	uint32_t number;

	if (ref_is_reference(c, token, &number)) {
		random_numbers(at, ref_dims(c), c->ref_bits, 64, c->dtype);
		return;
	}
	for (uint32_t r = 0; r < c->near; r++, at += c->id_bytes) {
		const uint32_t id = rnd_below(8) ? rnd_below(usable) : (uint32_t)rnd64();

		memcpy(at, &id, c->id_bytes);
	}
	random_numbers(at, c->width, c->bits, c->group, SKV_BF16);
}

void code_make_up(const struct code_case *k, uint8_t *pool, uint32_t i, uint32_t coded)
{
	const struct ref_codec *c = &k->layer[0].codec;

	for (uint32_t t = 0; t < coded; t++)
		if (t >= c->first || c->stride)
			code_make_up_record(k, pool, i, t, ref_usable(c, t));
	for (uint32_t p = c->first / SKV_PAGE_TOKENS; p < coded / SKV_PAGE_TOKENS; p++)
		memset(pool + skv_pte_id(k->c.table[i][p]) * k->c.sh.page_bytes, 0xff, k->c.sh.page_bytes);
}

void code_far(struct code_case *k, uint32_t last)
{
	k->stride = last / SKV_PAGE_TOKENS;
	for (uint32_t l = 0; l < CODE_LAYERS; l++) {
		struct code_layer *y = &k->layer[l];

		y->codes[0] = realloc(y->codes[0], k->stride * sizeof(skv_pte));
		y->refs[0] = realloc(y->refs[0], k->stride * sizeof(skv_pte));
		for (uint32_t p = 1; p < k->stride; p++) {
			y->codes[0][p] = y->codes[0][0];
			y->refs[0][p] = y->refs[0][0];
		}
	}
}

void code_far_records(const struct code_case *k, uint8_t *pool, uint32_t last)
{
	for (uint32_t t = 0; t < 10 * SKV_PAGE_TOKENS * SKV_PAGE_TOKENS; t++) /* more records than a page has */
		code_make_up_record(k, pool, 0, t, last / k->layer[0].codec.stride);
	code_pool_to(k, pool);
}

void code_decompressed(const struct code_case *k, uint8_t *pool, uint32_t i, uint32_t token, double *x, double *terms)
{
	const struct ref_codec *c = &k->layer[0].codec;
	const uint32_t d = ref_dims(c);
	double *z = malloc((c->width + 1) * sizeof *z), *b = malloc(d * sizeof *b), *sizes = malloc(d * sizeof *sizes);
	uint32_t number;

	if (ref_is_reference(c, token, &number)) {
		code_reference(k, pool, 0, i, number, x);
		for (uint32_t e = 0; e < d; e++)
			terms[e] = fabs(x[e]);
	} else {
		code_base(k, pool, 0, i, token, b, sizes);
		ref_numbers(code_record(k, pool, 0, i, token) + c->near * c->id_bytes, c->bits ? c->width : 0, c->bits,
		            c->group, SKV_BF16, z);
		ref_decode(c, z, b, sizes, x, terms);
	}
	ref_turn(c, token, 1, x);
	/* an element that RoPE rotates is as large as the largest of its head, at most twice */
	for (uint32_t h = 0; h < c->kv_heads; h++) {
		double most = 0;

		for (uint32_t e = 0; e < c->dim; e++)
			most = fmax(most, terms[h * c->dim + e]);
		for (uint32_t e = 0; e < c->rope_dims; e++)
			terms[h * c->dim + e] = 2 * c->rope_scale * most;
	}
	free(z);
	free(b);
	free(sizes);
}
