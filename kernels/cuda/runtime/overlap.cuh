/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/runtime/overlap.cuh - launches that overlap: a kernel's blocks may begin while those of the kernel before it in
 * the stream end (programmatic dependent launch, from Hopper on; elsewhere one begins after the other). What that saves is a few
 * microseconds a kernel, where a sequence's whole layer takes some tens.
 *
 * A kernel launched by launch_overlapped() calls await_previous() in each thread before it writes anything, or reads what may have
 * been written since the step began: rows of q, k and v, the workspace, lists. Tables of pages and struct skv_kseq are older; counts
 * of attended tokens, which are read when the step has ended, may be added to before. After
 * that it may call let_next_begin(); only then, so that of the next kernel, too, all but the last one before it is complete.
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

/* `cluster`: blocks of a cluster; 0: there are none. */
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
