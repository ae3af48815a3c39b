/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/compress-check.h - what every backend expects of a codec. A header, because the host's table and a device's
 * module, which are linked apart, both check it.
 */
#ifndef SKV_COMPRESS_CHECK_H
#define SKV_COMPRESS_CHECK_H

#include "kernels/compress.h"

/* What is wrong with the references, or NULL. */
static inline const char *skv_refs_wrong(const struct skv_codes *c)
{
	if (!c->stride != !c->near)
		return "stride and n_refs must both be 0, or neither";
	if (!c->stride)
		return NULL;
	if (c->stride < 2 || c->near > SKV_NEAR_MOST || c->near > c->first)
		return "stride must be at least 2, n_refs at most 4 and at most first";
	if (c->ref_bits != 16 && c->ref_bits != 8 && c->ref_bits != 4)
		return "ref_bits must be 16, 8 or 4";
	if (c->id_bytes != 2 && c->id_bytes != 4)
		return "id_bytes must be 2 or 4";
	return NULL;
}

/* With KV quantization, or NULL. */
static inline const char *skv_low_wrong(const struct skv_shape *sh)
{
	const struct skv_codes *c = sh->code;

	if (c->bits != 4 && c->bits != 2)
		return "bits must be 4 or 2";
	if ((c->group != 32 && c->group != 64) || sh->head_dim % c->group)
		return "scale_block must be 32 or 64, and head_dim a multiple of it";
	return NULL;
}

/* With the codec of a shape, or NULL. */
static inline const char *skv_codes_wrong(const struct skv_shape *sh)
{
	const struct skv_codes *c = sh->code;
	const uint32_t d = skv_token_dims(sh), parts = c->spans ? 2 * c->spans : 1;
	const char *wrong = c->kind == SKV_COMPRESS_QUANT ? skv_low_wrong(sh) : skv_refs_wrong(c);

	if (wrong || c->kind == SKV_COMPRESS_QUANT)
		return wrong;
	if (d > SKV_CODED_MOST || d % SKV_REF_GROUP)
		return "2 * n_kv_heads * head_dim must be a multiple of 64, at most 4096";
	if (c->first % SKV_PAGE_TOKENS)
		return "first must be a multiple of 16";
	if (c->turn_dims > sh->head_dim || c->turn_dims % 2)
		return "rope_dims must be even, at most head_dim";
	if (c->bits == 0)
		return c->stride ? NULL : "bits must not be 0 without references";
	if (c->bits != 16 && c->bits != 8 && c->bits != 4)
		return "bits must be 16, 8, 4 or 0";
	if ((c->group != 32 && c->group != 64) || !c->width || c->width > d || c->width % c->group)
		return "scale_block must be 32 or 64, and width a multiple of it, at most 2 * n_kv_heads * head_dim";
	if (c->hidden % 64 || c->wide % 64 || c->hidden > SKV_CODED_MOST || c->wide > SKV_CODED_MOST)
		return "enc_hidden and dec_hidden must be multiples of 64, at most 4096";
	if (c->spans && (sh->n_kv_heads % c->spans || c->width % (16 * parts) || c->hidden || c->wide))
		return "spans must divide n_kv_heads, and width be a multiple of 32 spans, without enc_hidden and dec_hidden";
	return NULL;
}

#endif
