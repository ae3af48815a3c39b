/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/compress/decompress.c - turns compressed tokens into rows of K and V; see kernels/compress.h.
 *
 * A work item is a tile of TOKENS rows of a sequence. The codes of a tile are decoded together, with independent sums
 * for each code.
 */
#include "kernels/host/compress/compress.h"
#include "kernels/host/compress/quant.h"
#include "kernels/host/compress/records.h"
#include "kernels/host/runtime/gemm.h"
#include "kernels/select.h"

struct decompress_params {
	struct latent k;
	const struct skv_batch *batch;
	const struct skv_index_list *list; /* NULL: rows are made of all tokens */
	const struct skv_decompressed *to;
	uint32_t *rows;  /* [n]: number of rows to make for each sequence */
	uint32_t *first; /* [n + 1]: number of tiles before those of sequence i */
	struct per_thread space;
};

/* The buffers of one thread. */
struct tile {
	float *z;       /* [TOKENS][width]: codes z */
	float *hidden;  /* [TOKENS][dec_hidden]: hidden layer of Dec */
	float *x;       /* [TOKENS][own_d]: decoded x */
	float *b, *row; /* [own_d]: mean of a token's references; one reference */
};

size_t ISA(decompress_bytes)(const struct skv_shape *sh, uint32_t n_seqs, int threads)
{
	const uint32_t d = skv_token_dims(sh);
	const size_t floats = TOKENS * (sh->codec->width + sh->codec->dec_hidden + d) + 2 * d;

	return 2 * carve_size((n_seqs + 1) * sizeof(uint32_t)) + threads * carve_size(floats * sizeof(float) + 5 * 64);
}

/* Returns the number of rows to make for a sequence. */
static uint32_t rows_of(const struct decompress_params *r, uint32_t i)
{
	const struct skv_kseq *s = &r->batch->seq[i];
	uint32_t n;

	if (!r->list && !r->to->pool)
		return s->n_compressed > r->k.c->first ? s->n_compressed - r->k.c->first : 0;
	if (!r->list)
		return s->len;
	for (n = 0; n < r->list->count[i] && r->list->ids[(size_t)i * r->list->stride + n] < s->len; n++)
		;
	return n;
}

static uint32_t token_of(const struct decompress_params *r, uint32_t i, uint32_t row)
{
	if (r->list)
		return r->list->ids[(size_t)i * r->list->stride + row];
	return r->to->pool ? row : r->k.c->first + row;
}

/*
 * Returns the address to which kv head 0's K of a row is written; the K and V of other heads are placed as in any page.
 */
static uint8_t *dst_of(const struct decompress_params *r, uint32_t i, uint32_t row)
{
	const struct skv_shape *sh = r->k.sh;
	const uint32_t token = token_of(r, i, row), at = r->to->pool ? row : token;
	uint8_t *pool = r->to->pool ? r->to->pool : sh->pool;
	uint32_t page = i * r->to->pages + at / SKV_PAGE_TOKENS;

	if (!r->to->pool)
		page = skv_pte_id(skv_layer_table(sh, &r->batch->seq[i])[at / SKV_PAGE_TOKENS]);
	return pool + page * sh->page_bytes + at % SKV_PAGE_TOKENS * skv_row_bytes(sh);
}

static void copy_row(const struct skv_shape *sh, const uint8_t *from, uint8_t *to)
{
	for (uint32_t h = 0; h < sh->n_kv_heads; h++) {
		const size_t at = h * SKV_PAGE_TOKENS * skv_row_bytes(sh);
		memcpy(to + at, from + at, skv_row_bytes(sh));
		memcpy(to + skv_v_offset(sh) + at, from + skv_v_offset(sh) + at, skv_row_bytes(sh));
	}
}

