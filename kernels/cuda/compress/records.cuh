/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/compress/records.cuh - reads the stored format of compressed tokens: see kernels/compress.h.
 *
 * Another process may have written the records, so the numbers of references in them are clamped to those that exist.
 */
#ifndef SKV_CUDA_COMPRESS_RECORDS_CUH
#define SKV_CUDA_COMPRESS_RECORDS_CUH

#include "kernels/cuda/runtime/convert.cuh"
#include "kernels/cuda/runtime/cuda.h"

/*
 * A divisor by which many numbers are divided: division becomes a multiplication. Numbers are below 2^24, divisors at
 * most 2^16.
 */
struct divisor {
	uint64_t share; /* 2^40 / by, rounded up: the factor that replaces division by `by` */
	uint32_t by;
};

static inline struct divisor divisor_of(uint32_t by)
{
	return {by ? ((1ull << 40) + by - 1) / by : 0, by};
}

DEVICE uint32_t quotient(uint32_t n, struct divisor d)
{
	return (uint32_t)(n * d.share >> 40);
}

DEVICE uint32_t remainder(uint32_t n, struct divisor d)
{
	return n - quotient(n, d) * d.by;
}

/* A layer's codec, and values that are computed from it. */
struct codec {
	struct skv_shape sh;
	struct skv_codec c;
	/* Number of elements of x, and of the K in it, over the heads of all ranks. */
	uint32_t d, half;
	/* Number of elements of x, and of the K in it, for the heads of this rank. */
	uint32_t own_d, own_half;
	/* Index of the first element of this rank's heads in K, and in V. */
	uint32_t own;
	uint32_t parts;                            /* number of independent parts of E and Dec */
	/* Bytes of a code's record; bytes of a reference's record; offset of z in a code's record. */
	uint32_t code_bytes, ref_bytes, code_from;
	struct divisor codes_each, refs_each;      /* records per page; 0: there are none */
	struct divisor stride;
};

static inline struct codec codec_of(const struct skv_shape *sh)
{
	struct codec k = {*sh, *sh->codec};
	k.d = skv_codec_dims(sh);
	k.half = k.d / 2;
	k.own_d = skv_token_dims(sh);
	k.own_half = k.own_d / 2;
	k.own = k.c.rank * k.own_half;
	k.parts = k.c.spans ? 2 * k.c.spans : 1;
	k.code_bytes = skv_code_bytes(&k.c);
	k.ref_bytes = skv_ref_bytes(&k.c, k.d, sh->dtype);
	k.code_from = k.c.n_refs * k.c.id_bytes;
	k.codes_each = divisor_of((uint32_t)sh->page_bytes / k.code_bytes);
	/* Without references, ref_bytes is 0, and so is refs_each. */
	k.refs_each = divisor_of(k.ref_bytes ? (uint32_t)sh->page_bytes / k.ref_bytes : 0);
	k.stride = divisor_of(k.c.stride);
	return k;
}

/* ---- positions and addresses of records, as in kernels/compress.h ------------------------------ */

DEVICE uint32_t refs_before(const struct codec *k, uint32_t token)
{
	if (!k->c.stride)
		return 0;
	return token <= k->c.first ? token : k->c.first + quotient(token - k->c.first + k->c.stride - 1, k->stride);
}

/* Number of codes of the tokens before `token`, which is not before the first compressed token. */
DEVICE uint32_t codes_before(const struct codec *k, uint32_t token)
{
	return token - (k->c.stride ? refs_before(k, token) : k->c.first);
}

DEVICE bool is_ref(const struct codec *k, uint32_t token)
{
	return k->c.stride && (token < k->c.first || remainder(token - k->c.first, k->stride) == 0);
}

DEVICE uint8_t *record_in(const struct codec *k, skv_pte page, uint32_t number, uint32_t bytes, struct divisor each)
{
	return k->sh.pool + skv_pte_id(page) * k->sh.page_bytes + remainder(number, each) * bytes;
}

