/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/topk-key.cuh - radix top-k by score and, among equal scores, by position.
 *
 * Score and position form one 64-bit key. All keys differ, so the selection depends on the keys alone. Histograms of
 * BITS bits at a time, beginning with a key's top bits, find the k-th largest key, as topk.cuh does for scores.
 */
#ifndef SKV_CUDA_SELECT_TOPK_KEY_CUH
#define SKV_CUDA_SELECT_TOPK_KEY_CUH

#include <math.h>
#include "kernels/cuda/select/topk.cuh"

#define KEY_BITS 64

/* Maps a score to an integer, in the same order; a NaN counts as -infinity. */
DEVICE uint32_t ordered(float score)
{
	/* adding 0 makes -0 equal to 0 */
	const uint32_t bits = __float_as_uint(isnan(score) ? -INFINITY : score + 0.0f);
	return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

/*
 * Returns the key of a score and a position; larger keys are better. Of equal scores the lower position is better or,
 * with `later`, the higher one.
 */
DEVICE uint64_t score_key(float score, uint32_t pos, bool later)
{
	return (uint64_t)ordered(score) << 31 | (later ? pos : 0x7fffffff - pos);
}

/*
 * Returns the k-th largest of at least k keys, where k = `want`. each(use) calls use(key) for every key, in the thread
 * that has the key.
 */
template <class T, class Each>
__device__ static uint64_t kth_largest_key(struct topk_smem *smem, uint32_t want, Each each)
{
	uint64_t from = 0;
	bool all = false;

	for (int known = 0; known < KEY_BITS && !all;) { /* known: bits of the result that are known, from the top */
		const int width = min(BITS, KEY_BITS - known), shift = KEY_BITS - known - width;
		T::sync(); /* all threads have read the result of the last histogram */
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
