/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cuda/prefill/prefill.h - prompts: prefill.cu chooses between its own kernel and that of prefill-wide.cu. */
#ifndef SKV_CUDA_PREFILL_H
#define SKV_CUDA_PREFILL_H

#include <cuda_runtime.h>

struct prompt_call;

/* Of the current device, whose compute capability is 9.0. */
cudaError_t skv_cuda_wide_init(void);

/* Head dims 64 and 128. Blocks have as many rows as skv_cuda_prefill_dense() and its like make the grid for. */
void skv_cuda_wide_launch(const struct prompt_call *, dim3 grid, cudaStream_t);

#endif
