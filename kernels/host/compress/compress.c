/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/compress/compress.c - latent compression: makes references and codes of tokens; see kernels/compress.h.
 *
 * compress() first stores all new references. Then codes are made, in tiles of TOKENS tokens. The differences in codes
 * are taken from the stored form of references, because decompress() reads that form. The work items of both passes are
 * independent, so neither the number of threads nor the chunking of a prompt changes a record.
 */
#include "kernels/host/compress/compress.h"
#include "kernels/host/compress/nearest-refs.h"
#include "kernels/host/compress/records.h"
#include "kernels/host/runtime/gemm.h"

#define HIDDEN 64u /* number of rows of the matrices gate and up with which rows are multiplied at a time */

struct compress_params {
	const struct skv_shape *sh; /* [n_layers]: shapes of the layers */
	const struct skv_batch *batch;
	const float *x; /* x over all ranks, from gather_tokens(), or NULL: x is made from this rank's rows */
	uint32_t *first; /* [n + 1]: number of tiles before those of sequence i, for one layer */
	struct per_thread space;
};

/* The buffers of one thread. */
struct tile {
	float *x, *b;   /* [TOKENS][d]: x of tokens, and the means b of their references */
	float *row;     /* [d]: one reference */
	struct ref_buffers refs;
	float *h;       /* [TOKENS][enc_hidden]: hidden layer of E */
	float *gate, *up; /* [TOKENS][HIDDEN]: a part of gate x and of up x */
	float *z;       /* [TOKENS][width]: codes z */
};

static size_t tile_bytes(const struct latent *k)
{
	const size_t floats = 2 * TOKENS * k->d + k->d + TOKENS * k->c->enc_hidden + 2 * TOKENS * HIDDEN +
	                      TOKENS * k->c->width;

	return carve_size(floats * sizeof(float) + 7 * 64 + ref_buffers_bytes(k->d));
}

static struct tile tile_of(const struct compress_params *p, const struct latent *k, int thread)
{
	struct carve c = thread_begin(&p->space, thread);

	return (struct tile){
		.x = carve(&c, TOKENS * k->d * sizeof(float)),
		.b = carve(&c, TOKENS * k->d * sizeof(float)),
		.row = carve(&c, k->d * sizeof(float)),
		.refs = ref_buffers_carve(&c, k->d),
		.h = carve(&c, TOKENS * k->c->enc_hidden * sizeof(float)),
		.gate = carve(&c, TOKENS * HIDDEN * sizeof(float)),
		.up = carve(&c, TOKENS * HIDDEN * sizeof(float)),
		.z = carve(&c, TOKENS * k->c->width * sizeof(float)),
	};
}

size_t ISA(compress_bytes)(const struct skv_shape *sh, uint32_t n_seqs, int threads)
{
	const struct latent k = latent_of(sh);

	return carve_size((n_seqs + 1) * sizeof(uint32_t)) + threads * tile_bytes(&k);
}

/* Returns the first token of a sequence that the call compresses. */
static uint32_t compress_from(const struct skv_codec *c, const struct skv_kseq *s)
{
	return skv_max(s->n_compressed, c->first);
}

/* Makes x[own_d], this rank's part of x, for a token that is a row in a page: K without RoPE, then V. */
static void gather(const struct latent *k, const struct skv_kseq *s, uint32_t token, float *x)
{
	const struct skv_shape *sh = k->sh;
	const uint32_t dim = sh->head_dim;
	const skv_pte e = skv_layer_table(sh, s)[token / SKV_PAGE_TOKENS];
	struct angles a;

	for (uint32_t h = 0; h < sh->n_kv_heads; h++) {
		const uint8_t *row = skv_key_row(sh, e, h, token);
		for (uint32_t i = 0; i < dim; i += VL) {
			const size_t at = i * skv_dtype_bytes(sh->dtype);
			v_storef(x + h * dim + i, v_load(sh->dtype, row + at));
			v_storef(x + k->own_half + h * dim + i, v_load(sh->dtype, row + skv_v_offset(sh) + at));
		}
	}
	angles_at(k, token, -1, 1 / k->c->rope_scale, &a);
	rotate(k, &a, x);
}

/*
 * Returns x over all ranks of sequence i's tokens from its n_compressed on, or NULL if the caller of compress() gave
 * none.
 */
static const float *given_of(const struct compress_params *p, const struct latent *k, uint32_t i)
{
	return p->x ? p->x + (size_t)i * p->batch->max_compress * k->d : NULL;
}

/* Makes x[d] of a token: from `given`, the x over all ranks, or, if that is NULL, from the token's rows. */
static void take(const struct latent *k, const struct skv_kseq *s, const float *given, uint32_t token, float *x)
{
	if (given)
		memcpy(x, given + (size_t)(token - s->n_compressed) * k->d, k->d * sizeof *x);
	else
		gather(k, s, token, x);
}

