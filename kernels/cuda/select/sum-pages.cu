/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/sum-pages.cu - computes the scores of pages as sums of their tokens' scores, one thread per page.
 */
#include "kernels/cuda/runtime/cuda.h"

#define THREADS 128

struct sum_params {
	const struct skv_kseq *seq;
	struct skv_scores scores;
};

/* Adds in the order of decode/scores.cuh: the tokens of each quad (four tokens), then the sums of quads in pairs. */
__global__ void __launch_bounds__(THREADS) sum_pages_kernel(const __grid_constant__ struct sum_params c)
{
	const uint32_t page = blockIdx.x * THREADS + threadIdx.x, row = blockIdx.y;
	float sum[4];

	if (page >= skv_pages_of(c.seq[row / c.scores.rows].len))
		return;
	const float4 *token = (const float4 *)(c.scores.token + (size_t)row * c.scores.token_stride + page * SKV_PAGE_TOKENS);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const float4 w = token[i];
		sum[i] = w.x + w.y + w.z + w.w;
	}
	c.scores.page[(size_t)row * c.scores.page_stride + page] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

void skv_cuda_sum_pages(const struct skv_batch *b, const struct skv_scores *scores, const struct skv_workspace *work)
{
	const struct sum_params c = {b->seq, *scores};

	if (b->n > 0)
		launch_grid(sum_pages_kernel, dim3(ceil_div(skv_pages_of(b->max_len), THREADS), b->n * scores->rows), THREADS, 0,
		            stream_of(work), c);
}
