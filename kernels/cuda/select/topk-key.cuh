/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/topk-key.cuh - radix top-k by a score and, for ties, a position.
 *
 * Both form one 64-bit key. All keys differ, so the selection depends on the keys alone. Histograms of BITS bits, from
 * the top down, find the k-th largest key, as topk.cuh does for scores.
 */
#ifndef SKV_CUDA_SELECT_TOPK_KEY_CUH
#define SKV_CUDA_SELECT_TOPK_KEY_CUH

#include <math.h>
#include "kernels/cuda/select/topk.cuh"

#define KEY_BITS 64

/* An integer in the order of scores; a NaN counts as -infinity. */
DEVICE uint32_t ordered(float score)
{
	const uint32_t bits = __float_as_uint(isnan(score) ? -INFINITY : score + 0.0f); /* -0 is 0 */
	return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

/* Better scores have larger keys. Ties go to the lower position or, with `later`, to the higher one. */
DEVICE uint64_t score_key(float score, uint32_t pos, bool later)
{
	return (uint64_t)ordered(score) << 31 | (later ? pos : 0x7fffffff - pos);
}

/*
 * Returns the k-th largest key, k = `want`, of at least `want` keys. each(use) calls use(key) for every key, in the
 * thread that has it.
 */
template <class T, class Each>
__device__ static uint64_t kth_largest_key(struct topk_smem *smem, uint32_t want, Each each)
{
	uint64_t from = 0;
	bool all = false;

	for (int known = 0; known < KEY_BITS && !all;) { /* bits of the result, from the top */
		const int width = min(BITS, KEY_BITS - known), shift = KEY_BITS - known - width;
		T::sync(); /* all threads have read the last histogram's result */
		if (known == 0 && T::me() == 0)
			smem->want = want;
		clear_bins<T>(smem);
		each([=](uint64_t key) {
			if (known == 0 || (key ^ from) >> (shift + width) == 0)
				atomicAdd(&smem->bins[key >> shift & (BINS - 1)], 1);
		});
		T::sync();
		find_bin<T>(smem);
		from |= (uint64_t)smem->bin << shift;
		all = smem->want == smem->here;
		known += width;
	}
	return from;
}

#endif
