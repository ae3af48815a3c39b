/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/merge-scores.cu - scores of several rows of a sequence become one, as those of its heads do: a block
 * takes SLICE tokens, and as many pages, of a row of scores.
 */
#include "kernels/cuda/runtime/convert.cuh"
#include "kernels/cuda/runtime/cuda.h"

#define THREADS 256u
#define SLICE 4096u

struct merge_params {
	const struct skv_kseq *seq;
	struct skv_scores from, into;
};

DEVICE void merge(const float *from, float *into, uint32_t n, bool sum)
{
	const uint32_t end = min(n, (blockIdx.y + 1) * SLICE);
	for (uint32_t i = blockIdx.y * SLICE + threadIdx.x; i < end; i += THREADS)
		into[i] = sum ? into[i] + from[i] : into[i] > from[i] ? into[i] : from[i];
}

__global__ void __launch_bounds__(THREADS) merge_kernel(const __grid_constant__ struct merge_params c)
{
	const uint32_t item = blockIdx.x, pages = skv_pages_of(c.seq[item / c.into.rows].len);
	const size_t tokens = (size_t)item * c.into.token_stride;

	if (c.into.token)
		merge(c.from.token + tokens, c.into.token + tokens, pages * SKV_PAGE_TOKENS, c.into.sum);
	if (c.into.page)
		merge(c.from.page + (size_t)item * c.into.page_stride, c.into.page + (size_t)item * c.into.page_stride, pages,
		      c.into.sum);
}

void skv_cuda_merge_scores(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_scores *from,
                           const struct skv_scores *into, const struct skv_workspace *work)
{
	const struct merge_params c = {.seq = b->seq, .from = *from, .into = *into};
	const dim3 grid(b->n * into->rows, (b->max_len + SKV_PAGE_TOKENS + SLICE - 1) / SLICE);
	(void)sh;

	if (b->n > 0)
		merge_kernel<<<grid, THREADS, 0, stream_of(work)>>>(c);
}
