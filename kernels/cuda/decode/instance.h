/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/decode/instance.h - decode kernels of one head dimension and mode: what instance.cu compiles for each row of instances.h,
 * and decode.cu launches.
 */
#ifndef SKV_CUDA_DECODE_INSTANCE_H
#define SKV_CUDA_DECODE_INSTANCE_H

#include "kernels/cuda/decode/decode.cuh"

struct decode_instance {
	uint32_t head_dim;
	enum decode_mode mode;
	uint32_t dtypes; /* of pages: a bit for each */
	/* Allows the kernels their shared memory. Called once a device, before the first launch. */
	cudaError_t (*init)(void);
	/* Queue a pass over pages of this dtype, of so many work items at most. */
	void (*launch)(const struct decode_params *, uint32_t dtype, uint32_t items, cudaStream_t);
};

#define INSTANCE(head_dim, mode, ...) extern const struct decode_instance skv_decode_##head_dim##_##mode;
#include "kernels/cuda/decode/instances.h"
#undef INSTANCE

#endif
