/* SPDX-License-Identifier: Apache-2.0 */
/* Of CUB's scans, the one that is in use: see tests/emulate/emulate.h. */
#ifndef SKV_TEST_EMULATE_BLOCK_SCAN_H
#define SKV_TEST_EMULATE_BLOCK_SCAN_H

namespace cub {
template <class T, int threads> struct BlockScan {
	struct TempStorage {
		T of[threads];
	};
	TempStorage &room;

	BlockScan(TempStorage &at) : room(at) {}
	/* Nobody waits at its end: the caller does, before the room is used again. */
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
