/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/runtime/simd.h - vectors of VL floats, so that the kernels read like the algorithms.
 *
 * Vectors are of types from GNU's vector extensions: + - * and comparisons are written as on scalars. Other operations
 * are inline functions of this file, with intrinsics where the compiler would not find the instruction. The build
 * defines SKV_AVX512 or SKV_AVX2 for these instruction sets; without either, this file is portable C.
 *
 *   VL         lanes of a vector: 16, 8 or 4
 *   vf, vi, vs  float, int32_t and int16_t lanes
 *   v_load     loads VL elements of a pool's dtype as floats; no alignment needed. With fp8 these are e4m3 numbers,
 *              which the caller multiplies by the row's scale (fp8.h)
 *   v_store    stores floats as VL elements of a dtype, rounded to nearest even; a NaN stays a NaN. Not for fp8
 *   v_load_u8, v_load_u4, v_load_u2  load VL unsigned integers of 8, 4 or 2 bits, the first in a byte's lowest bits
 *   v_store_u8  stores VL integers of 8 bits
 *   v_load_pairs  loads VL pairs of bf16, the first and second elements into one vector each
 *   v_dot_bytes  adds up products of unsigned and signed bytes, in each lane
 *   v_fma      a * b + c, fused where the ISA has it
 *   v_exp2     2^x within 1.5 ulp; 0 for -infinity, NaN for a NaN. x must be below 128
 *   v_fold_rows  lane i of the result is the sum (maximum) over the lanes of r[i]
 *   v_fold_runs  the sum (maximum) over each run of `width` lanes of one vector, in all lanes of the run
 *   v_sum_row  the sum of a row of floats
 *   v_compress  writes the lanes that are set in a mask, one after the other
 *   v_hadamard  multiplies the lanes of a vector by the Hadamard matrix
 *   v_transpose  transposes VL x VL floats
 *   v_load_columns  loads 4 bytes into each lane, each lane from another row
 */
#ifndef SKV_HOST_SIMD_H
#define SKV_HOST_SIMD_H

#include <stdint.h>
#include <string.h>
#include <sparsekv/types.h>

#if defined SKV_AVX512 || defined SKV_AVX2
#include <immintrin.h>
#endif
#if defined SKV_AVX512
#define VL 16
#elif defined SKV_AVX2
#define VL 8
#else
#define VL 4
#endif

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/*
 * Calls fn(dtype, …) with dtype as a compile-time constant. fn is INLINE, so the compiler makes separate code for each
 * dtype.
 */
#define BY_DTYPE(dtype, fn, ...)                                                                             \
	((dtype) == SKV_F32   ? fn(SKV_F32, __VA_ARGS__)                                                     \
	 : (dtype) == SKV_F16 ? fn(SKV_F16, __VA_ARGS__)                                                     \
	 : (dtype) == SKV_FP8 ? fn(SKV_FP8, __VA_ARGS__)                                                     \
	                      : fn(SKV_BF16, __VA_ARGS__))

typedef float vf __attribute__((vector_size(VL * 4)));
typedef int32_t vi __attribute__((vector_size(VL * 4)));
typedef uint32_t vu __attribute__((vector_size(VL * 4)));
typedef int16_t vs __attribute__((vector_size(VL * 4)));
typedef uint16_t vh __attribute__((vector_size(VL * 2)));
typedef uint8_t vb __attribute__((vector_size(VL)));

INLINE vf v_set(float x)
{
	return x - (vf){0};
}

INLINE vf v_loadf(const float *p)
{
	vf v;
	memcpy(&v, p, sizeof v);
	return v;
}

INLINE void v_storef(float *p, vf v)
{
	memcpy(p, &v, sizeof v);
}

INLINE vi v_iota(void)
{
	vi v;
	UNROLL
	for (int i = 0; i < VL; i++)
		v[i] = i;
	return v;
}

/* Selects, in each lane, a where the mask is set (all ones) and b where the mask is 0. */
INLINE vf v_select(vi mask, vf a, vf b)
{
	return (vf)(((vi)a & mask) | ((vi)b & ~mask));
}

