/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/compress/quant.h - dequantizes K and V to fp32 (see kernels/compress.h), for quantize.c, decompress.c
 * and decode.c.
 */
#ifndef SKV_HOST_QUANT_H
#define SKV_HOST_QUANT_H

#include "kernels/compress.h"
#include "kernels/host/compress/bits.h"
#include "kernels/host/runtime/host.h"
#include "kernels/host/runtime/simd.h"

/* The shape of a layer with KV quantization, and values derived from its codec. */
struct quant {
	const struct skv_shape *sh;
	uint32_t bits, block, row; /* block: elements of a scale block of V; row: bytes of a token's numbers */
	struct skv_quant_layout at;
};

static inline struct quant quant_of(const struct skv_shape *sh)
{
	const struct skv_codec *c = sh->codec;

	return (struct quant){.sh = sh, .bits = c->bits, .block = c->scale_block, .row = sh->head_dim * c->bits / 8,
	                      .at = skv_quant_layout_of(c, sh->head_dim)};
}

/* Returns the record of kv head h for the block of tokens that has `token`. */
static inline uint8_t *quant_record(const struct quant *l, const struct skv_kseq *s, uint32_t token, uint32_t h)
{
	return skv_record_at(l->sh, s, l->sh->codes, l->at.bytes, token / SKV_QUANT_BLOCK * l->sh->n_kv_heads + h);
}

INLINE vf load_quantized(uint32_t bits, const uint8_t *p)
{
	return bits == 4 ? v_load_u4(p) : v_load_u2(p);
}

/* Dequantizes the K rows of n tokens of a record's block, from token t of the block on, to to[n][head_dim]. */
static inline void dequantize_keys(const struct quant *l, const uint8_t *record, uint32_t t, uint32_t n, float *to)
{
	const uint32_t dim = l->sh->head_dim;
	const uint8_t *q = record + l->at.k + t * l->row;

	for (uint32_t d = 0; d < dim; d += VL) {
		vf scale, zero;
		v_load_pairs(record + 4 * d, &scale, &zero);
		for (uint32_t i = 0; i < n; i++)
			v_storef(to + i * dim + d,
			         v_fma(load_quantized(l->bits, q + i * l->row + d * l->bits / 8), scale, zero));
	}
}

/* Dequantizes the V rows of n tokens of a record's block, from token t of the block on, to to[n][head_dim]. */
static inline void dequantize_values(const struct quant *l, const uint8_t *record, uint32_t t, uint32_t n, float *to)
{
	const uint32_t dim = l->sh->head_dim, blocks = dim / l->block;
	const uint8_t *q = record + l->at.v + t * l->row, *scales = record + l->at.v_scales + 4 * t * blocks;

	for (uint32_t i = 0; i < n * blocks; i++) {
		const vf scale = v_set(of_bf16(scales + 4 * i)), zero = v_set(of_bf16(scales + 4 * i + 2));
		for (uint32_t d = i * l->block; d < (i + 1) * l->block; d += VL)
			v_storef(to + d, v_fma(load_quantized(l->bits, q + d * l->bits / 8), scale, zero));
	}
}

#endif