DEVICE uint8_t *record_at(const struct codec *k, const struct skv_kseq *s, uint32_t table, uint32_t bytes,
                          struct divisor each, uint32_t number)
{
	const skv_pte e = s->table[(size_t)table * s->layer_stride + quotient(number, each)];
	return record_in(k, e, number, bytes, each);
}

DEVICE uint8_t *ref_at(const struct codec *k, const struct skv_kseq *s, uint32_t number)
{
	return record_at(k, s, k->sh.refs, k->ref_bytes, k->refs_each, number);
}

DEVICE uint8_t *code_at(const struct codec *k, const struct skv_kseq *s, uint32_t token)
{
	return record_at(k, s, k->sh.codes, k->code_bytes, k->codes_each, codes_before(k, token));
}

/* Returns the first token that the step compresses. */
DEVICE uint32_t compress_from(const struct codec *k, const struct skv_kseq *s)
{
	return s->n_compressed > k->c.first ? s->n_compressed : k->c.first;
}

/* Returns number i of the references in a code's record, clamped below n. */
DEVICE uint32_t id_of(const struct codec *k, const uint8_t *record, uint32_t i, uint32_t n)
{
	const uint32_t id = k->c.id_bytes == 2 ? ((const uint16_t *)record)[i] : ((const uint32_t *)record)[i];
	return id < n ? id : n - 1;
}

/* ---- stored numbers -------------------------------------------------------------------------- */

/*
 * Eight stored numbers of a record, or of a bf16 row of a matrix. They are read in two steps, load and convert, like
 * struct vec8.
 */
struct numbers {
	uint4 q;
	uint32_t shared; /* scale and zero point of their scale block */
};

/*
 * How numbers are stored: in 16, 8 or 4 bits. Quantized numbers follow the parameters of all scale blocks, which take
 * `behind` bytes. A scale block has 1 << shift elements.
 */
struct stored_format {
	uint32_t bits, dtype, shift, behind;
};

/* Loads `n` words from an address that is a multiple of 2. */
template <int n> DEVICE void words_at(const uint8_t *p, uint32_t *to)
{
	const uint32_t at = (uint32_t)(uintptr_t)p;
	if (n == 4 && at % 16 == 0) {
		const uint4 w = *(const uint4 *)p;
		to[0] = w.x, to[1] = w.y, to[2] = w.z, to[3] = w.w;
	} else if (n > 1 && at % 8 == 0) {
#pragma unroll
		for (int i = 0; i < n; i += 2) {
			const uint2 w = ((const uint2 *)p)[i / 2];
			to[i] = w.x, to[i + 1] = w.y;
		}
	} else {
#pragma unroll
		for (int i = 0; i < n; i++)
			to[i] = ((const uint16_t *)p)[2 * i] | (uint32_t)((const uint16_t *)p)[2 * i + 1] << 16;
	}
}

/* Loads numbers i to i + 7, i being a multiple of 8, of those that are stored at p. */
DEVICE struct numbers load_numbers(const struct stored_format *f, const uint8_t *p, uint32_t i)
{
	struct numbers x = {};
	if (f->bits == 16) {
		words_at<4>(p + 2 * i, (uint32_t *)&x.q);
		return x;
	}
	words_at<1>(p + (i >> f->shift) * 4, &x.shared);
	if (f->bits == 8)
		words_at<2>(p + f->behind + i, (uint32_t *)&x.q);
	else
		words_at<1>(p + f->behind + i / 2, (uint32_t *)&x.q);
	return x;
}

DEVICE void decode_numbers(const struct stored_format *f, const struct numbers *x, float to[8])
{
	const uint32_t w[4] = {x->q.x, x->q.y, x->q.z, x->q.w};
	if (f->bits == 16) {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const float2 y = io_two(f->dtype, w[i]);
			to[2 * i] = y.x, to[2 * i + 1] = y.y;
		}
		return;
	}
	const float2 shared = io_two(SKV_BF16, x->shared);
