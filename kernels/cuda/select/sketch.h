/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cuda/select/sketch.h - functions of sketch-topk.cu that sketch-scores.cu calls. */
#ifndef SKV_CUDA_SELECT_SKETCH_H
#define SKV_CUDA_SELECT_SKETCH_H

#include "kernels/cuda/runtime/cuda.h"

/* Can sketch-topk.cu's kernel take this shape and length on the current device? If not, scores have to go to memory. */
bool skv_cuda_topk_of_sketches(const struct skv_shape *, uint32_t max_len);
void skv_cuda_launch_topk_of_sketches(const struct skv_shape *, const struct skv_batch *, const void *q, bool sum,
                                      const struct skv_select *, const struct skv_index_list *, const struct skv_workspace *);

#endif
