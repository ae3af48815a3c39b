/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cuda/decode/decode-dtype.cuh - all kernels of decode.cuh for pages of one dtype: decode-f16.cu and its neighbours compile it. */
#ifndef SKV_CUDA_DECODE_DTYPE_CUH
#define SKV_CUDA_DECODE_DTYPE_CUH

#include "kernels/cuda/decode/decode-kernel.cuh"
#include "kernels/cuda/decode/decode-teams.cuh"

template <class T, int D> static cudaError_t init_dim(void)
{
	cudaError_t e = init_leaves<T, D, MODE_PLAIN>();
	if constexpr (D <= TEAM_DIM)
		e = e ? e : init_teams<T, D>();
	e = e ? e : init<T, D, MODE_SCORES>();
	e = e ? e : init_leaves<T, D, MODE_TOPK_KEYS>();
	e = e ? e : init_leaves<T, D, MODE_TOKENS>();
	return e ? e : init_leaves<T, D, MODE_TOPK_VALUES>();
}

template <class T> static cudaError_t init_dtype(void)
{
	cudaError_t e = init_dim<T, 64>();
	e = e ? e : init_dim<T, 96>();
	e = e ? e : init_dim<T, 128>();
	return e ? e : init_dim<T, 256>();
}

template <class T, int D> static void launch_dim(const struct decode_params *c, uint32_t items, cudaStream_t stream)
{
	if (c->source == KV_TOKENS && c->topk_scores)
		launch_leaves<T, D, MODE_TOPK_VALUES>(c, items, stream);
	else if (c->source == KV_TOKENS)
		launch_leaves<T, D, MODE_TOKENS>(c, items, stream);
	else if (c->topk_scores)
		launch_leaves<T, D, MODE_TOPK_KEYS>(c, items, stream);
	else if (c->ring_entries)
		launch_kernel<T, D, MODE_SCORES>(c, items, stream);
	else if (!c->team)
		launch_leaves<T, D, MODE_PLAIN>(c, items, stream);
	else if constexpr (D <= TEAM_DIM)
		launch_teams<T, D>(c, items, stream);
}

template <class T>
static void launch_dtype(const struct decode_params *c, uint32_t head_dim, uint32_t items, cudaStream_t stream)
{
	if (head_dim == 64)
		launch_dim<T, 64>(c, items, stream);
	else if (head_dim == 96)
		launch_dim<T, 96>(c, items, stream);
	else if (head_dim == 128)
		launch_dim<T, 128>(c, items, stream);
	else
		launch_dim<T, 256>(c, items, stream);
}

#endif
