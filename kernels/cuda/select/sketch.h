/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cuda/select/sketch.h - what the files of sketches offer each other, and the workspace. */
#ifndef SKV_CUDA_SELECT_SKETCH_H
#define SKV_CUDA_SELECT_SKETCH_H

#include "kernels/cuda/runtime/cuda.h"

#define MAX_MEETINGS 2048u /* lists of a launch of sketch-topk.cu */

/* Where the blocks of a list meet. All 0 between launches. */
struct meeting {
	uint32_t arrived, ready;
	uint32_t bin, want;   /* the upper digit of the k-th key; how many of those that have it are wanted */
	uint32_t last, equal; /* the k-th key, and how many of its equals are wanted */
	uint32_t done;        /* after the second time already */
	uint32_t reserved;
};

/* Can the kernel that scores and selects at once take these? Else scores go to memory. */
bool skv_cuda_topk_of_sketches(const struct skv_shape *, uint32_t max_len);
void skv_cuda_launch_topk_of_sketches(const struct skv_shape *, const struct skv_batch *, const void *q, bool sum,
                                      const struct skv_select *, const struct skv_index_list *, const struct skv_workspace *);
size_t skv_cuda_topk_of_sketches_bytes(const struct skv_shape *, uint32_t n, uint32_t max_len);

#endif