INLINE vf v_fma(vf a, vf b, vf c)
{
#if defined SKV_AVX512
	return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined SKV_AVX2
	return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
	return a * b + c;
#endif
}

/* The larger of a and b in each lane; b if one of them is a NaN. */
INLINE vf v_max(vf a, vf b)
{
#if defined SKV_AVX512
	return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined SKV_AVX2
	return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
	return v_select(a > b, a, b);
#endif
}

/* ---- loads and stores of 16-bit elements ----------------------------------------------------- */

INLINE vf v_load_bf16(const void *p)
{
#if defined SKV_AVX512
	return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16);
#elif defined SKV_AVX2
	return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16);
#else
	vh h;
	memcpy(&h, p, sizeof h);
	return (vf)(__builtin_convertvector(h, vu) << 16);
#endif
}

INLINE vf v_load_f16(const void *p)
{
#if defined SKV_AVX512
	return (vf)_mm512_cvtph_ps(_mm256_loadu_si256(p));
#elif defined SKV_AVX2
	return (vf)_mm256_cvtph_ps(_mm_loadu_si128(p));
#else
	/*
	 * Moves the fp16 exponent and mantissa to their place in a float, then multiplies by 2^112 for the difference
	 * of the exponents' biases; this converts subnormal numbers, too.
	 */
	vh h;
	memcpy(&h, p, sizeof h);
	vu u = __builtin_convertvector(h, vu);
	vu magnitude = (u & 0x7fff) << 13;
	vu finite = (vu)((vf)magnitude * 0x1p112f);
	vu special = magnitude | 0x7f800000;
	vu is_special = (vu)((u & 0x7c00) == 0x7c00);
	return (vf)(((special & is_special) | (finite & ~is_special)) | ((u & 0x8000) << 16));
#endif
}

/*
 * Converts e4m3 to float: moves sign, exponent and mantissa to their place in a float, then multiplies by 2^120 for the
 * difference of the exponents' biases; this converts subnormal numbers, too. The NaN of e4m3 is not handled.
 */
INLINE vf v_load_fp8(const void *p)
{
#if defined SKV_AVX512
	const vi x = (vi)_mm512_cvtepi8_epi32(_mm_loadu_si128(p));
#elif defined SKV_AVX2
	const vi x = (vi)_mm256_cvtepi8_epi32(_mm_loadl_epi64(p));
#else
	typedef int8_t vc __attribute__((vector_size(VL)));
	vc b;
	memcpy(&b, p, sizeof b);
	const vi x = __builtin_convertvector(b, vi);
#endif
	return (vf)(x << 20 & (int32_t)0x87ffffff) * 0x1p120f;
}

INLINE vf v_load(uint32_t dtype, const void *p)
{
	return dtype == SKV_F32 ? v_loadf(p) : dtype == SKV_F16 ? v_load_f16(p) : dtype == SKV_FP8 ? v_load_fp8(p) : v_load_bf16(p);
}

INLINE void v_store_bf16(void *p, vf v)
{
	vu u = (vu)v;
	vu rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
	vu quiet = (u >> 16) | 0x40;
	vu is_nan = (vu)(v != v);
	vu r = (quiet & is_nan) | (rounded & ~is_nan);
#if defined SKV_AVX512
	_mm256_storeu_si256(p, _mm512_cvtepi32_epi16((__m512i)r));
#else
	vh h = __builtin_convertvector(r, vh);
	memcpy(p, &h, sizeof h);
#endif
}

