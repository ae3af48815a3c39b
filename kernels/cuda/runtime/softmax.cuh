/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cuda/runtime/softmax.cuh - the denominator of a softmax (base 2), reduced over a block's threads. */
#ifndef SKV_CUDA_SOFTMAX_CUH
#define SKV_CUDA_SOFTMAX_CUH

#include <math.h>
#include "kernels/cuda/runtime/convert.cuh"


/* A maximum, and the sum of exp2(x - maximum). */
struct partial_softmax {
	float max, sum;
};

DEVICE struct partial_softmax merge_softmax(struct partial_softmax a, struct partial_softmax b)
{
	const float max = fmaxf(a.max, b.max), base = max == -INFINITY ? 0 : max;
	return {max, a.sum * exp2f(a.max - base) + b.sum * exp2f(b.max - base)};
}

/* Over a warp's lanes; the first lane has the result. */
DEVICE struct partial_softmax warp_merge_softmax(struct partial_softmax mine)
{
#pragma unroll
	for (int lane = 1; lane < 32; lane *= 2)
		mine = merge_softmax(mine, {__shfl_xor_sync(~0u, mine.max, lane), __shfl_xor_sync(~0u, mine.sum, lane)});
	return mine;
}

/* log2 of the denominator, from the warps' parts; infinite if there is nothing. */
template <int warps> DEVICE float log_denominator(const struct partial_softmax (&of_warp)[warps])
{
	struct partial_softmax all = of_warp[0];
#pragma unroll
	for (int w = 1; w < warps; w++)
		all = merge_softmax(all, of_warp[w]);
	return all.sum > 0 ? all.max + log2f(all.sum) : INFINITY;
}

#endif
