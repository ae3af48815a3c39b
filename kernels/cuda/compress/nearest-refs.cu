/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/compress/nearest-refs.cu - finds the nearest references c of tokens x, those with the largest 2 x·c -
 * c·c; see kernels/compress.h.
 *
 * A block takes a tile of a sequence's tokens and one slice of the sequence's references. The block computes a matrix
 * product of both, and then updates the best references of each token. The result does not depend on which slice a
 * reference is in.
 */
#include "kernels/cuda/runtime/gemm.cuh"
#include "kernels/cuda/compress/compress.cuh"

/*
 * Computes the products of tokens with the references r0, r0 + 1, ..., and the sum of squares of each of these
 * references.
 */
template <int BM>
DEVICE const float *products(const struct compress_params *c, const struct compress_item *j,
                             const __nv_bfloat16 *x, uint32_t rows,
                             uint32_t r0, uint32_t refs, uint8_t *shared, float *norm)
{
	const struct codec *k = &j->k;
	struct gemm_operand<BM, true> a = {{}, 0, k->d};
	struct gemm_operand<REFS_PER_TILE, false> b = {ref_format(k), 0, k->d};
#pragma unroll
	for (int i = 0; i < (int)(BM / GEMM_LOADS); i++)
		a.at[i] = operand_row(i) < rows ? (const uint8_t *)(x + (size_t)operand_row(i) * k->d) : NULL;
#pragma unroll
	for (int i = 0; i < (int)(REFS_PER_TILE / GEMM_LOADS); i++) {
		b.at[i] = r0 + operand_row(i) < refs ? ref_at(k, j->s, r0 + operand_row(i)) : NULL;
		b.square[i] = 0;
	}
	struct gemm<BM, REFS_PER_TILE> g = {};
	gemm_add<true>(&g, &a, &b, shared);
	const float *score = gemm_to_shared(&g, shared);
#pragma unroll
	for (int i = 0; i < (int)(REFS_PER_TILE / GEMM_LOADS); i++) {
		float sum = b.square[i];
		for (int lane = 1; lane < 8; lane *= 2)
			sum += __shfl_xor_sync(~0u, sum, lane);
		if (threadIdx.x % 8 == 0)
			norm[operand_row(i)] = sum;
	}
	__syncthreads();
	return score;
}

/*
 * Finds each token's nearest references in a slice. The grid is slices (x) by tiles of tokens (y) by (layer, sequence)
 * pairs (z).
 */
template <int BM>
__global__ void __launch_bounds__(GEMM_THREADS,
                                  2) nearest_refs_kernel(const __grid_constant__ struct compress_params c)
{
	SHARED_MEMORY(uint8_t, shared, 16);
	__shared__ float norm[REFS_PER_TILE];
	constexpr uint32_t each = GEMM_THREADS / BM; /* threads that share a token */
	const struct compress_item j = compress_item_of(&c, blockIdx.z);
	const uint32_t first = blockIdx.y * BM, row = threadIdx.x / each;
	if (first >= j.n)
		return;
	const uint32_t rows = min(j.n - first, (uint32_t)BM), token = j.from + first + row;
	const uint32_t refs = refs_before(&j.k, j.from + first + rows), usable = refs_before(&j.k, token + 1);
	struct nearest best = nearest_none();

	for (uint32_t r0 = blockIdx.x * REFS_PER_TILE; r0 < refs; r0 += c.slices * REFS_PER_TILE) {
		const float *score = products<BM>(&c, &j, c.x + (j.row + first) * j.k.d, rows, r0, refs, shared,
		                                  norm);
		for (uint32_t r = threadIdx.x % each; r < REFS_PER_TILE && r0 + r < usable; r += each)
			nearest_consider(&best, 2 * score[row * GEMM_PITCH(REFS_PER_TILE) + r] - norm[r], r0 + r);
	}
#pragma unroll
	for (uint32_t lane = 1; lane < each; lane *= 2) {
		struct nearest other;
#pragma unroll
		for (uint32_t i = 0; i < SKV_MAX_REFS; i++) {
			other.score[i] = __shfl_xor_sync(~0u, best.score[i], lane);
			other.id[i] = __shfl_xor_sync(~0u, best.id[i], lane);
		}
		nearest_merge(&best, &other);
	}
	if (threadIdx.x % each == 0 && row < rows)
		c.near[(j.row + first + row) * c.slices + blockIdx.x] = best;
}

void skv_cuda_nearest_refs(const struct compress_params *c, uint32_t layers, cudaStream_t stream)
{
	if (c->max_tokens <= 64)
		launch_grid(nearest_refs_kernel<64>, dim3(c->slices, 1, layers * c->n), GEMM_THREADS, gemm_bytes_with_c<64, REFS_PER_TILE>, stream, *c);
	else
		launch_grid(nearest_refs_kernel<128>, dim3(c->slices, ceil_div(c->max_tokens, 128), layers * c->n), GEMM_THREADS,
		            gemm_bytes_with_c<128, REFS_PER_TILE>, stream, *c);
}

cudaError_t skv_cuda_nearest_refs_init(void)
{
	const cudaError_t e = cudaFuncSetAttribute(nearest_refs_kernel<64>,
	                                           cudaFuncAttributeMaxDynamicSharedMemorySize,
	                                           gemm_bytes_with_c<64, REFS_PER_TILE>);
	return e ? e : cudaFuncSetAttribute(nearest_refs_kernel<128>, cudaFuncAttributeMaxDynamicSharedMemorySize,
	                                    gemm_bytes_with_c<128, REFS_PER_TILE>);
}
