/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/topk-key.cuh - who is among the first so many by two things at once: a score, and of equals a position.
 *
 * Both make one key of 64 bits that no other has, so what is chosen follows from the keys alone. Counts by BITS bits
 * from the top find the last one chosen, as select.cuh does for scores.
 */
#ifndef SKV_CUDA_NTH_CUH
#define SKV_CUDA_NTH_CUH

#include <math.h>
#include "kernels/cuda/select/topk.cuh"

#define KEY_BITS 64

/* A number whose order is the score's; a NaN counts as -infinity. */
DEVICE uint32_t ordered(float score)
{
	const uint32_t bits = __float_as_uint(isnan(score) ? -INFINITY : score + 0.0f); /* -0 is 0 */
	return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

/* The better the score, the larger; of equals the one that stands earlier, or the one that stands later, is. */
DEVICE uint64_t score_key(float score, uint32_t pos, bool later)
{
	return (uint64_t)ordered(score) << 31 | (later ? pos : 0x7fffffff - pos);
}

/*
 * A key that `want` of the keys, of which there are at least so many, reach. each(use): use(key) for every key, in its
 * thread.
 */
template <class T, class Each>
__device__ static uint64_t nth_key(struct select_room *room, uint32_t want, Each each)
{
	uint64_t from = 0;
	bool all = false;

	for (int known = 0; known < KEY_BITS && !all;) { /* bits of it, from the top */
		const int width = min(BITS, KEY_BITS - known), shift = KEY_BITS - known - width;
		T::sync(); /* the last count's result has been read */
		if (known == 0 && T::me() == 0)
			room->want = want;
		count_clear<T>(room);
		each([=](uint64_t key) {
			if (known == 0 || (key ^ from) >> (shift + width) == 0)
				atomicAdd(&room->bins[key >> shift & (BINS - 1)], 1);
		});
		T::sync();
		find_range<T>(room);
		from |= (uint64_t)room->bin << shift;
		all = room->want == room->here;
		known += width;
	}
	return from;
}

#endif