/* Applies RoPE to the K of x, and stores x as rows of K and V in a page. */
static void store_row(const struct latent *k, uint32_t token, float *x, uint8_t *to)
{
	const struct skv_shape *sh = k->sh;
	const uint32_t dim = sh->head_dim;
	struct angles a;

	angles_at(k, token, 1, k->c->rope_scale, &a);
	rotate(k, &a, x);
	for (uint32_t h = 0; h < sh->n_kv_heads; h++)
		for (uint32_t i = 0; i < dim; i += VL) {
			uint8_t *at = to + h * SKV_PAGE_TOKENS * skv_row_bytes(sh) + i * skv_dtype_bytes(sh->dtype);
			v_store(sh->dtype, at, v_loadf(x + h * dim + i));
			v_store(sh->dtype, at + skv_v_offset(sh), v_loadf(x + k->own_half + h * dim + i));
		}
}

/*
 * Computes x[m][own_d] = Dec(z) for this rank's heads. With several ranks the K and the V of a rank's heads are two
 * separate ranges of Dec's output.
 */
static void decode(const struct latent *k, const struct tile *t, uint32_t m)
{
	const struct skv_codec *c = k->c;
	const uint32_t n = c->dec_hidden ? c->dec_hidden : c->width, cols = n / k->parts;
	const uint32_t pieces = k->parts > 1 ? k->parts : 2, rows = k->own_d / pieces, part = k->parts > 1;
	const float *from = c->dec_hidden ? t->hidden : t->z, *out = c->dec_out;

	if (c->dec_hidden) {
		dots(t->z, c->width, m, c->dec_in, c->width, n, c->width, t->hidden, n);
		for (uint32_t i = 0; i < m * n; i += VL)
			v_storef(t->hidden + i, v_silu(v_loadf(t->hidden + i)));
	}
	for (uint32_t i = 0; i < pieces; i++)
		dots(from + part * i * cols, n, m, out + (i * (size_t)(k->d / pieces) + k->own) * cols, cols, rows, cols, t->x + i * rows,
		     k->own_d);
}

/* Normalizes the decoded K of all heads, as the model's norm of K does (k_norm in struct skv_codec). */
static void norm_heads(const struct latent *k, float *x)
{
	const uint32_t dim = k->sh->head_dim;
	const float *w = k->c->k_norm;

	for (float *head = x; head < x + k->own_half; head += dim) {
		float sum = 0;
		for (uint32_t i = 0; i < dim; i++) {
			const float u = w[i] != 0 ? head[i] / w[i] : 0;
			sum += u * u;
		}
		const float scale = sum > 0 ? 1 / sqrtf(sum / (float)dim) : 0;
		for (uint32_t i = 0; i < dim; i++)
			head[i] = w[i] != 0 ? head[i] * scale : 0;
	}
}

/* Makes the rows of m tokens that have codes; row[m] are their indices among the rows to make. */
static void decode_rows(const struct decompress_params *r, uint32_t i, const struct tile *t, const uint32_t *row,
                        uint32_t m)
{
	const struct latent *k = &r->k;
	const struct skv_codec *c = k->c;
	const struct skv_kseq *s = &r->batch->seq[i];
	const struct stored of_z = {c->width, c->bits, c->scale_block, SKV_BF16};

	if (c->bits == 0)
		memset(t->x, 0, m * k->own_d * sizeof *t->x);
	for (uint32_t j = 0; j < m && c->bits; j++)
		read_numbers(&of_z, code_at(k, s, token_of(r, i, row[j])) + c->n_refs * c->id_bytes, 0, c->width, t->z + j * c->width);
	if (c->bits)
		decode(k, t, m);
	for (uint32_t j = 0; j < m; j++) {
		const uint32_t token = token_of(r, i, row[j]);
		float *x = t->x + j * k->own_d;
		uint32_t ids[SKV_MAX_REFS];

		read_ids(k, code_at(k, s, token), skv_refs_before(c, token + 1), ids);
		mean_of(k, s, read_own_ref, k->own_d, ids, t->row, t->b);
		for (uint32_t e = 0; e < k->own_d; e += VL)
			v_storef(x + e, v_loadf(x + e) + v_loadf(t->b + e));
		if (c->k_norm)
			norm_heads(k, x);
		store_row(k, token, x, dst_of(r, i, row[j]));
	}
}

/*
 * Dequantizes the K and V of a token to x. With KV quantization K has RoPE applied already, and the codec has no RoPE
 * (rope_dims is 0), so store_row() does not rotate K again.
 */
