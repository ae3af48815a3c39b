/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/compress/quantize.c - KV quantization of whole blocks of tokens (KIVI); see kernels/compress.h.
 *
 * A work item is a record: one kv head of a block of tokens. The contents of a record depend only on the block's rows.
 */
#include "kernels/host/compress/compress.h"
#include "kernels/host/compress/quant.h"

struct quantize_params {
	const struct skv_shape *sh; /* [n_layers]: shapes of the layers */
	const struct skv_batch *batch;
	uint32_t *first; /* [n + 1]: number of blocks before those of sequence i, for one layer */
};

/*
 * Gathers the K rows, or with `v` the V rows, of kv head h for a block of tokens from `token` on, in
 * to[SKV_QUANT_BLOCK][head_dim].
 */
static void gather(const struct skv_shape *sh, const struct skv_kseq *s, uint32_t token, uint32_t h, bool v, float *to)
{
	const skv_pte *table = skv_layer_table(sh, s);

	for (uint32_t t = token; t < token + SKV_QUANT_BLOCK; t++) {
		const uint8_t *row = skv_key_row(sh, table[t / SKV_PAGE_TOKENS], h, t) + (v ? skv_v_offset(sh) : 0);
		for (uint32_t d = 0; d < sh->head_dim; d += VL, to += VL)
			v_storef(to, v_load(sh->dtype, row + d * skv_dtype_bytes(sh->dtype)));
	}
}

static void quantize_record(const struct quant *l, const struct skv_kseq *s, uint32_t token, uint32_t h)
{
	const uint32_t dim = l->sh->head_dim, numbers = SKV_QUANT_BLOCK * dim;
	uint8_t *to = quant_record(l, s, token, h);
	float x[SKV_QUANT_BLOCK * SKV_MAX_HEAD_DIM];

	memset(to, 0, l->at.bytes);
	gather(l->sh, s, token, h, false, x);
	for (uint32_t d = 0; d < dim; d++)
		quantize_block(x + d, dim, SKV_QUANT_BLOCK, l->bits, to + 4 * d, to + l->at.k, d, dim);
	gather(l->sh, s, token, h, true, x);
	for (uint32_t i = 0; i < numbers; i += l->block)
		quantize_block(x + i, 1, l->block, l->bits, to + l->at.v_scales + i / l->block * 4, to + l->at.v, i, 1);
}

static void quantize_item(void *ctx, uint32_t item, int thread)
{
	const struct quantize_params *p = ctx;
	const uint32_t heads = p->sh->n_kv_heads, records = p->first[p->batch->n] * heads, block = item % records / heads;
	const uint32_t i = skv_range_of(p->first, p->batch->n, block);
	const struct skv_kseq *s = &p->batch->seq[i];
	const struct quant l = quant_of(&p->sh[item / records]);
	(void)thread;

	quantize_record(&l, s, s->n_compressed + (block - p->first[i]) * SKV_QUANT_BLOCK, item % heads);
}

void ISA(quantize)(const struct skv_shape *sh, uint32_t n_layers, const struct skv_batch *batch,
                   const struct skv_workspace *work)
{
	struct carve c = carve_begin(work);
	struct quantize_params p = {.sh = sh, .batch = batch, .first = carve(&c, (batch->n + 1) * sizeof *p.first)};

	p.first[0] = 0;
	for (uint32_t i = 0; i < batch->n; i++) {
		const struct skv_kseq *s = &batch->seq[i];
		p.first[i + 1] = p.first[i] + (s->compress_to > s->n_compressed ? (s->compress_to - s->n_compressed) / SKV_QUANT_BLOCK : 0);
	}
	skv_run(work->threads, n_layers * p.first[batch->n] * sh->n_kv_heads, quantize_item, &p);
}
