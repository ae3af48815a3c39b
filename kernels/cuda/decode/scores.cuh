/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/decode/scores.cuh - pooled softmax weights of tokens and pages, while a dense pass goes on.
 *
 * Each block has one warp that does this. An owner's pages are cut into tasks, which the blocks take in turns.
 */
#ifndef SKV_CUDA_EVIDENCE_CUH
#define SKV_CUDA_EVIDENCE_CUH

#include "kernels/cuda/decode/score-ring.cuh"

#define TASK_SCORES 8192u /* of a task, about */

#define PER_PAGE (SKV_PAGE_TOKENS / QUAD)
#define PER_WARP (32 / PER_PAGE) /* pages that a warp takes at a time */

/* A lane's weights into a row of evidence, and their sum with those of the lanes that have the page's others. */
__device__ static void write_quad(const struct call *c, size_t row, uint32_t token, uint32_t end,
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

/* Pages [first, first + n) of owner o: a row of its own, or one for each q head of a kv head. */
template <int COLS, bool low>
__device__ static void weigh_pages(const struct call *c, const struct plan *p, uint32_t o, const struct stats *s,
                                   uint32_t first, uint32_t n)
{
	const uint32_t lane = threadIdx.x % 32, end = (first + n) * SKV_PAGE_TOKENS;
	const uint32_t from = first * SKV_PAGE_TOKENS + QUAD * lane, quads = (n + PER_WARP - 1) / PER_WARP;
	const size_t row = c->first_owner + o;

	if (c->ev.rows == c->list.rows)
		each_quad<COLS, low>(c, p, o, s, from, QUAD * 32, quads,
		                [=](uint32_t token, uint32_t, const float weight[QUAD]) {
			write_quad(c, row, token, end, weight);
		});
	else
		each_head<COLS, low>(c, p, o, s, from, QUAD * 32, quads,
		                [=](uint32_t token, uint32_t head, const float weight[QUAD]) {
			write_quad(c, row * c->group + head, token, end, weight);
		});
}

template <int D, int COLS, bool low>
__device__ static void evidence_tasks(const struct call *c, const struct plan *p, struct stats *s)
{
	const uint32_t pages = max(PER_WARP, TASK_SCORES / SKV_PAGE_TOKENS / (c->owner_heads * COLS)); /* of a task */
	uint32_t mine = blockIdx.x; /* this block's next task, from the owner's first on */
	for (uint32_t o = 0; o < c->owners; o++) {
		const uint32_t tasks = max(1u, (p->tiles[o] + pages - 1) / pages);
		if (mine < tasks) {
			slot_await_scores(c, p, o);
			__syncwarp(); /* the last owner's have been read */
			stats_make<D>(c, p, o, threadIdx.x % 32, 32, s);
			__syncwarp();
		}
		for (; mine < tasks; mine += gridDim.x) {
			weigh_pages<COLS, low>(c, p, o, s, mine * pages, min(pages, p->tiles[o] - mine * pages));
			__syncwarp();
			if (threadIdx.x % 32 == 0)
				slot_leave(c, o, tasks);
		}
		mine -= tasks;
	}
}

/* All that a block's warp does. */
template <int D, bool low>
__device__ static void evidence_warp(const struct call *c, const struct plan *p, struct stats *s)
{
	switch (c->cols) {
	case 2: evidence_tasks<D, 2, low>(c, p, s); break;
	case 4: evidence_tasks<D, 4, low>(c, p, s); break;
	case 6: evidence_tasks<D, 6, low>(c, p, s); break;
	default: evidence_tasks<D, 8, low>(c, p, s); break;
	}
}

#endif
