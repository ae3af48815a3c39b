/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/runtime/tensor-map.cuh - tensor copies (cp.async.bulk.tensor, Hopper and later): one thread begins to
 * copy a box of an array in global memory to the block's shared memory. A tensor map describes the array and the box;
 * it is made on the host and passed as a parameter of the kernel.
 */
#ifndef SKV_CUDA_TENSOR_MAP_CUH
#define SKV_CUDA_TENSOR_MAP_CUH

#include <cuda.h>
#include "kernels/cuda/runtime/convert.cuh"

/*
 * Arrives at the barrier at shared memory address `at`, and announces the bytes of copies that this thread's warp
 * begins. The barrier's phase does not end before they are there.
 */
DEVICE void arrive_expect(uint32_t at, uint32_t bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}

/*
 * Begins to copy the box at [z][y][x] to shared memory address `to`. Barrier `full` counts the bytes that arrive. Elements
 * outside of the array become zeros.
 */
DEVICE void copy_tensor(uint32_t to, const CUtensorMap *map, int32_t x, int32_t y, int32_t z, uint32_t full)
{
	asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
	             ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(z), "r"(full) : "memory");
}

#endif