static void dequantize(const struct latent *k, const struct skv_kseq *s, uint32_t token, float *x)
{
	const struct quant l = quant_of(k->sh);
	const uint32_t dim = k->sh->head_dim;

	for (uint32_t h = 0; h < k->sh->n_kv_heads; h++) {
		const uint8_t *record = quant_record(&l, s, token, h);
		dequantize_keys(&l, record, token % SKV_QUANT_BLOCK, 1, x + h * dim);
		dequantize_values(&l, record, token % SKV_QUANT_BLOCK, 1, x + k->own_half + h * dim);
	}
}

static void decompress_item(void *ctx, uint32_t item, int thread)
{
	const struct decompress_params *r = ctx;
	const struct latent *k = &r->k;
	const uint32_t i = skv_range_of(r->first, r->batch->n, item);
	const struct skv_kseq *s = &r->batch->seq[i];
	const uint32_t from = (item - r->first[i]) * TOKENS, to = skv_min(from + TOKENS, r->rows[i]);
	struct carve c = thread_begin(&r->space, thread);
	struct tile t = {
		.z = carve(&c, TOKENS * k->c->width * sizeof(float)),
		.hidden = carve(&c, TOKENS * k->c->dec_hidden * sizeof(float)),
		.x = carve(&c, TOKENS * k->own_d * sizeof(float)),
		.b = carve(&c, k->own_d * sizeof(float)),
		.row = carve(&c, k->own_d * sizeof(float)),
	};
	uint32_t codes[TOKENS], m = 0; /* indices of the rows of tokens that have codes */

	for (uint32_t row = from; row < to; row++) {
		const uint32_t token = token_of(r, i, row);
		if (token < k->c->first || token >= s->n_compressed) {
			const skv_pte e = skv_layer_table(k->sh, s)[token / SKV_PAGE_TOKENS];
			copy_row(k->sh, skv_key_row(k->sh, e, 0, token), dst_of(r, i, row));
		} else if (k->c->kind == SKV_COMPRESS_QUANT) {
			dequantize(k, s, token, t.x);
			store_row(k, token, t.x, dst_of(r, i, row));
		} else if (skv_is_ref(k->c, token)) {
			read_own_ref(k, s, skv_refs_before(k->c, token), t.x);
			store_row(k, token, t.x, dst_of(r, i, row));
		} else {
			codes[m++] = row;
		}
	}
	if (m)
		decode_rows(r, i, &t, codes, m);
}

/* Describes the decompressed rows of sequence i for attention, in to->seq and to->table. */
static void describe(const struct decompress_params *r, uint32_t i)
{
	const struct skv_decompressed *to = r->to;
	skv_pte *table = to->table + (size_t)i * to->pages;

	assert(skv_pages_of(r->rows[i]) <= to->pages);
	for (uint32_t p = 0; p < to->pages; p++)
		table[p] = skv_pte_make(SKV_PTE_PRIVATE, i * to->pages + p);
	to->seq[i] = r->batch->seq[i];
	to->seq[i].table = table;
	to->seq[i].layer_stride = 0;
	to->seq[i].len = r->rows[i];
	to->seq[i].n_compressed = to->seq[i].compress_to = 0;
}

void ISA(decompress)(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_index_list *list,
                  const struct skv_decompressed *to, const struct skv_workspace *work)
{
	struct carve c = carve_begin(work);
	struct decompress_params r = {.k = latent_of(sh), .batch = batch, .list = list, .to = to};

	r.rows = carve(&c, batch->n * sizeof *r.rows);
	r.first = carve(&c, (batch->n + 1) * sizeof *r.first);
	r.space = per_thread_rest(&c, work->threads);
	r.first[0] = 0;
	for (uint32_t i = 0; i < batch->n; i++) {
		r.rows[i] = rows_of(&r, i);
		r.first[i + 1] = r.first[i] + (r.rows[i] + TOKENS - 1) / TOKENS;
		if (to->pool)
			describe(&r, i);
	}
	skv_run(work->threads, r.first[batch->n], decompress_item, &r);
}
