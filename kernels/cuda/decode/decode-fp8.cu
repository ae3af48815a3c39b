/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cuda/decode/decode-fp8.cu - the kernels of decode.cuh over pages of fp8. */
#include "kernels/cuda/decode/decode-dtype.cuh"

cudaError_t skv_cuda_decode_fp8_init(void)
{
	return init_dtype<FP8>();
}

void skv_cuda_decode_fp8(const struct decode_params *c, uint32_t head_dim, uint32_t items, cudaStream_t stream)
{
	launch_dtype<FP8>(c, head_dim, items, stream);
}