INLINE void v_store_f16(void *p, vf v)
{
#if defined SKV_AVX512
	_mm256_storeu_si256(p, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined SKV_AVX2
	_mm_storeu_si128(p, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
	uint16_t h[VL];
	for (int i = 0; i < VL; i++) {
		uint32_t u = ((vu)v)[i], sign = u >> 16 & 0x8000;
		u &= 0x7fffffff;
		if (u > 0x7f800000) { /* a NaN becomes a quiet NaN */
			h[i] = (uint16_t)(sign | 0x7e00);
		} else if (u >= 143u << 23) { /* numbers from 2^16 on become infinity */
			h[i] = (uint16_t)(sign | 0x7c00);
		} else if (u < 113u << 23) { /* subnormal or zero: adding 0.5 rounds the number to fp16's last place */
			float f;
			memcpy(&f, &u, 4);
			f += 0.5f;
			memcpy(&u, &f, 4);
			h[i] = (uint16_t)(sign | (u - (126u << 23)));
		} else {
			h[i] = (uint16_t)(sign | ((u - (112u << 23) + 0xfff + (u >> 13 & 1)) >> 13));
		}
	}
	memcpy(p, h, sizeof h);
#endif
}

INLINE void v_store(uint32_t dtype, void *p, vf v)
{
	if (dtype == SKV_F32)
		v_storef(p, v);
	else if (dtype == SKV_F16)
		v_store_f16(p, v);
	else
		v_store_bf16(p, v);
}

INLINE vf v_load_u8(const void *p)
{
	vb b;
	memcpy(&b, p, sizeof b);
	return __builtin_convertvector(__builtin_convertvector(b, vi), vf);
}

INLINE void v_store_u8(uint8_t *p, vi v)
{
#if defined SKV_AVX512
	_mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8((__m512i)v));
#else
	vb b = __builtin_convertvector(v, vb);
	memcpy(p, &b, sizeof b);
#endif
}

INLINE vf v_load_u4(const void *p)
{
	typedef uint8_t vpair __attribute__((vector_size(VL / 2)));
	typedef uint64_t vwide __attribute__((vector_size(VL * 4)));
	vpair b;
	memcpy(&b, p, sizeof b);
	vwide both = __builtin_convertvector(b, vwide);
	return __builtin_convertvector((vi)((both & 15) | (both >> 4) << 32), vf);
}

INLINE vf v_load_u2(const void *p)
{
	uint32_t all = 0;
	memcpy(&all, p, VL / 4);
	return __builtin_convertvector(((vi){0} + (int32_t)all) >> 2 * v_iota() & 3, vf);
}

INLINE void v_load_pairs(const void *p, vf *ret_first, vf *ret_second)
{
	vi both;
	memcpy(&both, p, sizeof both);
	*ret_first = (vf)(both << 16);
	*ret_second = (vf)(both & -65536);
}

/*
 * Adds to `sum`, in each lane, the products of the lane's bytes of u[0, n), which are integers of up to 15, with signed
 * bytes that are the same for all lanes. The 4 bytes for u[0] are at s, those for u[1] `stride` bytes after them, and
 * so on. n is at most 8, so that the sums of pairs fit in 16 bits until the last addition.
 */
INLINE vi v_dot_bytes(const int n, const vi *u, const int8_t *s, size_t stride, vi sum)
{
	vs pairs = {0};
	UNROLL
	for (int i = 0; i < n; i++) {
		int32_t four;
		memcpy(&four, s + i * stride, sizeof four);
#if defined SKV_AVX512
		pairs += (vs)_mm512_maddubs_epi16((__m512i)u[i], _mm512_set1_epi32(four));
#elif defined SKV_AVX2
		pairs += (vs)_mm256_maddubs_epi16((__m256i)u[i], _mm256_set1_epi32(four));
#else
		const vs both = (vs)((vi){0} + four);
		pairs += ((vs)u[i] & 255) * (both << 8 >> 8) + ((vs)u[i] >> 8) * (both >> 8);
#endif
	}
#if defined SKV_AVX512
	return sum + (vi)_mm512_madd_epi16((__m512i)pairs, _mm512_set1_epi16(1));
#elif defined SKV_AVX2
	return sum + (vi)_mm256_madd_epi16((__m256i)pairs, _mm256_set1_epi16(1));
#else
	return sum + ((vi)pairs << 16 >> 16) + ((vi)pairs >> 16);
#endif
}

/* ---- exp2 ------------------------------------------------------------------------------------ */

/*
 * 2^x: with x = n + f, n a whole number and |f| <= 1/2, 2^f is computed by its minimax polynomial of degree 6 (relative
 * error 2e-9) and multiplied by 2^n. Results below the smallest normal number may be flushed to 0.
 */
INLINE vf v_exp2(vf x)
{
#if defined SKV_AVX512
	x = v_max(v_set(-150), x); /* the arguments are in this order because v_max() keeps a NaN in the second one */
	vf n = (vf)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
	vi tiny = x < -126;
	x = v_max(v_set(-126), x);
	/* adding the number leaves no room for fraction bits, which rounds to a whole number */
	const vf magic = v_set(0x1.8p23f);
	vf n = (x + magic) - magic;
#endif
	vf f = x - n;
	vf p = v_fma(f, v_set(0x1.41d334p-13f), v_set(0x1.5f456ap-10f));
	p = v_fma(p, f, v_set(0x1.3b2dbcp-7f));
	p = v_fma(p, f, v_set(0x1.c6aed4p-5f));
	p = v_fma(p, f, v_set(0x1.ebfbdap-3f));
	p = v_fma(p, f, v_set(0x1.62e43p-1f));
	p = v_fma(p, f, v_set(1));
#if defined SKV_AVX512
	return (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
	vu exponent = (vu)(x + magic) << 23; /* the low bits of x + magic are n */
	return (vf)((vi)((vu)p + exponent) & ~tiny);
#endif
}

/* ---- across lanes ---------------------------------------------------------------------------- */

/*
 * Shuffles of two vectors a and b, chosen so that each is one instruction. Within every group of four lanes:
 *   v_lo1, v_hi1   a0 b0 a1 b1 and a2 b2 a3 b3
 *   v_lo2, v_hi2   a0 a1 b0 b1 and a2 a3 b2 b3
 * Shuffles of whole groups of four lanes (VL = 16; with the two groups of VL = 8, a0 b0 and a1 b1):
 *   v_lo4, v_hi4   a0 a2 b0 b2 and a1 a3 b1 b3
 */
#define V_SHUFFLE(name, ...)                                                                                 \
	INLINE vf name(vf a, vf b)                                                                           \
	{                                                                                                    \
		return __builtin_shufflevector(a, b, __VA_ARGS__);                                           \
	}
#if VL == 16
V_SHUFFLE(v_lo1, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29)
V_SHUFFLE(v_hi1, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31)
V_SHUFFLE(v_lo2, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
V_SHUFFLE(v_hi2, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
V_SHUFFLE(v_lo4, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27)
V_SHUFFLE(v_hi4, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31)
#elif VL == 8
V_SHUFFLE(v_lo1, 0, 8, 1, 9, 4, 12, 5, 13)
V_SHUFFLE(v_hi1, 2, 10, 3, 11, 6, 14, 7, 15)
V_SHUFFLE(v_lo2, 0, 1, 8, 9, 4, 5, 12, 13)
V_SHUFFLE(v_hi2, 2, 3, 10, 11, 6, 7, 14, 15)
V_SHUFFLE(v_lo4, 0, 1, 2, 3, 8, 9, 10, 11)
V_SHUFFLE(v_hi4, 4, 5, 6, 7, 12, 13, 14, 15)
#else
V_SHUFFLE(v_lo1, 0, 4, 1, 5)
V_SHUFFLE(v_hi1, 2, 6, 3, 7)
V_SHUFFLE(v_lo2, 0, 1, 4, 5)
V_SHUFFLE(v_hi2, 2, 3, 6, 7)
#endif

/* Folding reduces several lanes to one: their sum, or their maximum. */
enum v_op { V_SUM, V_MAX };

INLINE vf v_op(enum v_op op, vf a, vf b)
{
	return op == V_SUM ? a + b : v_max(a, b);
}

/*
 * Folds the groups of four lanes of four vectors: lane 4g + i of the result is the fold of group g of the i-th vector.
 */
INLINE vf v_fold_groups(enum v_op op, vf a, vf b, vf c, vf d)
{
	vf ab = v_op(op, v_lo1(a, b), v_hi1(a, b)), cd = v_op(op, v_lo1(c, d), v_hi1(c, d));
	return v_op(op, v_lo2(ab, cd), v_hi2(ab, cd));
}

INLINE vf v_fold_rows(enum v_op op, const vf r[VL])
{
	vf x[VL / 4];
	UNROLL
	for (int i = 0; i < VL / 4; i++)
		x[i] = v_fold_groups(op, r[4 * i], r[4 * i + 1], r[4 * i + 2], r[4 * i + 3]);
#if VL == 16
	x[0] = v_op(op, v_lo4(x[0], x[1]), v_hi4(x[0], x[1]));
	x[1] = v_op(op, v_lo4(x[2], x[3]), v_hi4(x[2], x[3]));
#endif
#if VL >= 8
	x[0] = v_op(op, v_lo4(x[0], x[1]), v_hi4(x[0], x[1]));
#endif
	return x[0];
}

/* v_mirror_h: lane i of the result is lane i xor h of the vector. */
#define V_MIRROR(name, ...)                                                                                  \
	INLINE vf name(vf a)                                                                                 \
	{                                                                                                    \
		return __builtin_shufflevector(a, a, __VA_ARGS__);                                           \
	}
#if VL == 16
V_MIRROR(v_mirror1, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)
V_MIRROR(v_mirror2, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)
V_MIRROR(v_mirror4, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)
V_MIRROR(v_mirror8, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)
#elif VL == 8
V_MIRROR(v_mirror1, 1, 0, 3, 2, 5, 4, 7, 6)
V_MIRROR(v_mirror2, 2, 3, 0, 1, 6, 7, 4, 5)
V_MIRROR(v_mirror4, 4, 5, 6, 7, 0, 1, 2, 3)
#else
V_MIRROR(v_mirror1, 1, 0, 3, 2)
V_MIRROR(v_mirror2, 2, 3, 0, 1)
#endif

/* Returns the number of lanes that are set in a mask. */
INLINE uint32_t v_count(vi mask)
{
#if defined SKV_AVX512
	return (uint32_t)__builtin_popcount(_mm512_movepi32_mask((__m512i)mask));
#elif defined SKV_AVX2
	return (uint32_t)__builtin_popcount((unsigned)_mm256_movemask_ps((__m256)mask));
#else
	return (uint32_t)-(mask[0] + mask[1] + mask[2] + mask[3]);
#endif
}

/*
 * Writes the lanes of v where the mask is set, one after the other, and nothing after them. Returns the number of lanes
 * written.
 */
INLINE uint32_t v_compress(uint32_t *to, vi v, vi mask)
{
	uint32_t n = v_count(mask);
#if defined SKV_AVX512
	const __m512i packed = _mm512_maskz_compress_epi32(_mm512_movepi32_mask((__m512i)mask), (__m512i)v);
	_mm512_mask_storeu_epi32(to, (__mmask16)((1u << n) - 1), packed);
#elif defined SKV_AVX2
	unsigned bits = (unsigned)_mm256_movemask_ps((__m256)mask);
	for (uint32_t m = 0; m < n; m++, bits &= bits - 1) /* usually few lanes are set */
		to[m] = (uint32_t)v[__builtin_ctz(bits)];
#else
	for (uint32_t i = 0, m = 0; m < n; i++) {
		to[m] = (uint32_t)v[i];
		m -= (uint32_t)mask[i];
	}
#endif
	return n;
}

/* Folds each run of `width` lanes (a power of two): all lanes of a run get the run's sum (maximum). */
INLINE vf v_fold_runs(enum v_op op, vf a, const int width)
{
	if (width > 1)
		a = v_op(op, a, v_mirror1(a));
	if (width > 2)
		a = v_op(op, a, v_mirror2(a));
#if VL >= 8
	if (width > 4)
		a = v_op(op, a, v_mirror4(a));
#endif
#if VL >= 16
	if (width > 8)
		a = v_op(op, a, v_mirror8(a));
#endif
	return a;
}

/* Returns the sum of n floats (n is a multiple of VL), always added in the same order. */
INLINE float v_sum_row(const float *x, uint32_t n)
{
	vf sum = {0};
	for (uint32_t i = 0; i < n; i += VL)
		sum += v_loadf(x + i);
	return v_fold_runs(V_SUM, sum, VL)[0];
}

/* Multiplies the lanes of a by the Hadamard matrix of VL rows, in Sylvester's order. */
INLINE vf v_hadamard(vf a)
{
	const vi lane = v_iota();

	a = v_mirror1(a) + (vf)((vi)a ^ lane << 31);
	a = v_mirror2(a) + (vf)((vi)a ^ (lane & 2) << 30);
#if VL >= 8
	a = v_mirror4(a) + (vf)((vi)a ^ (lane & 4) << 29);
#endif
#if VL >= 16
	a = v_mirror8(a) + (vf)((vi)a ^ (lane & 8) << 28);
#endif
	return a;
}

INLINE void v_transpose(vf r[VL])
{
	UNROLL
	for (int i = 0; i < VL; i += 4) { /* transposes the blocks of 4 x 4 floats in each group of four lanes */
		vf a = v_lo1(r[i], r[i + 1]), b = v_hi1(r[i], r[i + 1]);
		vf c = v_lo1(r[i + 2], r[i + 3]), d = v_hi1(r[i + 2], r[i + 3]);
		r[i] = v_lo2(a, c);
		r[i + 1] = v_hi2(a, c);
		r[i + 2] = v_lo2(b, d);
		r[i + 3] = v_hi2(b, d);
	}
#if VL == 8
	UNROLL
	for (int i = 0; i < 4; i++) {
		vf a = r[i], b = r[i + 4];
		r[i] = v_lo4(a, b);
		r[i + 4] = v_hi4(a, b);
	}
#elif VL == 16
	UNROLL
	for (int i = 0; i < 4; i++) {
		vf a = v_lo4(r[i], r[i + 4]), b = v_hi4(r[i], r[i + 4]);
		vf c = v_lo4(r[i + 8], r[i + 12]), d = v_hi4(r[i + 8], r[i + 12]);
		r[i] = v_lo4(a, c);
		r[i + 4] = v_lo4(b, d);
		r[i + 8] = v_hi4(a, c);
		r[i + 12] = v_hi4(b, d);
	}
#endif
}

/*
 * Loads 16 bytes of each of VL / 4 rows, `stride` bytes apart: one row into each group of four lanes. The rows are not
 * assembled in memory, because a vector load soon after stores of its parts stalls.
 */
INLINE vf v_load_groups(const uint8_t *row, size_t stride)
{
#if VL > 4
	__m256i low = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)row));
	low = _mm256_inserti128_si256(low, _mm_loadu_si128((const __m128i *)(row + stride)), 1);
#endif
#if VL == 16
	__m256i high = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(row + 2 * stride)));
	high = _mm256_inserti128_si256(high, _mm_loadu_si128((const __m128i *)(row + 3 * stride)), 1);
	return (vf)_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
#elif VL == 8
	return (vf)low;
#else
	(void)stride;
	return v_loadf((const float *)row);
#endif
}

/* Loads 16 bytes of each of VL rows, `stride` bytes apart: lane i of column[j] gets bytes [4j, 4j + 4) of row i. */
INLINE void v_load_columns(const uint8_t *row, size_t stride, vi column[4])
{
	vf r[4];
	UNROLL
	for (int i = 0; i < 4; i++)
		r[i] = v_load_groups(row + i * stride, 4 * stride);
	vf a = v_lo1(r[0], r[1]), b = v_hi1(r[0], r[1]), c = v_lo1(r[2], r[3]), d = v_hi1(r[2], r[3]);
	column[0] = (vi)v_lo2(a, c);
	column[1] = (vi)v_hi2(a, c);
	column[2] = (vi)v_lo2(b, d);
	column[3] = (vi)v_hi2(b, d);
}
#endif
