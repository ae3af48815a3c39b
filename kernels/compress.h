/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/compress.h - KV cache compression: the format of compressed tokens.
 *
 * Tokens [codec->first, kseq.n_compressed) of a sequence are compressed; their pages of K and V may be freed. The
 * tokens before and after (the residual window) stay as rows in pages. Positions alone determine which tokens are
 * compressed and where a token's record is. The record depends only on the tokens up to and including its own, not on
 * which tokens are compressed with it, or when.
 *
 * Latent compression (SKV_COMPRESS_LATENT: DeltaKV, Palu). x of a token is [K of all kv heads | V of all kv heads],
 * d = 2 * n_kv_heads * head_dim elements, with K as it was before RoPE: the rotary pairs are rotated back and divided
 * by rope_scale. A compressed token is either a reference, whose x is stored, or has a code. Every stride-th token from
 * `first` on is a reference. The tokens before `first` are references, too, so they are stored twice.
 *
 *   b = the mean of the token's n_refs nearest references c (L2) at or before it, in their stored form: those with the
 *       largest 2 x·c - c·c; ties go to the lower number. They are added up in ascending order.
 *   encode:  z = E(x) - E(b), E(x) = enc_out (silu(gate x) * up x), or enc_out x; stored in `bits` bits
 *   decode:  Dec(z) + b, Dec(z) = dec_out silu(dec_in z), or dec_out z; then k_norm, then RoPE at its position
 *
 * With tensor parallelism each rank has some of the kv heads, but a code covers all of them: x is [K of all ranks' kv
 * heads in the order of ranks | V likewise], and every rank stores the same records as a single rank with all heads
 * would. gather_tokens() returns a rank's part of x, and the element-wise maximum over ranks is x. After decoding, each
 * rank makes rows only for its own heads.
 *
 * KV quantization (SKV_COMPRESS_QUANT: KIVI). K and V themselves are quantized to 4 or 2 bits; K is stored with RoPE
 * applied, as in rows. Each kv head has one record for each block of SKV_QUANT_BLOCK tokens: number
 * block * n_kv_heads + head of the layer's codes. It holds K, then V, each [token][head_dim]. A scale block of K is one
 * channel of all tokens of the block (per channel), so K has head_dim of them. A scale block of V is `scale_block`
 * elements of one token (per token). All fields of struct skv_codec except kind, bits and scale_block are 0.
 *
 * Records are stored one after the other in the pages of the layer's tables of codes and of references, and never cross
 * a page boundary.
 *
 *   a reference  x: with 16 bits in the pool's dtype, else quantized with scale blocks of SKV_REF_SCALE_BLOCK
 *   a code       n_refs numbers of references, ascending; z: with 16 bits as bf16, else quantized with `scale_block`
 *
 * Each record is padded with zeros to a multiple of 16 bytes.
 *
 * Quantized numbers: first {scale, zero point} of every scale block as bf16, then all numbers q, whose values are
 * zero + q * scale. With 4 bits, element 2i is in the low half of byte i. With 2 bits, element i is in bits 2 (i % 4)
 * and 2 (i % 4) + 1 of byte i / 4. scale = (max - min) / (2^bits - 1) and zero = min are rounded to bf16 first; then
 * q = (x - zero) / scale, rounded to nearest even and clamped to 0 … 2^bits - 1, or 0 if scale is 0.
 */
#ifndef SKV_COMPRESS_H
#define SKV_COMPRESS_H

#include <sparsekv/policy.h>
#include "kernels/batch.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SKV_MAX_REFS 4u
#define SKV_REF_SCALE_BLOCK 64u /* elements */
#define SKV_MAX_CODEC_DIM 4096u /* limit of d, enc_hidden and dec_hidden */
#define SKV_QUANT_BLOCK 32u /* tokens */

