/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cuda/decode/decode-bf16.cu - the kernels of decode.cuh over pages of bf16. */
#include "kernels/cuda/decode/decode-dtype.cuh"

cudaError_t skv_cuda_decode_bf16_init(void)
{
	return init_dtype<BF16>();
}

void skv_cuda_decode_bf16(const struct decode_params *c, uint32_t head_dim, uint32_t items, cudaStream_t stream)
{
	launch_dtype<BF16>(c, head_dim, items, stream);
}
