/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/runtime/softmax.cuh - softmax in base 2: scores from products, the learned sink's term, and the
 * denominator, reduced over a block's threads.
 */
#ifndef SKV_CUDA_SOFTMAX_CUH
#define SKV_CUDA_SOFTMAX_CUH

#include <math.h>
#include "kernels/batch.h"
#include "kernels/cuda/runtime/convert.cuh"

#define LN2 0.693147180559945309417f

/* A product x = q·k becomes the score scale * x, in log2; if `cap` is not 0, scale * soft_cap(cap, x). */
struct score_scale {
	float scale, cap;
};

static inline struct score_scale score_scale_of(const struct skv_shape *sh)
{
	if (sh->softcap == 0)
		return {sh->scale * LOG2E, 0};
	return {sh->softcap * LOG2E, 2 * LOG2E * sh->scale / sh->softcap};
}

/*
 * tanh(x cap / (2 log2 e)), computed as 1 - 2 / (1 + 2^(cap x)). The error is at most about 2^-21, less than the effect
 * of rounding q and k on any score. The error of the hardware's tanh is 2^-11.
 */
DEVICE float soft_cap(float cap, float x)
{
	return 1 - __fdividef(2, 1 + exp2_fast(cap * x));
}

/*
 * The sink's term of a head's softmax, relative to a maximum; 0 without sinks. `sinks` are natural logarithms, `max` is
 * in log2.
 */
DEVICE float sink_term(const float *sinks, uint32_t head, float max)
{
	return sinks ? exp2_fast(sinks[head] * LOG2E - max) : 0;
}

/* Adds the sink's term to a denominator's log2. An infinite one (no tokens, or no row) stays as it is. */
DEVICE float add_sink(const float *sinks, uint32_t head, float lse)
{
	if (!sinks || isinf(lse))
		return lse;
	const float sink = sinks[head] * LOG2E, max = fmaxf(lse, sink);
	return max + log2f(exp2_fast(lse - max) + exp2_fast(sink - max));
}

/* Natural logarithm of a sum of weights relative to a maximum; -infinity if the sum is 0. A NaN stays a NaN. */
DEVICE float log_sum(float max, float sum)
{
	return sum == 0 ? -INFINITY : (max + log2f(sum)) * LN2;
}

/* A maximum, and the sum of exp2(x - maximum). */
struct partial_softmax {
	float max, sum;
};

DEVICE struct partial_softmax merge_softmax(struct partial_softmax a, struct partial_softmax b)
{
	const float max = fmaxf(a.max, b.max), base = max == -INFINITY ? 0 : max;
	return {max, a.sum * exp2f(a.max - base) + b.sum * exp2f(b.max - base)};
}

/* Merges the parts of a warp's lanes; the first lane has the result. */
DEVICE struct partial_softmax warp_merge_softmax(struct partial_softmax mine)
{
#pragma unroll
	for (int lane = 1; lane < 32; lane *= 2)
		mine = merge_softmax(mine, {__shfl_xor_sync(~0u, mine.max, lane), __shfl_xor_sync(~0u, mine.sum, lane)});
	return mine;
}

/* log2 of the denominator, from the warps' parts; infinity if the sum is not positive. */
template <int warps> DEVICE float log_denominator(const struct partial_softmax (&of_warp)[warps])
{
	struct partial_softmax all = of_warp[0];
#pragma unroll
	for (int w = 1; w < warps; w++)
		all = merge_softmax(all, of_warp[w]);
	return all.sum > 0 ? all.max + log2f(all.sum) : INFINITY;
}

#endif
