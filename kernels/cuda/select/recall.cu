/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/recall.cu - computes attention recall: the share of the dense softmax weight that is on the
 * tokens or pages to which a layer attended. One block per sequence.
 *
 * This kernel runs in few steps, so it is simple. Each thread adds up the weights of some tokens or pages, and the sums
 * of threads are added in a fixed order, so the bits are the same every time.
 */
#include "kernels/cuda/runtime/convert.cuh"
#include "kernels/cuda/runtime/cuda.h"

#define THREADS 256

struct recall_params {
	const struct skv_kseq *seq;
	struct skv_scores ev;
	struct skv_index_list list; /* the list that the layer attended to; rows is 0 if there is none */
	struct skv_window window;
	bool tokens;
	uint32_t n_heads;
	float *ret;
};

DEVICE float window_share(const struct recall_params *c, uint32_t len, const float *weight)
{
	const uint32_t sinks = min(c->window.sinks, len), start = max(sinks, skv_window_start(&c->window, len));
	float sum = 0;
	for (uint32_t t = threadIdx.x; t < sinks; t += THREADS)
		sum += weight[t];
	for (uint32_t t = start + threadIdx.x; t < len; t += THREADS)
		sum += weight[t];
	return sum;
}

DEVICE float list_share(const struct recall_params *c, uint32_t i, uint32_t row, const float *weight)
{
	const size_t at = (size_t)i * c->list.rows + (c->list.mapped ? c->list.map[row] : row);
	const uint32_t *ids = c->list.ids + at * c->list.stride, n = c->list.count[at];
	float sum = 0;
	for (uint32_t j = threadIdx.x; j < n; j += THREADS)
		sum += weight[ids[j]];
	return sum;
}

__global__ void __launch_bounds__(THREADS) recall_kernel(const __grid_constant__ struct recall_params c)
{
	__shared__ float share[THREADS];
	const uint32_t i = blockIdx.x;
	float sum = 0;

	for (uint32_t row = 0; row < c.ev.rows; row++) {
		const uint32_t item = i * c.ev.rows + row;
		const float *weight = c.tokens ? c.ev.token + (size_t)item * c.ev.token_stride
		                               : c.ev.page + (size_t)item * c.ev.page_stride;
		sum += c.list.rows ? list_share(&c, i, row, weight) : window_share(&c, c.seq[i].len, weight);
	}
	share[threadIdx.x] = sum;
	for (uint32_t half = THREADS / 2; half > 0; half /= 2) {
		__syncthreads();
		if (threadIdx.x < half)
			share[threadIdx.x] += share[threadIdx.x + half];
	}
	if (threadIdx.x == 0)
		c.ret[i] = share[0] / c.n_heads;
}

void skv_cuda_recall(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_scores *ev,
                     const struct skv_attended *seen, float *ret, const struct skv_workspace *work)
{
	struct recall_params c = {
		.seq = b->seq,
		.ev = *ev,
		.tokens = seen->window || seen->tokens,
		.n_heads = sh->n_heads,
		.ret = ret,
	};

	if (seen->window)
		c.window = *seen->window;
	else
		c.list = *seen->list;
	if (b->n > 0)
		launch_grid(recall_kernel, b->n, THREADS, 0, stream_of(work), c);
}
