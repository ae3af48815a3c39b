/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cuda/runtime/async-copy.cuh - to shared memory in the background, and out of it as the tensor cores take it. */
#ifndef SKV_CUDA_SHARED_CUH
#define SKV_CUDA_SHARED_CUH

#include "kernels/cuda/runtime/convert.cuh"

DEVICE uint32_t shared_address(const void *p)
{
	return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes to shared memory in the background; zeros when there is nothing to read. */
DEVICE void copy16(uint32_t to, const void *from, bool there)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0));
}

DEVICE void copy4(uint32_t to, const void *from)
{
	asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from));
}

DEVICE void copies_queued(void)
{
	asm volatile("cp.async.commit_group;");
}

template <int n> DEVICE void copies_wait(void)
{
	asm volatile("cp.async.wait_group %0;" ::"n"(n));
}

DEVICE uint4 matrices(uint32_t at)
{
	uint4 m;
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
	             : "=r"(m.x), "=r"(m.y), "=r"(m.z), "=r"(m.w) : "r"(at));
	return m;
}

/* The same, each of the four transposed. */
DEVICE uint4 matrices_turned(uint32_t at)
{
	uint4 m;
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
	             : "=r"(m.x), "=r"(m.y), "=r"(m.z), "=r"(m.w) : "r"(at));
	return m;
}

#endif
