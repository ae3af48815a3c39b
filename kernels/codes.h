/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/codes.h - tokens that a layer keeps in another form than rows of K and V.
 *
 * x of a token is [K of all kv heads | V of all kv heads], d = 2 * n_kv_heads * head_dim elements, its K as it was before
 * rotary positions: the pairs that turn are turned back, and divided by turn_scale. Of a sequence's tokens [0, first) and
 * those from kseq.coded on are rows in pages, as ever; those between are packed, and their pages may be gone. A packed
 * token is a reference, of which x is kept, or has a code. Which it is follows from its position alone: every stride-th
 * one from `first` on is a reference, and so are those before `first`, which are kept twice. So where a token's record
 * lies is arithmetic.
 *
 *   b = the mean of the token's `near` references, of those at or before it the nearest to x (L2), as they are kept: by
 *       the largest 2 x·c - c·c, of equals the lower number; added up in ascending order
 *   z = E(x) - E(b), E(x) = down (silu(gate x) * up x), or down x; kept in `bits` bits
 *   rebuilt: Dec(z) + b, Dec(z) = out silu(open z), or out z; then k_norm, then turned by its position
 *
 * What is kept of a token depends on the tokens up to it and on nothing else: not on what is packed with it, nor when.
 *
 * Records lie one after the other in pages of the layer's tables of codes and of references, never across two. Numbers in
 * few bits come in groups: for each group {scale, least} as bf16, then, of all groups, the numbers q, which mean
 * least + q * scale; with 4 bits element 2i is in the low half of byte i. scale = (max - min) / (2^bits - 1) and
 * least = min are rounded first, then q = (x - least) / scale to the nearest even, within 0 … 2^bits - 1; 0 where scale is.
 *
 *   a reference  x: with 16 bits of the pool's dtype, else in groups of SKV_REF_GROUP
 *   a code       `near` numbers of references, ascending; z: with 16 bits bf16, else in groups of `group`
 *
 * each filled up with zeros to a multiple of 16 bytes.
 *
 * Or a layer packs K and V themselves in few bits (SKV_COMPRESS_QUANT), K as rows have it. Of each SKV_LOW_BLOCK tokens every kv
 * head has a record, number block * n_kv_heads + head of the layer's codes. It holds K, then V, each [token][head_dim] in
 * groups as above - of K an element of all of the block's tokens is one, so there are head_dim of them, of V `group`
 * elements of a token. With 2 bits element i has bits 2 (i % 4) and the next of byte i / 4. Nothing else of what is said
 * here goes for such layers: all fields but kind, bits and group are 0.
 */
#ifndef SKV_CODES_H
#define SKV_CODES_H

#include <stdbool.h>
#include <sparsekv/policy.h>
#include <sparsekv/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SKV_NEAR_MOST 4u
#define SKV_REF_GROUP 64u /* elements */
#define SKV_CODED_MOST 4096u /* of d, hidden and wide */
#define SKV_LOW_BLOCK 32u /* tokens */

/*
 * How a layer packs. Pointers lead to the backend's memory. Matrices are [out][in], fp32 on the host and bf16 on devices.
 * With spans each of them codes its kv heads alone, and K and V apart: x and z fall into 2 * spans equal parts, part i of
 * z belongs to part i of x, and down and out have [width][d / (2 spans)] and [d][width / (2 spans)].
 */
struct skv_codes {
	uint32_t kind;     /* enum skv_compress_kind */
	uint32_t first;    /* tokens that are never packed: of whole pages */
	uint32_t stride;   /* of references; 0: none, then b is 0 */
	uint32_t near;     /* references of a token, up to SKV_NEAR_MOST and `first`; 0 without references */
	uint32_t ref_bits; /* 16, 8 or 4 */
	uint32_t id_bytes; /* 2, or 4 where numbers of references take more than 16 bits */
	uint32_t bits;     /* 16, 8 or 4; 0: there is no z, what is rebuilt is b; in few bits: 4 or 2 */
	uint32_t width;    /* of z */
	uint32_t group;    /* 32 or 64 */
	uint32_t spans;    /* a divisor of n_kv_heads; 0: all of z is for all of x */
	uint32_t hidden, wide; /* rows of gate, and of open; 0: E is `down` alone, Dec is `out` alone */
	const void *in;    /* [2 hidden][d]: row 2i is row i of gate, row 2i + 1 that of up */
	const void *down;  /* [width][hidden or d] */
	const void *open;  /* [wide][width] */
	const void *out;   /* [d][wide or width] */
	const float *k_norm; /* [head_dim] or NULL; a rebuilt K u becomes w * (u / w) / rms(u / w) in each head */
	const double *turn;  /* [turn_dims / 2]: radians by which a pair turns from one position to the next */
	float turn_scale;    /* a turned K has been multiplied with this, too */
	uint32_t turn_dims;  /* elements of a head that turn: pairs (i, i + turn_dims / 2) ... */
	bool interleaved;    /* ... or (2i, 2i + 1) */
};

/* References among the tokens before `token`: the number of this one, if it is one. */
SKV_INLINE uint32_t skv_refs_before(const struct skv_codes *c, uint32_t token)
{
	if (!c->stride)
		return 0;
	return token <= c->first ? token : c->first + (token - c->first + c->stride - 1) / c->stride;
}

/* Codes of the tokens before `token`, if they are all packed; the number of this one's code, if it has one. */
SKV_INLINE uint32_t skv_codes_before(const struct skv_codes *c, uint32_t token)
{
	if (token <= c->first)
		return 0;
	return token - c->first - (c->stride ? skv_refs_before(c, token) - c->first : 0);
}

SKV_INLINE bool skv_is_ref(const struct skv_codes *c, uint32_t token)
{
	return c->stride && (token < c->first || (token - c->first) % c->stride == 0);
}

/* Bytes that n numbers take: in 16 bits, or in fewer with what their groups share. */
SKV_INLINE uint32_t skv_packed_bytes(uint32_t n, uint32_t bits, uint32_t group)
{
	return n * bits / 8 + (bits == 0 || bits == 16 ? 0 : n / group * 4);
}

/* Bytes of a record: of a code; of a reference. */
SKV_INLINE uint32_t skv_code_bytes(const struct skv_codes *c)
{
	return (c->near * c->id_bytes + skv_packed_bytes(c->width, c->bits, c->group) + 15) / 16 * 16;
}

SKV_INLINE uint32_t skv_ref_bytes(const struct skv_codes *c, uint32_t d, uint32_t dtype)
{
	const uint32_t bytes = c->ref_bits == 16 ? d * (uint32_t)skv_dtype_bytes(dtype)
	                                         : skv_packed_bytes(d, c->ref_bits, SKV_REF_GROUP);

	return (bytes + 15) / 16 * 16;
}

/* Of a record in few bits: where its K's numbers begin, its V, and the V's numbers; its bytes. All multiples of 16. */
struct skv_low {
	uint32_t k, v_shared, v, bytes;
};
SKV_INLINE struct skv_low skv_low_of(const struct skv_codes *c, uint32_t head_dim)
{
	const uint32_t numbers = SKV_LOW_BLOCK * head_dim * c->bits / 8, v_shared = 4 * head_dim + numbers;
	const uint32_t v = v_shared + SKV_LOW_BLOCK * head_dim / c->group * 4;
	const struct skv_low x = {4 * head_dim, v_shared, v, v + numbers};

	return x;
}

#ifdef __cplusplus
}
#endif
#endif
