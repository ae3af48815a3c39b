/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cuda/decode/decode-f16.cu - the kernels of decode.cuh over pages of fp16. */
#include "kernels/cuda/decode/decode-dtype.cuh"

cudaError_t skv_cuda_decode_f16_init(void)
{
	return init_dtype<F16>();
}

void skv_cuda_decode_f16(const struct decode_params *c, uint32_t head_dim, uint32_t items, cudaStream_t stream)
{
	launch_dtype<F16>(c, head_dim, items, stream);
}
