/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/prefill/prefill-sm90.cu - prompts on devices with products of warpgroups: Hopper, for which alone this
 * file is compiled (cuda.mk). Where one list is of a whole group, and where there is none, 128 rows are taken at
 * a time; else 64.
 */
#include "kernels/cuda/prefill/prefill.h"
#include "kernels/cuda/prefill/prefill-sm90.cuh"

template <bool SPARSE, class T, int D, int GROUPS, int N> static cudaError_t init(void)
{
	return cudaFuncSetAttribute(wide_kernel<SPARSE, T, D, GROUPS, N>,
	                            cudaFuncAttributeMaxDynamicSharedMemorySize,
	                            wide_memory<D, GROUPS, N>::bytes);
}

template <class T, int D> static cudaError_t init_shape(void)
{
	cudaError_t e = init<false, T, D, 2, 128>();
	e = e ? e : init<true, T, D, 2, 128>();
	return e ? e : init<true, T, D, 1, 64>();
}

cudaError_t skv_cuda_wide_init(void)
{
	cudaError_t e = init_shape<F16, 64>();
	e = e ? e : init_shape<F16, 128>();
	e = e ? e : init_shape<BF16, 64>();
	return e ? e : init_shape<BF16, 128>();
}

template <bool SPARSE, class T, int D, int GROUPS, int N> static void launch(const struct prompt_call *c,
                                                                             dim3 grid, cudaStream_t stream)
{
	wide_kernel<SPARSE, T, D, GROUPS, N><<<grid, 128 * (GROUPS + 1), wide_memory<D, GROUPS, N>::bytes, stream>>>(*c);
}

template <class T, int D> static void launch_shape(const struct prompt_call *c, dim3 grid, cudaStream_t stream)
{
	if (c->kinds)
		launch<false, T, D, 2, 128>(c, grid, stream);
	else if (c->heads == c->group)
		launch<true, T, D, 2, 128>(c, grid, stream);
	else
		launch<true, T, D, 1, 64>(c, grid, stream);
}

void skv_cuda_wide_launch(const struct prompt_call *c, dim3 grid, cudaStream_t stream)
{
	const bool half = c->shape.dtype == SKV_F16;
	if (c->shape.head_dim == 64)
		half ? launch_shape<F16, 64>(c, grid, stream) : launch_shape<BF16, 64>(c, grid, stream);
	else
		half ? launch_shape<F16, 128>(c, grid, stream) : launch_shape<BF16, 128>(c, grid, stream);
}
