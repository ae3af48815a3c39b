/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cuda/runtime/softmax.cuh - the denominator of a softmax in powers of two, from parts that a block's threads have. */
#ifndef SKV_CUDA_SOFTMAX_CUH
#define SKV_CUDA_SOFTMAX_CUH

#include <math.h>
#include "kernels/cuda/runtime/convert.cuh"

#define LOG2E 1.44269504088896340736f

/* A maximum, and a sum of powers of two below it. */
struct part {
	float max, sum;
};

DEVICE struct part join(struct part a, struct part b)
{
	const float max = fmaxf(a.max, b.max), base = max == -INFINITY ? 0 : max;
	return {max, a.sum * exp2f(a.max - base) + b.sum * exp2f(b.max - base)};
}

/* Of a warp's lanes: its first lane has it. */
DEVICE struct part warp_join(struct part mine)
{
#pragma unroll
	for (int lane = 1; lane < 32; lane *= 2)
		mine = join(mine, {__shfl_xor_sync(~0u, mine.max, lane), __shfl_xor_sync(~0u, mine.sum, lane)});
	return mine;
}

/* Its logarithm, from the parts of warps; infinite where there is nothing. */
template <int warps> DEVICE float denominator(const struct part (&of_warp)[warps])
{
	struct part all = of_warp[0];
#pragma unroll
	for (int w = 1; w < warps; w++)
		all = join(all, of_warp[w]);
	return all.sum > 0 ? all.max + log2f(all.sum) : INFINITY;
}

#endif
