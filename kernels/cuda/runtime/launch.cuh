/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/runtime/launch.cuh - kernel launches and dynamic shared memory, whose syntax only nvcc understands.
 * Where kernels run on a CPU, tests/emulate/ defines these and everything else that is compiled only without
 * SKV_EMULATE.
 */
#ifndef SKV_CUDA_LAUNCH_CUH
#define SKV_CUDA_LAUNCH_CUH

#ifndef SKV_EMULATE
#include <cuda_runtime.h>

/*
 * Declares the block's dynamic shared memory as an array `name` of this type and alignment. The launch sets its size.
 */
#define SHARED_MEMORY(type, name, align) extern __shared__ __align__(align) type name[]

template <class... Params, class... Args>
static void launch_grid(void (*kernel)(Params...), dim3 grid, dim3 threads, size_t smem,
                        cudaStream_t stream, const Args &...args)
{
	kernel<<<grid, threads, smem, stream>>>(args...);
}
#endif

#endif
