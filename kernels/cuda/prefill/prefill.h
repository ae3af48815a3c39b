/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/prefill/prefill.h - the prefill kernel with wgmma, which prefill.cu launches where it is faster than its
 * own kernel.
 */
#ifndef SKV_CUDA_PREFILL_H
#define SKV_CUDA_PREFILL_H

#include <cuda_runtime.h>

struct prefill_params;

/* Prepares the kernel for the current device, whose compute capability must be 9.0. */
cudaError_t skv_cuda_prefill_sm90_init(void);

/*
 * Queues the kernel, for head dims 64 and 128. The caller makes the grid, since it knows the number of rows of a block.
 */
void skv_cuda_prefill_sm90(const struct prefill_params *, dim3 grid, cudaStream_t);

#endif
