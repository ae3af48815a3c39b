/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/decode/scores.cuh - computes reduced softmax weights of tokens and pages while a dense decode pass runs.
 *
 * Each block has one helper warp that does this. A request's pages are divided into tasks, which the blocks take in
 * turn.
 */
#ifndef SKV_CUDA_DECODE_SCORES_CUH
#define SKV_CUDA_DECODE_SCORES_CUH

#include "kernels/cuda/decode/score-ring.cuh"

#define TASK_SCORES 8192u /* approximate number of scores of a task */

#define PER_PAGE (SKV_PAGE_TOKENS / QUAD)
#define PER_WARP (32 / PER_PAGE) /* number of pages that a warp reduces at a time */

/*
 * Writes a lane's weights of a quad to a row of token scores. The sum of the weights of a page, which PER_PAGE lanes
 * have, is written as the page's score.
 */
__device__ static void write_quad(const struct decode_params *c, size_t row, uint32_t token, uint32_t end,
                                  const float weight[QUAD])
{
	float sum = weight[0] + weight[1] + weight[2] + weight[3];
#pragma unroll
	for (int x = 1; x < PER_PAGE; x *= 2)
		sum += __shfl_xor_sync(~0u, sum, x);
	if (token >= end)
		return;
	if (c->ev.token)
		*(float4 *)&c->ev.token[row * c->ev.token_stride + token] =
			make_float4(weight[0], weight[1], weight[2], weight[3]);
	if (c->ev.page && threadIdx.x % PER_PAGE == 0)
		c->ev.page[row * c->ev.page_stride + token / SKV_PAGE_TOKENS] = sum;
}

/*
 * Reduces the scores of pages [first, first + n) of request o: to one row of weights, or to a row for each q head of a
 * kv head.
 */
template <int COLS, bool quantized>
__device__ static void reduce_pages(const struct decode_params *c, const struct request_plan *p, uint32_t o,
                                    const struct softmax_stats *s, uint32_t first, uint32_t n)
{
	const uint32_t lane = threadIdx.x % 32, end = (first + n) * SKV_PAGE_TOKENS;
	const uint32_t from = first * SKV_PAGE_TOKENS + QUAD * lane, quads = (n + PER_WARP - 1) / PER_WARP;
	const size_t row = c->first_request + o;

	if (c->ev.rows == c->list.rows)
		for_each_quad<COLS, quantized>(c, p, o, s, from, QUAD * 32, quads,
		                [=](uint32_t token, const float weight[QUAD]) {
			write_quad(c, row, token, end, weight);
		});
	else
		for_each_head<COLS, quantized>(c, p, o, s, from, QUAD * 32, quads,
		                [=](uint32_t token, uint32_t head, const float weight[QUAD]) {
			write_quad(c, row * c->group + head, token, end, weight);
		});
}

template <int D, int COLS, bool quantized>
__device__ static void reduce_scores_tasks(const struct decode_params *c, const struct request_plan *p,
                                           struct softmax_stats *s)
{
	/* Number of pages of a task. */
	const uint32_t pages = max(PER_WARP, TASK_SCORES / SKV_PAGE_TOKENS / (c->request_head_tiles * COLS));
	uint32_t mine = blockIdx.x; /* index of this block's next task, counted from request o's first task */
	for (uint32_t o = 0; o < c->n_requests; o++) {
		const uint32_t tasks = max(1u, (p->tiles[o] + pages - 1) / pages);
		if (mine < tasks) {
			ring_await_scores(c, p, o);
			__syncwarp(); /* all lanes have read the previous request's statistics */
			make_softmax_stats<D>(c, p, o, threadIdx.x % 32, 32, s);
			__syncwarp();
		}
		for (; mine < tasks; mine += gridDim.x) {
			reduce_pages<COLS, quantized>(c, p, o, s, mine * pages,
			                              min(pages, p->tiles[o] - mine * pages));
			__syncwarp();
			if (threadIdx.x % 32 == 0)
				ring_release(c, o, tasks);
		}
		mine -= tasks;
	}
}

/* The helper warp's main function: reduces the scores of all requests of the launch. */
template <int D, bool quantized>
__device__ static void reduce_scores_warp(const struct decode_params *c, const struct request_plan *p,
                                          struct softmax_stats *s)
{
	switch (c->cols) {
	case 2: reduce_scores_tasks<D, 2, quantized>(c, p, s); break;
	case 4: reduce_scores_tasks<D, 4, quantized>(c, p, s); break;
	case 6: reduce_scores_tasks<D, 6, quantized>(c, p, s); break;
	default: reduce_scores_tasks<D, 8, quantized>(c, p, s); break;
	}
}

#endif
