/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/runtime/overlap.cuh - overlapping launches: blocks of a kernel may begin while the previous kernel in
 * the stream is finishing (programmatic dependent launch, Hopper and later; elsewhere kernels run one after the other).
 * Overlap saves a few microseconds per kernel; a whole layer of a sequence takes some tens.
 *
 * A kernel launched by launch_overlapped() calls await_previous() in each thread before the thread writes anything, or
 * reads anything that may have been written since the step began: rows of q, k and v, the workspace, lists. Page tables
 * and struct skv_kseq were written before the step, so threads may read them earlier. Counts of attended tokens may be
 * increased earlier, because they are read after the step. A kernel may call let_next_begin() only after
 * await_previous(). So when a kernel begins, all earlier kernels of the stream are complete, except the one directly
 * before it.
 */
#ifndef SKV_CUDA_OVERLAP_CUH
#define SKV_CUDA_OVERLAP_CUH

#include "kernels/cuda/runtime/cuda.h"
#include "kernels/cuda/runtime/convert.cuh"

DEVICE void await_previous(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

DEVICE void let_next_begin(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/*
 * Launches a kernel that may overlap the previous one. `cluster` is the number of blocks of a cluster; 0: no clusters.
 */
template <class Params>
static void launch_overlapped(void (*kernel)(Params), const Params &params, dim3 grid, dim3 threads, size_t smem, uint32_t cluster,
                              cudaStream_t stream)
{
	cudaLaunchAttribute attrs[2] = {};
	cudaLaunchConfig_t config = {};

	config.gridDim = grid;
	config.blockDim = threads;
	config.dynamicSmemBytes = smem;
	config.stream = stream;
	config.attrs = attrs;
	if (cluster) {
		attrs[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
		attrs[config.numAttrs++].val.clusterDim = {cluster, 1, 1};
	}
	if (skv_cuda_overlaps()) {
		attrs[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
		attrs[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
	}
	cudaLaunchKernelEx(&config, kernel, params);
}

#endif