/*
 * How a layer compresses. Pointers lead to the backend's memory. Matrices are [out][in], fp32 on the host and bf16 on
 * devices. With spans the codec consists of 2 * spans independent parts, each for the K or the V of n_kv_heads / spans
 * kv heads (Palu's head groups): part i of z belongs to part i of x, and enc_out and dec_out are [width][d / (2 spans)]
 * and [d][width / (2 spans)].
 */
struct skv_codec {
	uint32_t kind;     /* enum skv_compress_kind */
	uint32_t first;    /* the first compressed token, at the beginning of a page: tokens before it stay rows */
	uint32_t stride;   /* every stride-th token is a reference; 0: no references, and b is 0 */
	uint32_t n_refs;   /* references of a token, at most SKV_MAX_REFS and `first`; 0 without references */
	uint32_t ref_bits; /* bits of an element of a reference: 16, 8 or 4 */
	uint32_t id_bytes; /* bytes of a reference's number: 2, or 4 if numbers take more than 16 bits */
	uint32_t bits;     /* bits of an element of z: 16, 8 or 4; 0: no z, the token decodes to b; QUANT: 4 or 2 */
	uint32_t width;    /* elements of z: the latent dimension */
	uint32_t scale_block; /* elements that share a scale: 32 or 64 */
	uint32_t spans;    /* a divisor of n_kv_heads; 0: no division into parts */
	uint32_t enc_hidden, dec_hidden; /* hidden sizes; 0: E is enc_out alone, Dec is dec_out alone */
	const void *enc_in; /* [2 enc_hidden][d]: row 2i is row i of gate, row 2i + 1 is row i of up */
	const void *enc_out; /* [width][enc_hidden or d] */
	const void *dec_in; /* [dec_hidden][width] */
	const void *dec_out; /* [d][dec_hidden or width] */
	const float *k_norm; /* [head_dim] w, or NULL; a decoded K u becomes w * (u / w) / rms(u / w) in each head */
	const double *rope_freq; /* [rope_dims / 2]: radians by which a pair turns from one position to the next */
	float rope_scale;    /* RoPE also multiplies K by this */
	uint32_t rope_dims;  /* elements of a head that RoPE rotates, in pairs (i, i + rope_dims / 2) ... */
	bool interleaved;    /* ... or (2i, 2i + 1) */
	/*
	 * Tensor parallelism: the shape has the kv heads of this rank, one of n_ranks. Both 0: the shape has all kv
	 * heads.
	 */
	uint32_t rank, n_ranks;
};

/* Number of references among the tokens before `token`; if `token` is a reference, this is its number. */
SKV_INLINE uint32_t skv_refs_before(const struct skv_codec *c, uint32_t token)
{
	if (!c->stride)
		return 0;
	return token <= c->first ? token : c->first + (token - c->first + c->stride - 1) / c->stride;
}

/* Number of codes of the tokens before `token`, if all are compressed; if `token` has a code, this is its number. */
SKV_INLINE uint32_t skv_codes_before(const struct skv_codec *c, uint32_t token)
{
	if (token <= c->first)
		return 0;
	return token - c->first - (c->stride ? skv_refs_before(c, token) - c->first : 0);
}

SKV_INLINE bool skv_is_ref(const struct skv_codec *c, uint32_t token)
{
	return c->stride && (token < c->first || (token - c->first) % c->stride == 0);
}

/* Bytes of n numbers: of 16 bits each, or quantized, with the scales of their scale blocks. */
SKV_INLINE uint32_t skv_quantized_bytes(uint32_t n, uint32_t bits, uint32_t group)
{
	return n * bits / 8 + (bits == 0 || bits == 16 ? 0 : n / group * 4);
}

/* Bytes of the record of a code, and of a reference. */
SKV_INLINE uint32_t skv_code_bytes(const struct skv_codec *c)
{
	return (c->n_refs * c->id_bytes + skv_quantized_bytes(c->width, c->bits, c->scale_block) + 15) / 16 * 16;
}

