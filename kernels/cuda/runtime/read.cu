/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/runtime/read.cu - a plain streaming read of memory, whose bandwidth is the baseline for the attention
 * kernels.
 *
 * Each thread has eight independent loads in flight, in the order of the addresses, and computes nothing between them.
 */
#include "kernels/cuda/runtime/cuda.h"
#include "kernels/cuda/runtime/read.h"

#define THREADS 256
#define BLOCKS 16u /* blocks per multiprocessor */
#define DEEP 8

__device__ uint32_t sink;

__device__ static uint4 load(const uint4 *p)
{
	uint4 v;
	asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
	             : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
	return v;
}

__global__ void __launch_bounds__(THREADS) read_kernel(const uint4 *p, size_t n)
{
	const size_t stride = (size_t)gridDim.x * THREADS;
	size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
	uint32_t sum = 0;

	for (; i + (DEEP - 1) * stride < n; i += DEEP * stride) {
		uint4 v[DEEP];
#pragma unroll
		for (int k = 0; k < DEEP; k++)
			v[k] = load(p + i + k * stride);
#pragma unroll
		for (int k = 0; k < DEEP; k++)
			sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
	}
	for (; i < n; i += stride)
		sum += load(p + i).x;
	if (sum == 0x5eed5eed) /* practically never true; keeps the compiler from removing the loads */
		sink = sum;
}

void skv_cuda_read(const void *p, size_t bytes, cudaStream_t stream)
{
	read_kernel<<<BLOCKS * skv_cuda_sms(), THREADS, 0, stream>>>((const uint4 *)p, bytes / sizeof(uint4));
}
