/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/runtime/convert.cuh - conversion of elements of pages and of the caller's rows, loads and stores with L2
 * cache policies.
 */
#ifndef SKV_CUDA_CONVERT_CUH
#define SKV_CUDA_CONVERT_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <sparsekv/types.h>

#define DEVICE static __device__ __forceinline__
#define LOG2E 1.44269504088896340736f

/* Loads element i of the caller's row, as a float. */
DEVICE float io_load(uint32_t dtype, const void *p, size_t i)
{
	if (dtype == SKV_F32)
		return ((const float *)p)[i];
	return dtype == SKV_F16 ? __half2float(((const __half *)p)[i]) : __bfloat162float(((const __nv_bfloat16 *)p)[i]);
}

DEVICE void io_store(uint32_t dtype, void *p, size_t i, float x)
{
	if (dtype == SKV_F32)
		((float *)p)[i] = x;
	else if (dtype == SKV_F16)
		((__half *)p)[i] = __float2half_rn(x);
	else
		((__nv_bfloat16 *)p)[i] = __float2bfloat16_rn(x);
}

/* Stores elements i to i + 3 of the caller's row; i is a multiple of 4. */
DEVICE void io_store4(uint32_t dtype, void *p, size_t i, float4 x)
{
	if (dtype == SKV_F32) {
		((float4 *)p)[i / 4] = x;
		return;
	}
	const __half2 h[2] = {__floats2half2_rn(x.x, x.y), __floats2half2_rn(x.z, x.w)};
	const __nv_bfloat162 b[2] = {__floats2bfloat162_rn(x.x, x.y), __floats2bfloat162_rn(x.z, x.w)};
	((uint2 *)p)[i / 4] = dtype == SKV_F16 ? make_uint2(*(const uint32_t *)&h[0], *(const uint32_t *)&h[1])
	                                       : make_uint2(*(const uint32_t *)&b[0], *(const uint32_t *)&b[1]);
}

/* Stores elements i to i + 7 of the caller's row; i is a multiple of 8. */
DEVICE void io_store8(uint32_t dtype, void *p, size_t i, const float2 (&x)[4])
{
	if (dtype == SKV_F32) {
		((float4 *)p)[i / 4] = make_float4(x[0].x, x[0].y, x[1].x, x[1].y);
		((float4 *)p)[i / 4 + 1] = make_float4(x[2].x, x[2].y, x[3].x, x[3].y);
		return;
	}
	uint32_t w[4];
#pragma unroll
	for (int k = 0; k < 4; k++) {
		const __half2 h = __floats2half2_rn(x[k].x, x[k].y);
		const __nv_bfloat162 b = __floats2bfloat162_rn(x[k].x, x[k].y);
		w[k] = dtype == SKV_F16 ? *(const uint32_t *)&h : *(const uint32_t *)&b;
	}
	((uint4 *)p)[i / 8] = make_uint4(w[0], w[1], w[2], w[3]);
}

/* Loads elements i and i + 1 of the caller's row; i is even. */
DEVICE float2 io_load2(uint32_t dtype, const void *p, size_t i)
{
	if (dtype == SKV_F32)
		return ((const float2 *)p)[i / 2];
	return dtype == SKV_F16 ? __half22float2(((const __half2 *)p)[i / 2])
	                        : __bfloat1622float2(((const __nv_bfloat162 *)p)[i / 2]);
}

/*
 * Eight elements of the caller's row, as stored. They are read in two steps: io_read8() loads, io_pair() converts. So
 * all loads of a row are in flight together; converting right after each load would wait for each load in turn.
 */
struct vec8 {
	uint4 word[2];
};

/* Loads elements i to i + 7 of the caller's row, without converting them; i is a multiple of 8. */
DEVICE struct vec8 io_read8(uint32_t dtype, const void *p, size_t i)
{
	struct vec8 e;
	const uint4 *at = (const uint4 *)((const uint8_t *)p + i * (dtype == SKV_F32 ? 4 : 2));
	e.word[0] = at[0];
	if (dtype == SKV_F32)
		e.word[1] = at[1];
	return e;
}

DEVICE float2 io_two(uint32_t dtype, uint32_t word)
{
	return dtype == SKV_F16 ? __half22float2(*(const __half2 *)&word) : __bfloat1622float2(*(const __nv_bfloat162 *)&word);
}

