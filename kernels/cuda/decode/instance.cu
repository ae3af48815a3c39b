/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/decode/instance.cu - the decode kernels of one row of the table in instances.h. This file is compiled
 * once for each row, with HEAD_DIM, MODE and MODE_IS_... defined.
 */
#include "kernels/cuda/decode/instance.h"
#if defined(MODE_IS_TEAMS)
#include "kernels/cuda/decode/decode-teams.cuh"
#elif defined(MODE_IS_SCORES) || defined(MODE_IS_QUANT_SCORES)
#include "kernels/cuda/decode/decode-kernel.cuh"
#else
#include "kernels/cuda/decode/decode-leaves.cuh"
#endif
#if defined(MODE_IS_QUANT) || defined(MODE_IS_QUANT_SCORES)
#include "kernels/cuda/compress/decode-quant.cuh"
#endif

#define JOIN(a, b) JOIN_WORDS(a, b)
#define JOIN_WORDS(a, b) a##b
#define THIS_MODE JOIN(MODE_, MODE)

template <class T> static cudaError_t init_dtype(void)
{
#if defined(MODE_IS_TEAMS)
	return init_teams<T, HEAD_DIM>();
#elif defined(MODE_IS_SCORES) || defined(MODE_IS_QUANT_SCORES)
	return init_kernel<T, HEAD_DIM, THIS_MODE>();
#else
	return init_leaves<T, HEAD_DIM, THIS_MODE>();
#endif
}

template <class T> static void launch_dtype(const struct decode_params *c, uint32_t items, cudaStream_t stream)
{
#if defined(MODE_IS_TEAMS)
	launch_teams<T, HEAD_DIM>(c, items, stream);
#elif defined(MODE_IS_SCORES) || defined(MODE_IS_QUANT_SCORES)
	launch_kernel<T, HEAD_DIM, THIS_MODE>(c, items, stream);
#else
	launch_leaves<T, HEAD_DIM, THIS_MODE>(c, items, stream);
#endif
}

namespace /* each row's object file has its own copy */
{
/* Calls init_dtype() and launch_dtype() for the dtypes of a row of the table. */
template <class... Ts> struct dtypes {
	static constexpr uint32_t bits = ((1u << Ts::dtype) | ...);

	static cudaError_t init(void)
	{
		cudaError_t e = cudaSuccess;
		((e = e ? e : init_dtype<Ts>()), ...);
		return e;
	}
	static void launch(const struct decode_params *c, uint32_t dtype, uint32_t items, cudaStream_t stream)
	{
		((dtype == Ts::dtype ? launch_dtype<Ts>(c, items, stream) : (void)0), ...);
	}
};

template <int head_dim, enum decode_mode mode> struct row;
#define INSTANCE(head_dim, mode, ...) template <> struct row<head_dim, MODE_##mode> : dtypes<__VA_ARGS__> {};
#include "kernels/cuda/decode/instances.h"
#undef INSTANCE

typedef row<HEAD_DIM, THIS_MODE> this_row;
} // namespace
const struct decode_instance JOIN(JOIN(skv_decode_, HEAD_DIM), JOIN(_, MODE)) = {HEAD_DIM, THIS_MODE, this_row::bits, this_row::init, this_row::launch};
