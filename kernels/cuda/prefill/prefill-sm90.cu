/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/prefill/prefill-sm90.cu - launches of prefill with wgmma. This file is compiled for Hopper alone
 * (cuda.mk). A block takes 128 rows if all q heads of a GQA group share a list or if there are no lists, otherwise 64
 * rows.
 */
#include "kernels/cuda/prefill/prefill.h"
#include "kernels/cuda/prefill/prefill-sm90.cuh"

template <bool SPARSE, class T, int D, int GROUPS, int N> static cudaError_t init(void)
{
	return cudaFuncSetAttribute(prefill_sm90_kernel<SPARSE, T, D, GROUPS, N>,
	                            cudaFuncAttributeMaxDynamicSharedMemorySize,
	                            sm90_smem<D, GROUPS, N>::bytes);
}

template <class T, int D> static cudaError_t init_shape(void)
{
	cudaError_t e = init<false, T, D, 2, 128>();
	e = e ? e : init<true, T, D, 2, 128>();
	return e ? e : init<true, T, D, 1, 64>();
}

cudaError_t skv_cuda_prefill_sm90_init(void)
{
	cudaError_t e = init_shape<F16, 64>();
	e = e ? e : init_shape<F16, 128>();
	e = e ? e : init_shape<BF16, 64>();
	return e ? e : init_shape<BF16, 128>();
}

template <bool SPARSE, class T, int D, int GROUPS, int N> static void launch(const struct prefill_params *c,
                                                                             dim3 grid, cudaStream_t stream)
{
	prefill_sm90_kernel<SPARSE, T, D, GROUPS, N><<<grid, 128 * (GROUPS + 1), sm90_smem<D, GROUPS, N>::bytes, stream>>>(*c);
}

template <class T, int D> static void launch_shape(const struct prefill_params *c, dim3 grid, cudaStream_t stream)
{
	if (c->kinds)
		launch<false, T, D, 2, 128>(c, grid, stream);
	else if (c->heads == c->group)
		launch<true, T, D, 2, 128>(c, grid, stream);
	else
		launch<true, T, D, 1, 64>(c, grid, stream);
}

void skv_cuda_prefill_sm90(const struct prefill_params *c, dim3 grid, cudaStream_t stream)
{
	const bool half = c->shape.dtype == SKV_F16;
	if (c->shape.head_dim == 64)
		half ? launch_shape<F16, 64>(c, grid, stream) : launch_shape<BF16, 64>(c, grid, stream);
	else
		half ? launch_shape<F16, 128>(c, grid, stream) : launch_shape<BF16, 128>(c, grid, stream);
}
