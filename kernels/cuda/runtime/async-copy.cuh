/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/runtime/async-copy.cuh - access to shared memory by its address: cp.async into it, ldmatrix and plain
 * loads from it.
 */
#ifndef SKV_CUDA_ASYNC_COPY_CUH
#define SKV_CUDA_ASYNC_COPY_CUH

#include "kernels/cuda/runtime/convert.cuh"

DEVICE uint32_t shared_address(const void *p)
{
	return (uint32_t)__cvta_generic_to_shared(p);
}

#ifndef SKV_EMULATE
/* Copies 16 bytes to shared memory asynchronously; stores zeros if the source does not exist. */
DEVICE void cp_async16(uint32_t to, const void *from, bool exists)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0));
}

DEVICE void store_shared16(uint32_t to, uint4 x)
{
	asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}

DEVICE uint4 load_shared16(uint32_t at)
{
	uint4 v;
	asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
	return v;
}

DEVICE uint2 load_shared8(uint32_t at)
{
	uint2 v;
	asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
	return v;
}

DEVICE uint32_t load_shared4(uint32_t at)
{
	uint32_t v;
	asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
	return v;
}

DEVICE uint32_t load_shared2(uint32_t at)
{
	uint16_t v;
	asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
	return v;
}

DEVICE uint32_t load_shared1(uint32_t at)
{
	uint16_t v;
	asm volatile("ld.shared.u8 %0, [%1];" : "=h"(v) : "r"(at));
	return v;
}

DEVICE void cp_async4(uint32_t to, const void *from)
{
	asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from));
}

DEVICE void cp_async_commit(void)
{
	asm volatile("cp.async.commit_group;");
}

template <int n> DEVICE void cp_async_wait(void)
{
	asm volatile("cp.async.wait_group %0;" ::"n"(n));
}

DEVICE uint4 ldmatrix_x4(uint32_t at)
{
	uint4 m;
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
	             : "=r"(m.x), "=r"(m.y), "=r"(m.z), "=r"(m.w) : "r"(at));
	return m;
}

/* Loads four 8 x 8 matrices like ldmatrix_x4(), each one transposed. */
DEVICE uint4 ldmatrix_x4_trans(uint32_t at)
{
	uint4 m;
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
	             : "=r"(m.x), "=r"(m.y), "=r"(m.z), "=r"(m.w) : "r"(at));
	return m;
}
#endif

#endif