#pragma unroll
	for (int i = 0; i < 8; i++) {
		const uint32_t q = f->bits == 8 ? w[i / 4] >> 8 * (i % 4) & 255 : w[0] >> 4 * i & 15;
		/* Adds q as a float, whose bits are set directly because integer conversion is slow. */
		to[i] = fmaf(__uint_as_float(0x4b000000 | q) - 0x1p23f, shared.x, shared.y);
	}
}

DEVICE uint4 bf16_of(const float x[8])
{
	return make_uint4(BF16::pair(x[0], x[1]), BF16::pair(x[2], x[3]), BF16::pair(x[4], x[5]),
	                  BF16::pair(x[6], x[7]));
}

DEVICE uint4 f16_of(const float x[8])
{
	return make_uint4(F16::pair(x[0], x[1]), F16::pair(x[2], x[3]), F16::pair(x[4], x[5]), F16::pair(x[6], x[7]));
}

/* Converts eight stored numbers to bf16, the type of matrix products. */
DEVICE uint4 numbers_bf16(const struct stored_format *f, const struct numbers *x)
{
	float y[8];
	if (f->bits == 16 && f->dtype == SKV_BF16)
		return x->q;
	decode_numbers(f, x, y);
	return bf16_of(y);
}

DEVICE struct stored_format ref_format(const struct codec *k)
{
	return {k->c.ref_bits, k->sh.dtype, 6, k->d / SKV_REF_SCALE_BLOCK * 4};
}

DEVICE struct stored_format code_format(const struct codec *k)
{
	const uint32_t shift = k->c.scale_block == 64 ? 6 : 5;
	return {k->c.bits, SKV_BF16, shift, (k->c.width >> shift) * 4};
}

/* Are references stored as bf16? These are read fastest. */
DEVICE bool refs_are_bf16(const struct codec *k)
{
	return k->c.ref_bits == 16 && k->sh.dtype == SKV_BF16;
}

/*
 * Computes elements [i, i + 8) of the mean of the references, which are added up in their order; zeros if there are no
 * references. `plain` is refs_are_bf16().
 */
template <bool plain> DEVICE void mean_of(const struct codec *k, const uint8_t *const *ref, uint32_t i, float b[8])
{
	const struct stored_format f = plain ? (struct stored_format){16, SKV_BF16} : ref_format(k);
	const float share = 1 / (float)k->c.n_refs;
	struct numbers x[SKV_MAX_REFS];
#pragma unroll
	for (uint32_t r = 0; r < SKV_MAX_REFS; r++)
		if (r < k->c.n_refs && plain)
			x[r].q = __ldg((const uint4 *)(ref[r] + 2 * i));
		else if (r < k->c.n_refs)
			x[r] = load_numbers(&f, ref[r], i);
#pragma unroll
	for (int e = 0; e < 8; e++)
		b[e] = 0;
#pragma unroll
	for (uint32_t r = 0; r < SKV_MAX_REFS; r++)
		if (r < k->c.n_refs) {
			float y[8];
			decode_numbers(&f, &x[r], y);
#pragma unroll
			for (int e = 0; e < 8; e++)
				b[e] += y[e];
		}
#pragma unroll
	for (int e = 0; e < 8; e++)
		b[e] = k->c.n_refs ? b[e] * share : 0;
}

DEVICE float silu(float x)
{
	return x / (1 + __expf(-x));
}

/* ---- RoPE ------------------------------------------------------------------------------------ */

/* Returns the rotation of rotary pair p from one position to the next, in turns. */
DEVICE double rope_turns(const struct codec *k, uint32_t p)
{
	return k->c.rope_freq[p] * 0.15915494309189533577;
}

/*
 * Returns a pair's angle at a position, within half a turn. The angle is computed in fp64: positions are too large for
 * fp32.
 */
DEVICE float rope_angle(uint32_t position, double turns)
{
	turns *= position;
	return (float)(turns - rint(turns)) * 6.28318530717958647693f;
}

/* Returns the indices, in a head, of the two elements of rotary pair p. */
DEVICE uint2 rope_pair(const struct codec *k, uint32_t p)
{
	return k->c.interleaved ? make_uint2(2 * p, 2 * p + 1) : make_uint2(p, p + k->c.rope_dims / 2);
}

#endif