/* Converts elements 2 k and 2 k + 1 of the eight to floats. */
DEVICE float2 io_pair(uint32_t dtype, const struct vec8 *e, int k)
{
	const uint4 a = e->word[0], v = k < 2 ? a : e->word[1];
	if (dtype == SKV_F32)
		return k % 2 ? make_float2(__uint_as_float(v.z), __uint_as_float(v.w))
		             : make_float2(__uint_as_float(v.x), __uint_as_float(v.y));
	return io_two(dtype, k == 0 ? a.x : k == 1 ? a.y : k == 2 ? a.z : a.w);
}

#ifndef SKV_EMULATE /* the functions before struct F16 are single instructions, which tests/emulate/ replaces */
/* Tensor core product of a 16 x 16 matrix a and a 16 x 8 matrix b, added to c. */
DEVICE void mma_f16(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
	    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
	    : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

DEVICE void mma_bf16(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
	    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
	    : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Transposes an 8 x 8 matrix of 16-bit elements; each lane's word has two of its elements. */
DEVICE uint32_t transpose8x8(uint32_t x)
{
	uint32_t y;
	asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
	return y;
}

DEVICE float exp2_fast(float x)
{
	float y;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

/*
 * L2 cache policies for loads and stores. Data that is read once bypasses L1 and is evicted from L2 first. Data that is
 * written and soon read again stays in L2: a write that reaches memory among reads costs bandwidth many times its size.
 * A policy is the value that the instruction createpolicy returns; on Hopper and later it is a constant, which takes no
 * registers.
 */
DEVICE uint64_t evict_first_policy(void)
{
#if __CUDA_ARCH__ >= 900
	return 0x12f0000000000000;
#else
	uint64_t p;
	asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
	return p;
#endif
}

DEVICE uint64_t evict_last_policy(void)
{
#if __CUDA_ARCH__ >= 900
	return 0x14f0000000000000;
#else
	uint64_t p;
	asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(p));
	return p;
#endif
}

DEVICE uint4 load16(const void *p, uint64_t policy)
{
	uint4 v;
	asm volatile("ld.global.L1::no_allocate.L2::cache_hint.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
	             : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p), "l"(policy));
	return v;
}

DEVICE uint2 load8(const void *p, uint64_t policy)
{
	uint2 v;
	asm volatile("ld.global.L1::no_allocate.L2::cache_hint.L2::128B.v2.u32 {%0,%1}, [%2], %3;"
	             : "=r"(v.x), "=r"(v.y) : "l"(p), "l"(policy));
	return v;
}

DEVICE uint32_t load4(const void *p, uint64_t policy)
{
	uint32_t v;
	asm volatile("ld.global.L1::no_allocate.L2::cache_hint.u32 %0, [%1], %2;" : "=r"(v) : "l"(p), "l"(policy));
	return v;
}

DEVICE uint32_t load2(const void *p, uint64_t policy)
{
	uint16_t v;
	asm volatile("ld.global.L1::no_allocate.L2::cache_hint.u16 %0, [%1], %2;" : "=h"(v) : "l"(p), "l"(policy));
	return v;
}

DEVICE void store4(void *p, uint32_t x, uint64_t policy)
{
	asm volatile("st.global.L2::cache_hint.u32 [%0], %1, %2;" ::"l"(p), "r"(x), "l"(policy) : "memory");
}

DEVICE void store8(float *p, float2 x, uint64_t policy)
{
	asm volatile("st.global.L2::cache_hint.v2.f32 [%0], {%1,%2}, %3;" ::"l"(p), "f"(x.x), "f"(x.y), "l"(policy)
	             : "memory");
}

DEVICE void store16(float *p, float4 x, uint64_t policy)
{
	asm volatile("st.global.L2::cache_hint.v4.f32 [%0], {%1,%2,%3,%4}, %5;" ::"l"(p), "f"(x.x), "f"(x.y), "f"(x.z),
	             "f"(x.w), "l"(policy) : "memory");
}
#endif

/*
 * Operations that depend on the pool's dtype: pair() packs two elements into a word, mma() is the tensor core product.
 */
struct F16 {
	static constexpr uint32_t dtype = SKV_F16;

	DEVICE uint32_t pair(float lo, float hi)
	{
		__half2 h = __floats2half2_rn(lo, hi);
		return *reinterpret_cast<uint32_t *>(&h);
	}
	DEVICE void mma(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
	{
		mma_f16(c, a0, a1, a2, a3, b0, b1);
	}
};

struct BF16 {
	static constexpr uint32_t dtype = SKV_BF16;

	DEVICE uint32_t pair(float lo, float hi)
	{
		__nv_bfloat162 h = __floats2bfloat162_rn(lo, hi);
		return *reinterpret_cast<uint32_t *>(&h);
	}
	DEVICE void mma(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
	{
		mma_bf16(c, a0, a1, a2, a3, b0, b1);
	}
};

#endif
