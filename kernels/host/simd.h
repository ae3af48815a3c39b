/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/simd.h - vectors of VL floats, so that the kernels read as algorithm.
 *
 * Types are GNU vector extensions: + - * and comparisons are written as on scalars. What has no
 * operator is an inline function here, with intrinsics where the compiler would not find the
 * instruction. One of SKV_AVX512, SKV_AVX2 may be defined; without either this is portable C.
 *
 *   VL         lanes of a vector: 16, 8 or 4
 *   vf, vi     float and int32_t lanes
 *   v_load     VL elements of a pool's dtype, widened to float; no alignment needed
 *   v_store    the reverse, rounded to nearest even; a NaN stays a NaN
 *   v_fma      a * b + c, fused where the ISA has it
 *   v_exp2     2^x within 1.5 ulp; 0 for -inf, NaN for NaN. x must be below 128
 *   v_rows_sum, v_rows_max
 *              lane i of the result is the sum (maximum) over the lanes of r[i]
 *   v_transpose  VL x VL floats
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

typedef float vf __attribute__((vector_size(VL * 4)));
typedef int32_t vi __attribute__((vector_size(VL * 4)));
typedef uint32_t vu __attribute__((vector_size(VL * 4)));
typedef uint16_t vh __attribute__((vector_size(VL * 2)));

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

/* Lanes of a where mask is set, of b where it is 0. */
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

/* The larger of each lane; b where one of them is a NaN. */
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
	/* Exponent and mantissa moved into place, then rebased by 2^112; this covers subnormals too. */
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

INLINE vf v_load(uint32_t dtype, const void *p)
{
	return dtype == SKV_F32 ? v_loadf(p) : dtype == SKV_F16 ? v_load_f16(p) : v_load_bf16(p);
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
		if (u > 0x7f800000) { /* NaN: quiet */
			h[i] = (uint16_t)(sign | 0x7e00);
		} else if (u >= 143u << 23) { /* 2^16 and more, infinity */
			h[i] = (uint16_t)(sign | 0x7c00);
		} else if (u < 113u << 23) { /* subnormal or zero: let an addition do the rounding */
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

/* ---- exp2 ------------------------------------------------------------------------------------ */

/*
 * x = n + f with n whole and |f| <= 1/2; 2^f by its minimax polynomial of degree 6 (relative error
 * 2e-9), times 2^n. Results below the smallest normal number may be flushed to 0.
 */
INLINE vf v_exp2(vf x)
{
#if defined SKV_AVX512
	x = v_max(v_set(-150), x); /* this order keeps a NaN */
	vf n = (vf)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
	vi tiny = x < -126;
	x = v_max(v_set(-126), x);
	const vf magic = v_set(0x1.8p23f); /* adding it leaves no room for fraction bits */
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
	vu exponent = (vu)(x + magic) << 23; /* n is in the low bits of x + magic */
	return (vf)((vi)((vu)p + exponent) & ~tiny);
#endif
}

/* ---- across lanes ---------------------------------------------------------------------------- */

/*
 * Rows a and b of a transposition, h apart, swap the blocks of h lanes that lie off the diagonal:
 * v_lo<h> is what row a becomes, v_hi<h> what row b becomes.
 */
#define V_SHUFFLE(name, ...)                                                                                 \
	INLINE vf name(vf a, vf b)                                                                           \
	{                                                                                                    \
		return __builtin_shufflevector(a, b, __VA_ARGS__);                                           \
	}
#if VL == 16
V_SHUFFLE(v_lo8, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
V_SHUFFLE(v_hi8, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31)
V_SHUFFLE(v_lo4, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27)
V_SHUFFLE(v_hi4, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31)
V_SHUFFLE(v_lo2, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
V_SHUFFLE(v_hi2, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
V_SHUFFLE(v_lo1, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30)
V_SHUFFLE(v_hi1, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31)
#elif VL == 8
V_SHUFFLE(v_lo4, 0, 1, 2, 3, 8, 9, 10, 11)
V_SHUFFLE(v_hi4, 4, 5, 6, 7, 12, 13, 14, 15)
V_SHUFFLE(v_lo2, 0, 1, 8, 9, 4, 5, 12, 13)
V_SHUFFLE(v_hi2, 2, 3, 10, 11, 6, 7, 14, 15)
V_SHUFFLE(v_lo1, 0, 8, 2, 10, 4, 12, 6, 14)
V_SHUFFLE(v_hi1, 1, 9, 3, 11, 5, 13, 7, 15)
#else
V_SHUFFLE(v_lo2, 0, 1, 4, 5)
V_SHUFFLE(v_hi2, 2, 3, 6, 7)
V_SHUFFLE(v_lo1, 0, 4, 2, 6)
V_SHUFFLE(v_hi1, 1, 5, 3, 7)
#endif

/* Row i and row i + h become one: its lanes are sums (maxima) of pairs of theirs. */
#define V_FOLD(op, h)                                                                                        \
	UNROLL                                                                                               \
	for (int i = 0; i < h; i++)                                                                          \
		r[i] = op(v_lo##h(r[i], r[i + h]), v_hi##h(r[i], r[i + h]));

INLINE vf v_add(vf a, vf b)
{
	return a + b;
}

INLINE vf v_rows_sum(vf r[VL])
{
#if VL >= 16
	V_FOLD(v_add, 8)
#endif
#if VL >= 8
	V_FOLD(v_add, 4)
#endif
	V_FOLD(v_add, 2)
	V_FOLD(v_add, 1)
	return r[0];
}

INLINE vf v_rows_max(vf r[VL])
{
#if VL >= 16
	V_FOLD(v_max, 8)
#endif
#if VL >= 8
	V_FOLD(v_max, 4)
#endif
	V_FOLD(v_max, 2)
	V_FOLD(v_max, 1)
	return r[0];
}

#define V_EXCHANGE(h)                                                                                        \
	UNROLL                                                                                               \
	for (int i = 0; i < VL; i++)                                                                         \
		if (!(i & h)) {                                                                              \
			vf a = r[i], b = r[i + h];                                                           \
			r[i] = v_lo##h(a, b);                                                                \
			r[i + h] = v_hi##h(a, b);                                                            \
		}

INLINE void v_transpose(vf r[VL])
{
#if VL >= 16
	V_EXCHANGE(8)
#endif
#if VL >= 8
	V_EXCHANGE(4)
#endif
	V_EXCHANGE(2)
	V_EXCHANGE(1)
}

/* Sum and maximum of one vector's lanes, folded in halves. */
#define V_HALVES(op)                                                                                         \
	float x[VL];                                                                                         \
	v_storef(x, v);                                                                                      \
	for (int h = VL / 2; h > 0; h /= 2)                                                                  \
		for (int i = 0; i < h; i++)                                                                  \
			x[i] = op(x[i], x[i + h]);                                                           \
	return x[0];

INLINE float v_sum(vf v)
{
#define OP(a, b) ((a) + (b))
	V_HALVES(OP)
#undef OP
}

INLINE float v_max_lanes(vf v)
{
#define OP(a, b) ((a) > (b) ? (a) : (b))
	V_HALVES(OP)
#undef OP
}
#endif
