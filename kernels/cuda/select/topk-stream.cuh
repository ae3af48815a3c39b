/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/topk-stream.cuh - top-k selection of tokens while a decode pass over the keys goes on.
 *
 * Each block has a team of helper warps for this, which takes one request after the other. Beside a token's id it
 * writes the token's scores, as differences from the head's maximum: attending to it does not need K any more.
 */
#ifndef SKV_CUDA_SELECT_TOPK_STREAM_CUH
#define SKV_CUDA_SELECT_TOPK_STREAM_CUH

#include "kernels/cuda/select/topk.cuh"
#include "kernels/cuda/decode/score-ring.cuh"

/* The team's shared memory. */
struct topk_stream_smem {
	struct softmax_stats softmax_stats;
	struct topk_smem select;
	alignas(16) uint32_t key[KEY_BYTES / sizeof(uint32_t)];
};

/* Copy the scores of the `count` selected tokens in ids, which the team has written. */
template <class T, int COLS>
__device__ static void copy_topk_scores(const struct decode_params *c, uint32_t o,
                                        const struct softmax_stats *s, const uint32_t *ids, uint32_t count)
{
	constexpr int deep = 4;
	const uint32_t heads = c->request_head_tiles, n = count * heads;
	uint32_t *out = (uint32_t *)c->topk_scores + (size_t)(c->first_request + o) * c->tokens * heads * (COLS / 2);

	for (uint32_t at = T::me(); at < n; at += deep * T::threads) {
		uint32_t word[deep][COLS / 2];
		float2 top[deep][COLS / 2];
#pragma unroll
		for (int d = 0; d < deep; d++) {
			const uint32_t e = min(at + d * T::threads, n - 1), token = ids[e / heads];
			const size_t page = ring_page(c, o % c->ring_entries, e % heads, token / SKV_PAGE_TOKENS);
			const size_t row = page * SKV_PAGE_TOKENS + token % SKV_PAGE_TOKENS;
#pragma unroll
			for (int w = 0; w < COLS / 2; w++) {
				word[d][w] = __ldcg((const uint32_t *)(c->score + row * COLS) + w);
				top[d][w] = __ldcg((const float2 *)(c->page_max + page * COLS) + w);
			}
		}
#pragma unroll
		for (int d = 0; d < deep; d++) {
			const uint32_t e = at + d * T::threads;
			if (e >= n)
				break;
#pragma unroll
			for (int w = 0; w < COLS / 2; w++) {
				const float *max = &s->max[e % heads * COLS + 2 * w];
				const float2 x = score_pair(word[d][w], top[d][w]);
				const __half2 below = __floats2half2_rn(x.x - max[0], x.y - max[1]);
				out[(size_t)e * (COLS / 2) + w] = *(const uint32_t *)&below;
			}
		}
	}
}

template <class T, int D, int COLS>
__device__ static void select_tokens(const struct decode_params *c, const struct request_plan *p,
                                     struct topk_stream_smem *smem)
{
	for (uint32_t o = blockIdx.x; o < c->n_requests; o += gridDim.x) {
		const size_t list = c->first_request + o;
		const uint32_t len = p->len[o];
		const struct skv_topk_counts x = topk_counts_of(&c->select, true, len);
		uint32_t *ids = c->list.ids + list * c->list.stride;
		uint32_t *key = c->keys_fit_shared_memory ? smem->key : (uint32_t *)c->ev.token + list * c->ev.token_stride;

		clear_bins<T>(&smem->select); /* the last request's stats and keys have been read */
		ring_await_scores(c, p, o);
		make_softmax_stats<D>(c, p, o, T::me(), T::threads, &smem->softmax_stats);
		T::sync();
		for_each_quad<COLS>(c, p, o, &smem->softmax_stats, QUAD * T::me(), QUAD * T::threads,
		                    (len + QUAD * T::threads - 1) / (QUAD * T::threads),
		                    [=](uint32_t token, uint32_t resident, const float weight[QUAD]) {
			const uint4 k = make_uint4(topk_key(&x, token, resident & 1, weight[0]),
			                           topk_key(&x, token + 1, resident & 2, weight[1]),
			                           topk_key(&x, token + 2, resident & 4, weight[2]),
			                           topk_key(&x, token + 3, resident & 8, weight[3]));
			if (token < len)
				put_keys(&smem->select, key, token, k);
		});
		const uint32_t count = select_topk<T>(key, &x, &smem->select, ids);
		T::sync(); /* all ids are written */
		copy_topk_scores<T, COLS>(c, o, &smem->softmax_stats, ids, count);
		T::sync();
		if (T::me() == 0) {
			c->list.count[list] = count;
			ring_release(c, o, 1);
		}
	}
}

/* All that a block's helper warps do. */
template <class T, int D>
__device__ static void topk_warps(const struct decode_params *c, const struct request_plan *p,
                                  struct topk_stream_smem *smem)
{
	switch (c->cols) {
	case 2: select_tokens<T, D, 2>(c, p, smem); break;
	case 4: select_tokens<T, D, 4>(c, p, smem); break;
	case 6: select_tokens<T, D, 6>(c, p, smem); break;
	default: select_tokens<T, D, 8>(c, p, smem); break;
	}
}

#endif
