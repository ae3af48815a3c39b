/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/runtime/fp8.cuh - fp8 rows: e4m3 elements, and for each row one scale, a power of two (SKV_FP8 in
 * types.h).
 *
 * fp8 rows are converted to fp16 before the tensor cores multiply them. A row's scale multiplies its scores and softmax
 * weights, or the elements themselves if the row passes through shared memory.
 */
#ifndef SKV_CUDA_FP8_CUH
#define SKV_CUDA_FP8_CUH

#include <cuda_fp8.h>
#include "kernels/cuda/runtime/convert.cuh"

struct FP8 : F16 {
	static constexpr uint32_t dtype = SKV_FP8;
};

template <class T> static constexpr bool is_fp8 = T::dtype == SKV_FP8;
template <class T> static constexpr uint32_t element_bytes = is_fp8<T> ? 1 : 2;

#define FP8_NAN_SCALE 255u /* scale of a row that is NaN: the factor is infinity, the elements are zeros */

/* ---- reading --------------------------------------------------------------------------------- */

/* Converts the two e4m3 numbers in a word's lower or upper half to fp16. */
DEVICE uint32_t fp8_lower(uint32_t word)
{
	const __half2_raw h = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)(word & 0xffff), __NV_E4M3);
	return *(const uint32_t *)&h;
}
DEVICE uint32_t fp8_upper(uint32_t word)
{
	return fp8_lower(word >> 16);
}

/* Converts the two e4m3 numbers in a word's lower half to floats. */
DEVICE float2 fp8_two(uint32_t word)
{
	const uint32_t two = fp8_lower(word);
	return __half22float2(*(const __half2 *)&two);
}

/* Converts eight e4m3 elements to four words of fp16. */
DEVICE uint4 fp8_widen(uint2 e)
{
	return make_uint4(fp8_lower(e.x), fp8_upper(e.x), fp8_lower(e.y), fp8_upper(e.y));
}

/* Loads eight elements at `row`, times the row's scale, as fp16. Like those of fp16 pages, they must fit fp16's range. */
DEVICE uint4 fp8_values(const uint8_t *row, uint32_t scale)
{
	const uint4 e = fp8_widen(*(const uint2 *)row);
	const __half2 unit = __float2half2_rn(__uint_as_float(scale << 23));
	const uint32_t in[4] = {e.x, e.y, e.z, e.w};
	uint32_t out[4];
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const __half2 x = __hmul2(*(const __half2 *)&in[i], unit);
		out[i] = *(const uint32_t *)&x;
	}
	return make_uint4(out[0], out[1], out[2], out[3]);
}

/*
 * The factor that a row's scale stands for. The factor is infinite for a row that is NaN; the row's elements are zeros,
 * so the products are NaN.
 */
DEVICE float fp8_unit(uint32_t scale)
{
	return __uint_as_float(scale << 23);
}

/*
 * Types for eight and for four elements of a pool's row, functions that load them, and widen(), which converts eight
 * fp8 elements to fp16.
 */
template <class T> struct pieces {
	typedef uint4 eight;
	typedef uint2 four;
};
template <> struct pieces<FP8> {
	typedef uint2 eight;
	typedef uint32_t four;
};

DEVICE void load_piece(uint4 *to, const uint8_t *from, uint64_t policy)
{
	*to = load16(from, policy);
}
DEVICE void load_piece(uint2 *to, const uint8_t *from, uint64_t policy)
{
	*to = load8(from, policy);
}
DEVICE void load_piece(uint32_t *to, const uint8_t *from, uint64_t policy)
{
	*to = load4(from, policy);
}

DEVICE uint4 widen(uint4 e)
{
	return e;
}
DEVICE uint4 widen(uint2 e)
{
	return fp8_widen(e);
}

/*
 * row_read8() loads elements i to i + 7 of rows of any pool dtype; i is a multiple of 8. row_pair() returns elements 2
 * k and 2 k + 1 of the eight as floats, not multiplied by fp8 scales.
 */
DEVICE uint4 row_read8(uint32_t dtype, const uint8_t *rows, size_t i)
{
	if (dtype != SKV_FP8)
		return *(const uint4 *)(rows + i * 2);
	const uint2 e = *(const uint2 *)(rows + i);
	return make_uint4(e.x, e.y, 0, 0);
}
DEVICE float2 row_pair(uint32_t dtype, uint4 e, int k)
{
	if (dtype == SKV_FP8)
		return fp8_two((k < 2 ? e.x : e.y) >> k % 2 * 16);
	return io_two(dtype, k == 0 ? e.x : k == 1 ? e.y : k == 2 ? e.z : e.w);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* The magnitude of a number as an integer; NaN is the largest. A row's largest magnitude determines its scale. */
DEVICE uint32_t fp8_size(float x)
{
	return __float_as_uint(x) & 0x7fffffff;
}

/* Returns the scale of a row whose largest magnitude is `top`: the same scale as the host's fp8_scale_of(). */
DEVICE uint32_t fp8_scale_of(uint32_t top)
{
	if (top >= (127u + 120) << 23)
		return FP8_NAN_SCALE;
	top = (top + 0x1fffff) >> 23; /* the exponent, plus 1 if the mantissa is above 1.75 */
	return top > 9 ? top - 8 : 1;
}

/*
 * Factor by which elements are multiplied before they are stored; 0 for a row that is NaN, whose elements are not used.
 */
DEVICE float fp8_inverse(uint32_t scale)
{
	return scale == FP8_NAN_SCALE ? 0 : __uint_as_float((254 - scale) << 23);
}

/* Converts two elements of a row with this scale to e4m3, rounded to nearest even. */
DEVICE uint32_t fp8_pair(uint32_t scale, float2 x)
{
	const float by = fp8_inverse(scale);
	return scale == FP8_NAN_SCALE ? 0
	                              : __nv_cvt_float2_to_fp8x2(make_float2(x.x * by, x.y * by), __NV_SATFINITE, __NV_E4M3);
}

/* Returns the value that is read back after element x was stored in a row with this scale. */
DEVICE float fp8_rounded(uint32_t scale, float x)
{
	return fp8_two(fp8_pair(scale, make_float2(x, 0))).x * fp8_unit(scale);
}

/*
 * A warp converts and stores a row: `dim` elements of the caller's rows, a multiple of 16, beginning at element `at`. D
 * is `dim`, or 0 if that is not a constant.
 */
template <int D>
DEVICE void store_fp8_row(uint32_t io_dtype, const void *from, size_t at, uint32_t dim, uint8_t *to, uint8_t *to_scale)
{
	constexpr int most = (D ? D + 63 : SKV_MAX_HEAD_DIM) / 64; /* a lane has elements d = 2 lane + 64 i and d + 1 */
	const uint32_t lane = threadIdx.x % 32;
	float2 x[most];
	uint32_t top = 0;
#pragma unroll
	for (int i = 0; i < most; i++) {
		const uint32_t d = 2 * lane + 64 * i;
		x[i] = d < dim ? io_load2(io_dtype, from, at + d) : make_float2(0, 0);
		top = max(top, max(fp8_size(x[i].x), fp8_size(x[i].y)));
	}
	const uint32_t scale = fp8_scale_of(__reduce_max_sync(~0u, top));
#pragma unroll
	for (int i = 0; i < most; i++) {
		const uint32_t d = 2 * lane + 64 * i;
		if (d < dim)
			*(uint16_t *)&to[d] = (uint16_t)fp8_pair(scale, x[i]);
	}
	if (lane == 0)
		*to_scale = (uint8_t)scale;
}

#endif
