/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/runtime/softmax.cuh - softmax in base 2: scores from products q·k, the learned attention sink's term,
 * and the denominator, reduced over a block's threads.
 */
#ifndef SKV_CUDA_SOFTMAX_CUH
#define SKV_CUDA_SOFTMAX_CUH

#include <math.h>
#include "kernels/batch.h"
#include "kernels/cuda/runtime/convert.cuh"

#define LN2 0.693147180559945309417f

/* Turns a product x = q·k into a score in log2: scale * x, or scale * soft_cap(cap, x) if `cap` is not 0. */
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
 * Returns tanh(x cap / (2 log2 e)), computed as 1 - 2 / (1 + 2^(cap x)). The error is at most about 2^-21, less than
 * the effect of rounding q and k on any score. The hardware's tanh instruction has an error of 2^-11.
 */
DEVICE float soft_cap(float cap, float x)
{
	return 1 - __fdividef(2, 1 + exp2_fast(cap * x));
}

/*
 * Returns the term that a head's attention sink adds to the sum of a softmax whose terms are relative to the maximum
 * `max` (in log2). Without sinks the term is 0. `sinks` has one natural logarithm per head.
 */
DEVICE float sink_term(const float *sinks, uint32_t head, float max)
{
	return sinks ? exp2_fast(sinks[head] * LOG2E - max) : 0;
}

/*
 * Adds the sink's term to a softmax denominator, given as log2. An infinite logarithm (no token, or no row) is not
 * changed.
 */
DEVICE float add_sink(const float *sinks, uint32_t head, float lse)
{
	if (!sinks || isinf(lse))
		return lse;
	const float sink = sinks[head] * LOG2E, max = fmaxf(lse, sink);
	return max + log2f(exp2_fast(lse - max) + exp2_fast(sink - max));
}

/*
 * Natural logarithm of a sum of weights that are relative to a maximum; -infinity if the sum is 0, NaN if the sum is
 * NaN.
 */
DEVICE float log_sum(float max, float sum)
{
	return sum == 0 ? -INFINITY : (max + log2f(sum)) * LN2;
}

/* Part of a softmax: the maximum of some scores x in log2, and the sum of exp2(x - maximum). */
struct partial_softmax {
	float max, sum;
};

DEVICE struct partial_softmax merge_softmax(struct partial_softmax a, struct partial_softmax b)
{
	const float max = fmaxf(a.max, b.max), base = max == -INFINITY ? 0 : max;
	return {max, a.sum * exp2f(a.max - base) + b.sum * exp2f(b.max - base)};
}

/* Merges the partial softmaxes of a warp's lanes; the first lane has the result. */
DEVICE struct partial_softmax warp_merge_softmax(struct partial_softmax mine)
{
#pragma unroll
	for (int lane = 1; lane < 32; lane *= 2)
		mine = merge_softmax(mine, {__shfl_xor_sync(~0u, mine.max, lane), __shfl_xor_sync(~0u, mine.sum, lane)});
	return mine;
}

/* Merges the partial softmaxes of a block's warps into log2 of the denominator; infinity if the sum is not positive. */
template <int warps> DEVICE float log_denominator(const struct partial_softmax (&of_warp)[warps])
{
	struct partial_softmax all = of_warp[0];
#pragma unroll
	for (int w = 1; w < warps; w++)
		all = merge_softmax(all, of_warp[w]);
	return all.sum > 0 ? all.max + log2f(all.sum) : INFINITY;
}

#endif
