/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/topk-stream.cuh - tokens chosen by their scores, while a pass over the keys goes on.
 *
 * Each block has a team of warps that does this, for one owner after the other. Beside a token's id goes
 * what its scores were, below the head's largest: attending to it needs no K any more.
 */
#ifndef SKV_CUDA_CHOSEN_CUH
#define SKV_CUDA_CHOSEN_CUH

#include "kernels/cuda/select/topk.cuh"
#include "kernels/cuda/decode/score-ring.cuh"

/* What the team has in shared memory. */
struct chosen_room {
	struct stats stats;
	struct select_room select;
	alignas(16) uint32_t key[KEY_BYTES / sizeof(uint32_t)];
};

/* The scores of the `count` tokens in ids, which the team has written. */
template <class T, int COLS>
__device__ static void take_scores(const struct call *c, uint32_t o, const struct stats *s, const uint32_t *ids,
                                   uint32_t count)
{
	constexpr int deep = 4;
	const uint32_t heads = c->owner_heads, n = count * heads;
	uint32_t *out = (uint32_t *)c->chosen + (size_t)(c->first_owner + o) * c->tokens * heads * (COLS / 2);

	for (uint32_t at = T::me(); at < n; at += deep * T::threads) {
		uint32_t word[deep][COLS / 2];
		float2 top[deep][COLS / 2];
#pragma unroll
		for (int d = 0; d < deep; d++) {
			const uint32_t e = min(at + d * T::threads, n - 1), token = ids[e / heads];
			const size_t page = slot_page(c, o % c->slots, e % heads, token / SKV_PAGE_TOKENS);
			const size_t row = page * SKV_PAGE_TOKENS + token % SKV_PAGE_TOKENS;
#pragma unroll
			for (int w = 0; w < COLS / 2; w++) {
				word[d][w] = __ldcg((const uint32_t *)(c->score + row * COLS) + w);
				top[d][w] = __ldcg((const float2 *)(c->top + page * COLS) + w);
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
				const float2 x = kept_pair(word[d][w], top[d][w]);
				const __half2 below = __floats2half2_rn(x.x - max[0], x.y - max[1]);
				out[(size_t)e * (COLS / 2) + w] = *(const uint32_t *)&below;
			}
		}
	}
}

template <class T, int D, int COLS>
__device__ static void choose_tokens(const struct call *c, const struct plan *p, struct chosen_room *room)
{
	for (uint32_t o = blockIdx.x; o < c->owners; o += gridDim.x) {
		const size_t list = c->first_owner + o;
		const uint32_t len = p->len[o];
		const struct skv_topk_counts x = choice_of(&c->select, true, len);
		uint32_t *ids = c->list.ids + list * c->list.stride;
		uint32_t *key = c->keys_fit ? room->key : (uint32_t *)c->ev.token + list * c->ev.token_stride;

		count_clear<T>(&room->select); /* the last owner's stats and keys have been read */
		slot_await_scores(c, p, o);
		stats_make<D>(c, p, o, T::me(), T::threads, &room->stats);
		T::sync();
		each_quad<COLS>(c, p, o, &room->stats, QUAD * T::me(), QUAD * T::threads,
		                (len + QUAD * T::threads - 1) / (QUAD * T::threads),
		                [=](uint32_t token, uint32_t there, const float weight[QUAD]) {
			const uint4 k = make_uint4(key_of(&x, token, there & 1, weight[0]),
			                           key_of(&x, token + 1, there & 2, weight[1]),
			                           key_of(&x, token + 2, there & 4, weight[2]),
			                           key_of(&x, token + 3, there & 8, weight[3]));
			if (token < len)
				keep_keys(&room->select, key, token, k);
		});
		const uint32_t count = choose<T>(key, &x, &room->select, ids);
		T::sync(); /* all ids are there */
		take_scores<T, COLS>(c, o, &room->stats, ids, count);
		T::sync();
		if (T::me() == 0) {
			c->list.count[list] = count;
			slot_leave(c, o, 1);
		}
	}
}

/* All that a block's team does. */
template <class T, int D>
__device__ static void choosing_team(const struct call *c, const struct plan *p, struct chosen_room *room)
{
	switch (c->cols) {
	case 2: choose_tokens<T, D, 2>(c, p, room); break;
	case 4: choose_tokens<T, D, 4>(c, p, room); break;
	case 6: choose_tokens<T, D, 6>(c, p, room); break;
	default: choose_tokens<T, D, 8>(c, p, room); break;
	}
}

#endif