/* ---- quantization ---------------------------------------------------------------------------- */

/*
 * Quantizes n numbers: writes the scale and the zero point of each scale block, then the quantized numbers of all
 * blocks; see kernels/compress.h.
 */
static void quantize_numbers(const float *x, uint32_t n, uint32_t bits, uint32_t block, uint8_t *to)
{
	memset(to + n / block * 4, 0, n * bits / 8);
	for (uint32_t g = 0; g < n; g += block)
		quantize_block(x + g, 1, block, bits, to + g / block * 4, to + n / block * 4, g, 1);
}

static void store_numbers(const float *x, uint32_t n, uint32_t bits, uint32_t block, uint32_t dtype, uint8_t *to)
{
	if (bits == 16)
		for (uint32_t i = 0; i < n; i += VL)
			v_store(dtype, to + i * skv_dtype_bytes(dtype), v_loadf(x + i));
	else if (bits)
		quantize_numbers(x, n, bits, block, to);
}

/* ---- references ------------------------------------------------------------------------------ */

static void store_ref(const struct latent *k, const struct skv_kseq *s, const float *given, uint32_t token, float *x)
{
	uint8_t *to = ref_at(k, s, skv_refs_before(k->c, token));

	take(k, s, given, token, x);
	memset(to, 0, k->ref_bytes);
	store_numbers(x, k->d, k->c->ref_bits, SKV_REF_SCALE_BLOCK, k->sh->dtype, to);
}

/* A work item: stores the new references of a sequence in a layer. */
static void refs_item(void *ctx, uint32_t item, int thread)
{
	const struct compress_params *p = ctx;
	const uint32_t i = item % p->batch->n;
	const struct skv_kseq *s = &p->batch->seq[i];
	const struct latent k = latent_of(&p->sh[item / p->batch->n]);
	const struct tile t = tile_of(p, &k, thread);

	if (s->compress_to <= compress_from(k.c, s) || !k.c->stride)
		return;
	for (uint32_t token = s->n_compressed; token < s->compress_to; token++)
		if (skv_is_ref(k.c, token))
			store_ref(&k, s, given_of(p, &k, i), token, t.x);
}

static void store_ids(const struct latent *k, struct nearest_refs *best, uint8_t *record)
{
	for (uint32_t i = 1; i < k->c->n_refs; i++) /* sorts the reference numbers in ascending order */
		for (uint32_t j = i; j > 0 && best->id[j] < best->id[j - 1]; j--) {
			const uint32_t id = best->id[j];
			best->id[j] = best->id[j - 1];
			best->id[j - 1] = id;
		}
	for (uint32_t i = 0; i < k->c->n_refs; i++) {
		const uint16_t small = (uint16_t)best->id[i];
		if (k->c->id_bytes == 2)
			memcpy(record + 2 * i, &small, sizeof small);
		else
			memcpy(record + 4 * i, &best->id[i], sizeof best->id[i]);
	}
}

/* ---- codes ----------------------------------------------------------------------------------- */

/*
 * Computes the hidden layer of E for x[m][d]: h[m][enc_hidden] = silu(gate x) * up x; with `b`, h becomes h minus that.
 */
static void hidden(const struct latent *k, const struct tile *t, const float *x, uint32_t m, bool b)
{
	const float *in = k->c->enc_in;
	const uint32_t n = k->c->enc_hidden, d = k->d;

	for (uint32_t j0 = 0; j0 < n; j0 += HIDDEN) {
		dots(x, d, m, in + (size_t)2 * j0 * d, 2 * d, HIDDEN, d, t->gate, HIDDEN);
		dots(x, d, m, in + (size_t)(2 * j0 + 1) * d, 2 * d, HIDDEN, d, t->up, HIDDEN);
		for (uint32_t i = 0; i < m; i++)
			for (uint32_t j = 0; j < HIDDEN; j += VL) {
				float *h = t->h + i * n + j0 + j;
				const vf y = v_silu(v_loadf(t->gate + i * HIDDEN + j)) *
				             v_loadf(t->up + i * HIDDEN + j);
				v_storef(h, b ? v_loadf(h) - y : y);
			}
	}
}

/*
 * Computes z[m][width] = E(x) - E(b). The last matrix of E, `down`, is linear, so the difference is taken before its
 * product.
 */
static void encode(const struct latent *k, const struct tile *t, uint32_t m)
{
	const float *from = t->x, *down = k->c->enc_out;
	uint32_t n = k->d;

	if (k->c->enc_hidden) {
		hidden(k, t, t->x, m, false);
		if (k->c->n_refs)
			hidden(k, t, t->b, m, true);
		from = t->h;
		n = k->c->enc_hidden;
	} else {
		for (uint32_t i = 0; i < m * n; i += VL)
			v_storef(t->x + i, v_loadf(t->x + i) - v_loadf(t->b + i));
	}
	const uint32_t rows = k->c->width / k->parts, cols = n / k->parts;
	for (uint32_t i = 0; i < k->parts; i++)
		dots(from + i * cols, n, m, down + (size_t)i * rows * cols, cols, rows, cols, t->z + i * rows,
		     k->c->width);
}

