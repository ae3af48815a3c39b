/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SKV_CUDA_READ_H
#define SKV_CUDA_READ_H

#include <cuda_runtime.h>

/* Queues a kernel that reads `bytes` bytes once, for benchmarks. */
void skv_cuda_read(const void *, size_t bytes, cudaStream_t);

#endif
