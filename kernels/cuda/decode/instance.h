/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/decode/instance.h - the decode kernels of one head dimension and mode: instance.cu compiles them for
 * each row of the table in instances.h, and decode.cu launches them.
 */
#ifndef SKV_CUDA_DECODE_INSTANCE_H
#define SKV_CUDA_DECODE_INSTANCE_H

#include "kernels/cuda/decode/decode.cuh"

struct decode_instance {
	uint32_t head_dim;
	enum decode_mode mode;
	uint32_t dtypes; /* dtypes of pages, a bit for each enum skv_dtype */
	/* Raises the kernels' limits of shared memory. Called once per device, before the first launch. */
	cudaError_t (*init)(void);
	/* Queues a pass over pages of this dtype; `items` is the max number of work items. */
	void (*launch)(const struct decode_params *, uint32_t dtype, uint32_t items, cudaStream_t);
};

#define INSTANCE(head_dim, mode, ...) extern const struct decode_instance skv_decode_##head_dim##_##mode;
#include "kernels/cuda/decode/instances.h"
#undef INSTANCE

#endif