SKV_INLINE uint32_t skv_ref_bytes(const struct skv_codec *c, uint32_t d, uint32_t dtype)
{
	const uint32_t bytes = c->ref_bits == 16 ? d * (uint32_t)skv_dtype_bytes(dtype)
	                                         : skv_quantized_bytes(d, c->ref_bits, SKV_REF_SCALE_BLOCK);

	return (bytes + 15) / 16 * 16;
}

/*
 * Offsets in a record of KV quantization, which begins with the scales of K: K's numbers, V's scales, V's numbers, and
 * its total bytes. All are multiples of 16.
 */
struct skv_quant_layout {
	uint32_t k, v_scales, v, bytes;
};
SKV_INLINE struct skv_quant_layout skv_quant_layout_of(const struct skv_codec *c, uint32_t head_dim)
{
	const uint32_t numbers = SKV_QUANT_BLOCK * head_dim * c->bits / 8, v_scales = 4 * head_dim + numbers;
	const uint32_t v = v_scales + SKV_QUANT_BLOCK * head_dim / c->scale_block * 4;
	const struct skv_quant_layout x = {4 * head_dim, v_scales, v, v + numbers};

	return x;
}

/* Elements of a token's K and V in all kv heads. */
SKV_INLINE uint32_t skv_token_dims(const struct skv_shape *sh)
{
	return 2 * sh->n_kv_heads * sh->head_dim;
}

/* The same over the kv heads of all ranks: elements of x. */
SKV_INLINE uint32_t skv_codec_dims(const struct skv_shape *sh)
{
	return skv_token_dims(sh) * (sh->codec->n_ranks > 1 ? sh->codec->n_ranks : 1);
}

/*
 * Record `number` of table `table` (sh->codes or sh->refs), whose records have `bytes` bytes. Its page must be
 * resident.
 */
SKV_INLINE uint8_t *skv_record_at(const struct skv_shape *sh, const struct skv_kseq *s, uint32_t table, uint32_t bytes,
                                  uint32_t number)
{
	const uint32_t each = (uint32_t)(sh->page_bytes / bytes);
	const skv_pte *entries = s->table + (size_t)table * s->layer_stride;

	return sh->pool + skv_pte_id(entries[number / each]) * sh->page_bytes + (size_t)(number % each) * bytes;
}

/* Records in the layer's table of codes once the tokens before `coded` are compressed, and the bytes of one record. */
SKV_INLINE uint32_t skv_code_records(const struct skv_shape *sh, uint32_t coded)
{
	return sh->codec->kind == SKV_COMPRESS_QUANT ? coded / SKV_QUANT_BLOCK * sh->n_kv_heads : skv_codes_before(sh->codec, coded);
}
SKV_INLINE uint32_t skv_code_record_bytes(const struct skv_shape *sh)
{
	return sh->codec->kind == SKV_COMPRESS_QUANT ? skv_quant_layout_of(sh->codec, sh->head_dim).bytes : skv_code_bytes(sh->codec);
}

/* Are the tokens of this page available, as rows or compressed? */
SKV_INLINE bool skv_page_present(const struct skv_shape *sh, const struct skv_kseq *s, uint32_t page)
{
	return (sh->codec && page * SKV_PAGE_TOKENS >= sh->codec->first && page * SKV_PAGE_TOKENS < s->n_compressed) ||
	       skv_pte_resident(skv_layer_table(sh, s)[page]);
}

/*
 * Decompressed rows outside the layer's own pages: sequence i has pages [i * pages, (i + 1) * pages) of `pool`, with
 * the usual layout.
 */
struct skv_decompressed {
	uint8_t *pool;        /* NULL: decompress into the pages that the layer's own table has for compressed tokens */
	uint32_t pages;       /* pages of a sequence */
	/*
	 * [n], filled in for attention over the rows: table and len, with one table for any layer number and nothing
	 * compressed
	 */
	struct skv_kseq *seq;
	skv_pte *table;       /* [n][pages], filled in */
};

#ifdef __cplusplus
}
#endif
#endif
