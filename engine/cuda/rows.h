/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/cuda/rows.h - CUDA kernels that process rows. The kernels implement the functions of the same names in
 * engine/backend.h; matrix products are elsewhere.
 *
 * If a kernel's launch fails, the caller's next cudaGetLastError() returns the error.
 */
#ifndef ENG_CUDA_ROWS_H
#define ENG_CUDA_ROWS_H

#include <cuda_runtime.h>
#include "engine/backend.h"

void eng_cuda_fill(cudaStream_t, void *to, size_t n, uint32_t dtype, float scale, uint32_t seed);
void eng_cuda_embed(cudaStream_t, float *x, const void *embedding, uint32_t dtype, const int32_t *id,
                    uint32_t rows, uint32_t n);
void eng_cuda_add_norm(cudaStream_t, void *out, uint32_t dtype, float *x, const float *y, const float *weight,
                       float eps, const uint32_t *from, uint32_t rows, uint32_t n);
/* Copies bias [n] to each row of y [rows][n]. */
void eng_cuda_repeat(cudaStream_t, float *y, const float *bias, uint32_t rows, uint32_t n);
void eng_cuda_rope_split(cudaStream_t, void *q, void *k, void *v, uint32_t dtype, const float *qkv,
                         const struct eng_heads *heads, const float *table, const uint32_t *position, uint32_t rows);
void eng_cuda_swiglu(cudaStream_t, void *y, uint32_t dtype, const float *gate_up, uint32_t rows, uint32_t n);
void eng_cuda_choose(cudaStream_t, int32_t *id, uint32_t *position, const float *logits, uint32_t rows,
                     uint32_t vocab);

#endif
