/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/prefill/prefill-sm90.cu - launches of prefill with wgmma. This file is compiled for Hopper alone
 * (cuda.mk). A block takes 128 rows if all q heads of a GQA group share a list or if there are no lists, otherwise 64
 * rows.
 */
#include <cudaTypedefs.h>
#include "kernels/cuda/prefill/prefill.h"
#include "kernels/cuda/prefill/prefill-sm90.cuh"

static PFN_cuTensorMapEncodeTiled_v12000 encode_tensor_map;

/*
 * Returns the map of a pool as [page][row of K or V][D]. A box is one panel of the rows of a kv head. The map has as many
 * pages as coordinates can name, whatever the pool has. The driver refuses none of these values.
 */
template <int D> static CUtensorMap pool_pages(const struct prefill_params *c)
{
	CUtensorMap map;
	const cuuint64_t size[] = {D, c->page_bytes / (D * 2), 1u << 31}, stride[] = {D * 2, c->page_bytes};
	const cuuint32_t box[] = {64, SKV_PAGE_TOKENS, 1}, step[] = {1, 1, 1};
	encode_tensor_map(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 3, c->pool, size, stride, box, step,
	                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
	                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
	return map;
}

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
	cudaDriverEntryPointQueryResult found;
	cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void **)&encode_tensor_map, 12000,
	                                                 cudaEnableDefault, &found);
	if (e == cudaSuccess && found != cudaDriverEntryPointSuccess)
		e = cudaErrorCallRequiresNewerDriver;
	e = e ? e : init_shape<F16, 64>();
	e = e ? e : init_shape<F16, 128>();
	e = e ? e : init_shape<BF16, 64>();
	return e ? e : init_shape<BF16, 128>();
}

template <bool SPARSE, class T, int D, int GROUPS, int N> static void launch(const struct prefill_params *c,
                                                                             dim3 grid, cudaStream_t stream)
{
	prefill_sm90_kernel<SPARSE, T, D, GROUPS, N><<<grid, 128 * (GROUPS + 1), sm90_smem<D, GROUPS, N>::bytes, stream>>>(*c, pool_pages<D>(c));
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
