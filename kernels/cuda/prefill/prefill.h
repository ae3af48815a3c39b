/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/prefill/prefill.h - the kernel with wgmma, for prefill.cu, which chooses between this kernel and its
 * own.
 */
#ifndef SKV_CUDA_PREFILL_H
#define SKV_CUDA_PREFILL_H

#include <cuda_runtime.h>

struct prefill_params;

/* For the current device, whose compute capability must be 9.0. */
cudaError_t skv_cuda_prefill_sm90_init(void);

/*
 * Takes head dims 64 and 128. The caller (skv_cuda_prefill_dense() and the like) makes the grid, since it knows the
 * rows of a block.
 */
void skv_cuda_prefill_sm90(const struct prefill_params *, dim3 grid, cudaStream_t);

#endif
