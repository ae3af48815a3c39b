/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/runtime/launch.cuh - launches of kernels, and their dynamic shared memory: what only nvcc knows the
 * syntax of. Where kernels run on a processor, tests/emulate/ has these, and what else is left out under SKV_EMULATE.
 */
#ifndef SKV_CUDA_LAUNCH_CUH
#define SKV_CUDA_LAUNCH_CUH

#ifndef SKV_EMULATE
#include <cuda_runtime.h>

/* A block's memory of the size that its launch says, as an array with that alignment. */
#define SHARED_MEMORY(type, name, align) extern __shared__ __align__(align) type name[]

template <class... Params, class... Args>
static void launch_grid(void (*kernel)(Params...), dim3 grid, dim3 threads, size_t smem,
                        cudaStream_t stream, const Args &...args)
{
	kernel<<<grid, threads, smem, stream>>>(args...);
}
#endif

#endif