static void codes_tile(const struct latent *k, const struct skv_kseq *s, const float *given, const struct tile *t, uint32_t from,
                       uint32_t to)
{
	const struct skv_codec *c = k->c;
	struct nearest_refs best[TOKENS];
	uint32_t token[TOKENS], m = 0;

	for (uint32_t x = from; x < to; x++)
		if (!skv_is_ref(c, x)) {
			take(k, s, given, x, t->x + m * k->d);
			token[m++] = x;
		}
	if (m == 0)
		return;
	if (c->n_refs)
		ISA(nearest_refs)(k, s, &t->refs, t->x, token, m, best);
	for (uint32_t i = 0; i < m; i++) {
		uint8_t *record = code_at(k, s, token[i]);
		uint32_t ids[SKV_MAX_REFS];

		memset(record, 0, k->code_bytes);
		store_ids(k, &best[i], record);
		read_ids(k, record, skv_refs_before(c, token[i] + 1), ids);
		mean_of(k, s, read_ref, k->d, ids, t->row, t->b + i * k->d);
	}
	if (c->bits == 0)
		return;
	encode(k, t, m);
	for (uint32_t i = 0; i < m; i++)
		store_numbers(t->z + i * c->width, c->width, c->bits, c->scale_block, SKV_BF16,
		              code_at(k, s, token[i]) + c->n_refs * c->id_bytes);
}

/* A work item: makes the codes of TOKENS tokens of a sequence in a layer. */
static void codes_item(void *ctx, uint32_t item, int thread)
{
	const struct compress_params *p = ctx;
	const uint32_t tiles = p->first[p->batch->n], i = skv_range_of(p->first, p->batch->n, item % tiles);
	const struct skv_kseq *s = &p->batch->seq[i];
	const struct latent k = latent_of(&p->sh[item / tiles]);
	const struct tile t = tile_of(p, &k, thread);
	const uint32_t from = compress_from(k.c, s) + (item % tiles - p->first[i]) * TOKENS;

	codes_tile(&k, s, given_of(p, &k, i), &t, from, skv_min(from + TOKENS, s->compress_to));
}

void ISA(compress)(const struct skv_shape *sh, uint32_t n_layers, const struct skv_batch *batch, const float *x,
                   const struct skv_workspace *work)
{
	const uint32_t n = batch->n;
	struct carve c = carve_begin(work);
	struct compress_params p = {.sh = sh, .batch = batch, .x = x};

	if (sh->codec->kind == SKV_COMPRESS_QUANT) {
		ISA(quantize)(sh, n_layers, batch, work);
		return;
	}
	p.first = carve(&c, (n + 1) * sizeof *p.first);
	p.space = per_thread_rest(&c, work->threads);
	p.first[0] = 0;
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t from = compress_from(sh->codec, &batch->seq[i]), to = batch->seq[i].compress_to;
		p.first[i + 1] = p.first[i] + (to > from ? (to - from + TOKENS - 1) / TOKENS : 0);
	}
	skv_run(work->threads, n_layers * n, refs_item, &p);
	skv_run(work->threads, n_layers * p.first[n], codes_item, &p);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

struct gather_params {
	struct latent k;
	const struct skv_batch *batch;
	float *x;
	struct per_thread space;
};

/* A work item: makes this rank's part of x for one token of a sequence. */
static void gather_item(void *ctx, uint32_t item, int thread)
{
	const struct gather_params *p = ctx;
	const struct latent *k = &p->k;
	const struct skv_kseq *s = &p->batch->seq[item / p->batch->max_compress];
	const uint32_t token = s->n_compressed + item % p->batch->max_compress;
	float *x = p->x + (size_t)item * k->d, *row;
	struct carve c = thread_begin(&p->space, thread);

	for (uint32_t i = 0; i < k->d; i++)
		x[i] = -INFINITY;
	if (token >= s->compress_to)
		return;
	row = carve(&c, k->own_d * sizeof *row);
	gather(k, s, token, row);
	memcpy(x + k->own, row, k->own_half * sizeof *x);
	memcpy(x + k->half + k->own, row + k->own_half, k->own_half * sizeof *x);
}

void ISA(gather_tokens)(const struct skv_shape *sh, const struct skv_batch *batch, float *x, const struct skv_workspace *work)
{
	struct carve c = carve_begin(work);
	struct gather_params p = {.k = latent_of(sh), .batch = batch, .x = x};

	p.space = per_thread_rest(&c, work->threads);
	skv_run(work->threads, batch->n * batch->max_compress, gather_item, &p);
}
