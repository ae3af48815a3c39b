/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/compress-check.h - checks of a codec that are common to all backends. The checks are inline functions of a
 * header because both the host's kernels and a device's module, which are linked separately, need them.
 */
#ifndef SKV_COMPRESS_CHECK_H
#define SKV_COMPRESS_CHECK_H

#include "kernels/compress.h"

/* Returns what is wrong with the references of the codec, or NULL. */
static inline const char *skv_refs_wrong(const struct skv_codec *c)
{
	if (!c->stride != !c->n_refs)
		return "stride and n_refs must both be 0, or neither";
	if (!c->stride)
		return NULL;
	if (c->stride < 2 || c->n_refs > SKV_MAX_REFS || c->n_refs > c->first)
		return "stride must be at least 2, n_refs at most 4 and at most first";
	if (c->ref_bits != 16 && c->ref_bits != 8 && c->ref_bits != 4)
		return "ref_bits must be 16, 8 or 4";
	if (c->id_bytes != 2 && c->id_bytes != 4)
		return "id_bytes must be 2 or 4";
	return NULL;
}

/* Returns what is wrong with the parameters of KV quantization, or NULL. */
static inline const char *skv_quant_wrong(const struct skv_shape *sh)
{
	const struct skv_codec *c = sh->codec;

	if (c->bits != 4 && c->bits != 2)
		return "bits must be 4 or 2";
	if ((c->scale_block != 32 && c->scale_block != 64) || sh->head_dim % c->scale_block)
		return "scale_block must be 32 or 64, and head_dim a multiple of it";
	return NULL;
}

/* Returns what is wrong with the codec of a shape, or NULL. */
static inline const char *skv_codec_wrong(const struct skv_shape *sh)
{
	const struct skv_codec *c = sh->codec;
	const uint32_t d = skv_codec_dims(sh), parts = c->spans ? 2 * c->spans : 1;
	const char *wrong = c->kind == SKV_COMPRESS_QUANT ? skv_quant_wrong(sh) : skv_refs_wrong(c);

	if (wrong || c->kind == SKV_COMPRESS_QUANT)
		return wrong;
	if (d > SKV_MAX_CODEC_DIM || d % SKV_REF_SCALE_BLOCK)
		return "2 * n_kv_heads * head_dim of all ranks must be a multiple of 64, at most 4096";
	if (c->n_ranks > 1 && (c->rank >= c->n_ranks || c->spans))
		return "rank must be below n_ranks, without spans";
	if (c->first % SKV_PAGE_TOKENS)
		return "first must be a multiple of 16";
	if (c->rope_dims > sh->head_dim || c->rope_dims % 2)
		return "rope_dims must be even, at most head_dim";
	if (c->bits == 0)
		return c->stride ? NULL : "bits must not be 0 without references";
	if (c->bits != 16 && c->bits != 8 && c->bits != 4)
		return "bits must be 16, 8, 4 or 0";
	if ((c->scale_block != 32 && c->scale_block != 64) || !c->width || c->width > d || c->width % c->scale_block)
		return "scale_block must be 32 or 64, and width a multiple of it, at most 2 * n_kv_heads * head_dim of all ranks";
	if (c->enc_hidden % 64 || c->dec_hidden % 64 || c->enc_hidden > SKV_MAX_CODEC_DIM ||
	    c->dec_hidden > SKV_MAX_CODEC_DIM)
		return "enc_hidden and dec_hidden must be multiples of 64, at most 4096";
	if (c->spans && (sh->n_kv_heads % c->spans || c->width % (16 * parts) || c->enc_hidden || c->dec_hidden))
		return "spans must divide n_kv_heads, and width be a multiple of 32 spans, without enc_hidden and dec_hidden";
	return NULL;
}

#endif
