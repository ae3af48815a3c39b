/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/compress/records.cuh - the stored format of compressed tokens: see kernels/compress.h.
 *
 * A peer may have written the records, so the numbers of references in them are clamped to those that exist.
 */
#ifndef SKV_CUDA_COMPRESS_RECORDS_CUH
#define SKV_CUDA_COMPRESS_RECORDS_CUH

#include "kernels/cuda/runtime/convert.cuh"
#include "kernels/cuda/runtime/cuda.h"

/* Division by a divisor that is used often, as a multiplication. For numbers below 2^24 and divisors up to 2^16. */
struct divisor {
	uint64_t share; /* 2^40 / by, rounded up */
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

/* A layer's codec, and values that follow from it. */
struct codec {
	struct skv_shape sh;
	struct skv_codec c;
	uint32_t d, half;                          /* elements of x, and of its K: of all ranks */
	uint32_t own_d, own_half;                  /* the same of this rank's heads */
	uint32_t own;                              /* the first element of this rank's heads in K, and in V */
	uint32_t parts;                            /* independent parts of E and Dec */
	uint32_t code_bytes, ref_bytes, code_from; /* bytes of a record; where a code's z begins */
	struct divisor codes_each, refs_each;      /* records per page; 0 if there are none */
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
	/* Without references they have no size. */
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

/* For a token from `first` on. */
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

/* The first token that the step compresses. */
DEVICE uint32_t compress_from(const struct codec *k, const struct skv_kseq *s)
{
	return s->n_compressed > k->c.first ? s->n_compressed : k->c.first;
}

/* Number i of the references in a code's record, clamped below n. */
DEVICE uint32_t id_of(const struct codec *k, const uint8_t *record, uint32_t i, uint32_t n)
{
	const uint32_t id = k->c.id_bytes == 2 ? ((const uint16_t *)record)[i] : ((const uint32_t *)record)[i];
	return id < n ? id : n - 1;
}

/* ---- stored numbers -------------------------------------------------------------------------- */

/*
 * Eight numbers, read in two steps: load, then convert (like struct vec8). They belong to a record, or to a bf16 row of
 * a matrix.
 */
struct numbers {
	uint4 q;
	uint32_t shared; /* the scale block's scale and zero point */
};

/*
 * How numbers are stored: in 16, 8 or 4 bits. Quantized numbers begin after the parameters of scale blocks of 1 <<
 * shift elements, which take `behind` bytes.
 */
struct stored_format {
	uint32_t bits, dtype, shift, behind;
};

/* Loads `n` words from an address that is at least a multiple of 2. */
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

/* Loads eight numbers from number i on, a multiple of 8, of those that begin at p. */
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
		/* q as a float, without a slow conversion. */
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

/* The numbers as bf16, the type of matrix products. */
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

/* Whether references are stored as bf16, which is read fastest. */
DEVICE bool refs_are_bf16(const struct codec *k)
{
	return k->c.ref_bits == 16 && k->sh.dtype == SKV_BF16;
}

/*
 * Elements [i, i + 8) of the mean of the references, added up in their order; zeros without references. plain:
 * refs_are_bf16().
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

/* The rotation of pair p from one position to the next, in turns. */
DEVICE double rope_turns(const struct codec *k, uint32_t p)
{
	return k->c.rope_freq[p] * 0.15915494309189533577;
}

/* The pair's angle at a position, within half a turn. Computed in fp64, because positions are too large for fp32. */
DEVICE float rope_angle(uint32_t position, double turns)
{
	turns *= position;
	return (float)(turns - rint(turns)) * 6.28318530717958647693f;
}

/* The elements of rotary pair p of a head. */
DEVICE uint2 rope_pair(const struct codec *k, uint32_t p)
{
	return k->c.interleaved ? make_uint2(2 * p, 2 * p + 1) : make_uint2(p, p + k->c.rope_dims / 2);
}

#endif
