/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/compress.h - KV cache compression: the format of compressed tokens.
 *
 * Tokens [codec->first, kseq.n_compressed) of a sequence are compressed; the pages with their rows of K and V may be
 * freed. The tokens before the compressed ones and those after them (the residual window) stay as rows in pages. The
 * position of a token alone determines whether the token is compressed and where its record is. The contents of a
 * token's record depend only on the tokens up to and including that token, not on which tokens are compressed in the
 * same call, or when.
 *
 * Latent compression (SKV_COMPRESS_LATENT: DeltaKV, Palu). x of a token is [K of all kv heads | V of all kv heads], d =
 * 2 * n_kv_heads * head_dim elements, with K as it was before RoPE: the rotary pairs are rotated back and divided by
 * rope_scale. A compressed token either is a reference, whose x is stored, or has a code. Every stride-th token from
 * `first` on is a reference. The tokens before `first` are references, too, so they are stored twice: as rows and as
 * references.
 *
 *   b = the mean of the token's n_refs nearest references (L2), in their stored form: of the references c at or before
 *       the token those with the largest 2 x·c - c·c, of equal ones the lower number. The sum is in ascending order.
 *   encode:  z = E(x) - E(b), E(x) = enc_out (silu(gate x) * up x), or enc_out x; stored in `bits` bits
 *   decode:  Dec(z) + b, Dec(z) = dec_out silu(dec_in z), or dec_out z; then k_norm, then RoPE at its position
 *
 * With tensor parallelism each rank stores rows of only some of the kv heads, but a code covers all of them: x is [K of
 * all ranks' kv heads in the order of ranks | V likewise], and every rank stores the same records as a single rank with
 * all heads would. gather_tokens() returns a rank's part of x, and the element-wise maximum over ranks is x. When codes
 * are decoded, each rank makes rows of K and V only for its own heads.
 *
 * KV quantization (SKV_COMPRESS_QUANT: KIVI). K and V themselves are quantized to 4 or 2 bits; K is stored with RoPE
 * applied, as in rows. Each kv head has one record for each block of SKV_QUANT_BLOCK tokens: the record has number
 * block * n_kv_heads + head in the layer's table of codes. A record holds K, then V, each [token][head_dim]. A scale
 * block of K is one channel (element) of all tokens of the block, so K has head_dim scale blocks. A scale block of V is
 * `scale_block` elements of one token. All fields of struct skv_codec except kind, bits and scale_block are 0.
 *
 * Records are stored one after the other in the pages of the layer's tables of codes and of references, and never cross
 * a page boundary.
 *
 *   a reference  x: with ref_bits 16 in the pool's dtype, else quantized with scale blocks of SKV_REF_SCALE_BLOCK
 *   a code       the numbers of n_refs references, ascending; then z: with bits 16 as bf16, else quantized
 *
 * Each record is padded with zeros to a multiple of 16 bytes.
 *
 * Quantized numbers are stored as {scale, zero point} of every scale block in bf16, followed by all numbers q, whose
 * values are zero + q * scale. With 4 bits, element 2i is in the low half of byte i. With 2 bits, element i is in bits
 * 2 (i % 4) and 2 (i % 4) + 1 of byte i / 4. To quantize x, scale = (max - min) / (2^bits - 1) and zero = min are
 * rounded to bf16 first; then q = (x - zero) / scale, rounded to nearest even and clamped to 0 … 2^bits - 1; if scale
 * is 0, q = 0.
 */
#ifndef SKV_COMPRESS_H
#define SKV_COMPRESS_H

#include <sparsekv/policy.h>
#include "kernels/batch.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SKV_MAX_REFS 4u
#define SKV_REF_SCALE_BLOCK 64u /* elements of a reference that share a scale */
#define SKV_MAX_CODEC_DIM 4096u /* upper limit of d, enc_hidden and dec_hidden */
#define SKV_QUANT_BLOCK 32u /* tokens of a block of KV quantization */

/*
 * How a layer compresses its tokens. Pointers lead to the backend's memory. Matrices are [out][in], fp32 on the host
 * and bf16 on devices. With spans the codec consists of 2 * spans independent parts, each for the K or the V of
 * n_kv_heads / spans kv heads (Palu's head groups): part i of z is computed from part i of x, and enc_out and dec_out
 * are [width][d / (2 spans)] and [d][width / (2 spans)].
 */
struct skv_codec {
	uint32_t kind;     /* enum skv_compress_kind */
	uint32_t first;    /* the first compressed token, which begins a page; tokens before it stay rows */
	uint32_t stride;   /* every stride-th token is a reference; 0: there are no references, and b is 0 */
	uint32_t n_refs;   /* number of references of a token, at most SKV_MAX_REFS and `first`; 0 without references */
	uint32_t ref_bits; /* bits of an element of a reference: 16, 8 or 4 */
	uint32_t id_bytes; /* bytes of a reference's number: 2, or 4 if numbers need more than 16 bits */
	/*
	 * bits of an element of z: 16, 8 or 4; 0: there is no z, and a token decodes to b; with QUANT: bits of an
	 * element of K and V, 4 or 2
	 */
	uint32_t bits;
	uint32_t width;    /* number of elements of z: the latent dimension */
	uint32_t scale_block; /* number of elements that share a scale: 32 or 64 */
	/* number of parts into which K is divided, and V; a divisor of n_kv_heads; 0: E and Dec are not divided */
	uint32_t spans;
	uint32_t enc_hidden, dec_hidden; /* hidden sizes of E and Dec; 0: E is enc_out alone, Dec is dec_out alone */
	const void *enc_in; /* [2 enc_hidden][d]: row 2i is row i of the matrix gate, row 2i + 1 is row i of up */
	const void *enc_out; /* [width][enc_hidden or d]: last matrix of E */
	const void *dec_in; /* [dec_hidden][width]: first matrix of Dec */
	const void *dec_out; /* [d][dec_hidden or width]: last matrix of Dec */
	/*
	 * [head_dim], the weights w of the model's norm of K, or NULL; a decoded K u becomes w * (u / w) / rms(u / w)
	 * in each head
	 */
	const float *k_norm;
	/* [rope_dims / 2]: angle in radians by which RoPE turns a pair from one position to the next */
	const double *rope_freq;
	float rope_scale;    /* factor by which RoPE also multiplies K */
	uint32_t rope_dims;  /* number of elements of a head that RoPE rotates, in pairs */
	bool interleaved;    /* the pairs are elements (2i, 2i + 1); false: (i, i + rope_dims / 2) */
	/*
	 * Tensor parallelism: the shape has only the kv heads of this rank, one of n_ranks. If rank and n_ranks are 0,
	 * the shape has all kv heads.
	 */
	uint32_t rank, n_ranks;
};

/* Returns the number of references among the tokens before `token`; if `token` is a reference, that is its number. */
SKV_INLINE uint32_t skv_refs_before(const struct skv_codec *c, uint32_t token)
{
	if (!c->stride)
		return 0;
	return token <= c->first ? token : c->first + (token - c->first + c->stride - 1) / c->stride;
}

/*
 * Returns the number of codes of the tokens before `token`, if all of them are compressed; if `token` has a code, that
 * is the code's number.
 */
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

/* Returns the bytes of n numbers: of 16 bits each, or quantized, with the scale and zero point of each scale block. */
SKV_INLINE uint32_t skv_quantized_bytes(uint32_t n, uint32_t bits, uint32_t group)
{
	return n * bits / 8 + (bits == 0 || bits == 16 ? 0 : n / group * 4);
}

/* Bytes of the record of a code, and of the record of a reference. */
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
 * Layout of a record of KV quantization. The record begins with the scales of K; k is the offset of K's numbers,
 * v_scales that of V's scales, v that of V's numbers, and bytes is the size of the record. All are multiples of 16.
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

/* Returns the number of elements of a token's K and V in all kv heads of the shape. */
SKV_INLINE uint32_t skv_token_dims(const struct skv_shape *sh)
{
	return 2 * sh->n_kv_heads * sh->head_dim;
}

/* Returns the number of elements of x: of a token's K and V in the kv heads of all ranks. */
SKV_INLINE uint32_t skv_codec_dims(const struct skv_shape *sh)
{
	return skv_token_dims(sh) * (sh->codec->n_ranks > 1 ? sh->codec->n_ranks : 1);
}

/*
 * Returns the address of record `number` in table `table` (sh->codes or sh->refs), whose records have `bytes` bytes.
 * The record's page must be resident.
 */
SKV_INLINE uint8_t *skv_record_at(const struct skv_shape *sh, const struct skv_kseq *s, uint32_t table, uint32_t bytes,
                                  uint32_t number)
{
	const uint32_t each = (uint32_t)(sh->page_bytes / bytes);
	const skv_pte *entries = s->table + (size_t)table * s->layer_stride;

	return sh->pool + skv_pte_id(entries[number / each]) * sh->page_bytes + (size_t)(number % each) * bytes;
}

/*
 * The number of records in the layer's table of codes when the tokens before `coded` are compressed, and the bytes of
 * one record.
 */
SKV_INLINE uint32_t skv_code_records(const struct skv_shape *sh, uint32_t coded)
{
	return sh->codec->kind == SKV_COMPRESS_QUANT ? coded / SKV_QUANT_BLOCK * sh->n_kv_heads : skv_codes_before(sh->codec, coded);
}
SKV_INLINE uint32_t skv_code_record_bytes(const struct skv_shape *sh)
{
	return sh->codec->kind == SKV_COMPRESS_QUANT ? skv_quant_layout_of(sh->codec, sh->head_dim).bytes : skv_code_bytes(sh->codec);
}

/* Can the tokens of this page be attended to, because they are rows in a resident page or are compressed? */
SKV_INLINE bool skv_page_present(const struct skv_shape *sh, const struct skv_kseq *s, uint32_t page)
{
	return (sh->codec && page * SKV_PAGE_TOKENS >= sh->codec->first && page * SKV_PAGE_TOKENS < s->n_compressed) ||
	       skv_pte_resident(skv_layer_table(sh, s)[page]);
}

/*
 * Memory for decompressed rows outside the layer's own pages: sequence i has pages [i * pages, (i + 1) * pages) of
 * `pool`, with the usual layout of K and V.
 */
struct skv_decompressed {
	/* NULL: decompress into the pages that the layer's own page table has for compressed tokens */
	uint8_t *pool;
	uint32_t pages;       /* number of pages of a sequence in `pool` */
	/*
	 * [n], written by decompress() for attention over the rows: each entry has the table and len of the rows, with
	 * layer_stride 0, so that every layer number has this table, and nothing compressed
	 */
	struct skv_kseq *seq;
	skv_pte *table;       /* [n][pages]: page tables, written by decompress() */
};

#ifdef __cplusplus
}
#endif
#endif
