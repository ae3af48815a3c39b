/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/evidence.cu - pooled softmax weights, from the scores of a dense pass.
 *
 * A weight needs its head's softmax denominator, which is known when the whole sequence has been seen. So the
 * dense pass leaves its scores behind (2 bytes a token and q head beside the 4 D bytes of K and V a token and kv
 * head), and this pass, once the denominators are there, reads them back: K is not read a second time.
 *
 * Half a warp takes a page, a lane a token of it.
 */
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/cuda.h"

#define THREADS 128
#define BLOCK_PAGES (THREADS / 16)

struct call {
	const struct skv_kseq *seq;
	const __half *score; /* [seq][kv head][tokens][group], log2, below ... */
	const float *top;    /* ... [seq][kv head][page][group] */
	const float *lse;   /* [seq][n_heads], log2 */
	struct skv_evidence ev;
	uint32_t n_kv_heads, group, tokens, layer;
};

__device__ static float pool(bool sum, float a, float b)
{
	return sum ? a + b : fmaxf(a, b);
}

/*
 * The pooled weight of a token over one kv head's group. `top` is its page's, `lse` its heads', of the group's first
 * head on.
 */
__device__ static float pool_group(const struct call *c, const __half *score, const float *top, const float *lse)
{
	float w = 0;
	if (c->group % 4 == 0) {
		for (uint32_t g = 0; g < c->group; g += 4) {
			const uint2 word = *(const uint2 *)(score + g);
			const float2 a = __half22float2(*(const __half2 *)&word.x), b = __half22float2(*(const __half2 *)&word.y);
			const float4 t = *(const float4 *)(top + g);
			w = pool(c->ev.sum, w, exp2_fast(a.x + (t.x - lse[g])));
			w = pool(c->ev.sum, w, exp2_fast(a.y + (t.y - lse[g + 1])));
			w = pool(c->ev.sum, w, exp2_fast(b.x + (t.z - lse[g + 2])));
			w = pool(c->ev.sum, w, exp2_fast(b.y + (t.w - lse[g + 3])));
		}
		return w;
	}
	for (uint32_t g = 0; g < c->group; g++)
		w = pool(c->ev.sum, w, exp2_fast(__half2float(score[g]) + (top[g] - lse[g])));
	return w;
}

/* Write a token's weight of a row, and the page's: the sum over half a warp. */
__device__ static void put(const struct call *c, uint32_t i, uint32_t row, uint32_t page, float weight)
{
	const size_t list = (size_t)i * c->ev.rows + row;
	float sum = weight;
#pragma unroll
	for (int lane = 1; lane < 16; lane *= 2)
		sum += __shfl_xor_sync(~0u, sum, lane);
	if (page * SKV_PAGE_TOKENS >= c->tokens)
		return;
	if (c->ev.token)
		c->ev.token[list * c->ev.token_stride + page * SKV_PAGE_TOKENS + threadIdx.x % 16] = weight;
	if (c->ev.page && threadIdx.x % 16 == 0)
		c->ev.page[list * c->ev.page_stride + page] = sum;
}

__global__ void __launch_bounds__(THREADS) evidence_kernel(const __grid_constant__ struct call c)
{
	__shared__ float lse[SKV_MAX_HEADS];
	const uint32_t i = blockIdx.y, len = c.seq[i].len, n_heads = c.n_kv_heads * c.group;
	const uint32_t page = blockIdx.x * BLOCK_PAGES + threadIdx.x / 16, token = page * SKV_PAGE_TOKENS + threadIdx.x % 16;
	const uint32_t first_page = blockIdx.x * BLOCK_PAGES, pages = skv_pages_of(len);

	if (first_page >= pages)
		return;
	for (uint32_t h = threadIdx.x; h < n_heads; h += THREADS)
		lse[h] = c.lse[(size_t)i * n_heads + h];
	__syncthreads();
	/* lanes past the end go along: the sum over a page is a matter of the whole warp */
	const bool inside = page < pages;
	const skv_pte *table = c.seq[i].table + (size_t)c.layer * c.seq[i].layer_stride;
	const bool there = inside && token < len && skv_pte_resident(table[page]);
	float all = 0;
#pragma unroll 8
	for (uint32_t h = 0; h < c.n_kv_heads; h++) {
		const size_t at = (size_t)i * c.n_kv_heads + h;
		const __half *score = c.score + (at * c.tokens + token) * c.group;
		const float *top = c.top + (at * (c.tokens / SKV_PAGE_TOKENS) + page) * c.group;
		/* read before it is known whether it counts: one wait less; what is there instead is scratch */
		const float any = inside ? pool_group(&c, score, top, lse + h * c.group) : 0, w = there ? any : 0;
		if (c.ev.rows > 1)
			put(&c, i, h, inside ? page : c.tokens, w);
		else
			all = pool(c.ev.sum, all, w);
	}
	if (c.ev.rows == 1)
		put(&c, i, 0, inside ? page : c.tokens, all);
}

void skv_cuda_evidence(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_evidence *ev,
                       const struct layout *l, const struct skv_work *work)
{
	const uint8_t *mem = (const uint8_t *)work->mem;
	const struct call c = {
		.seq = b->seq,
		.score = (const __half *)(mem + l->score),
		.top = (const float *)(mem + l->top),
		.lse = (const float *)(mem + l->lse),
		.ev = *ev,
		.n_kv_heads = sh->n_kv_heads,
		.group = sh->n_heads / sh->n_kv_heads,
		.tokens = l->tokens,
		.layer = sh->layer,
	};
	const dim3 grid(ceil_div(skv_pages_of(b->max_len), BLOCK_PAGES), b->n);

	if (b->n)
		evidence_kernel<<<grid, THREADS, 0, stream_of(work)>>>(c);
}
