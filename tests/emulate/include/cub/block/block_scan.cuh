/* SPDX-License-Identifier: Apache-2.0 */
/* The only one of CUB's scans in use: see tests/emulate/emulate.h. */
#ifndef SKV_TEST_EMULATE_BLOCK_SCAN_H
#define SKV_TEST_EMULATE_BLOCK_SCAN_H

namespace cub {
template <class T, int threads> struct BlockScan {
	struct TempStorage {
		T of[threads];
	};
	TempStorage &room;

	BlockScan(TempStorage &at) : room(at) {}
	/* Does not synchronize at its end: the caller must, before the storage is used again. */
	void ExclusiveSum(T x, T &before, T &all)
	{
		room.of[threadIdx.x] = x;
		__syncthreads();
		before = all = 0;
		for (uint32_t i = 0; i < threads; i++) {
			before += i < threadIdx.x ? room.of[i] : 0;
			all += room.of[i];
		}
	}
};
}

#endif
