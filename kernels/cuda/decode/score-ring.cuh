/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/decode/score-ring.cuh - a ring buffer of attention scores between the warps that compute them and the
 * helper warps that use them.
 *
 * A softmax weight needs its head's denominator, which is known only when the whole sequence has been read. So a pass
 * that computes weights keeps its scores until then: 2 bytes per token and q head, in addition to the 4 D bytes of K
 * and V per token and kv head (head dimension D). Scores that were written to memory and read back by a later kernel
 * would cost five times that share. Instead the ring holds the scores of few requests at a time, in entries that are
 * overwritten again and again and hardly ever leave the L2 cache. Helper warps use these scores while the other warps
 * continue to read K and V.
 *
 * Request o of a launch has ring entry o % ring_entries. A work item of a request begins when the previous request has
 * released the entry, and the item signals when it is done. The last helper warp that used the scores releases the
 * entry to the next request. There is no deadlock: a warp waits only for work items of lower numbers, blocks take their
 * items in ascending order, and all blocks are resident at once (a cooperative launch). So there is always an item that
 * need not wait.
 *
 * If tokens are selected by scores alone, a separate kernel does so (topk-scores.cu), for so few sequences at a time
 * that their scores stay in the cache. Each request of a launch then has an entry of its own, and no warp waits.
 *
 * Scores are stored in 16 bits as differences from the head's running maximum, which is stored once per page. Scores
 * that matter are near the maximum, so they are exact to a few thousandths. A head tile has an even number of columns
 * (`cols`); if its number of heads is odd, the last column holds a copy.
 */
#ifndef SKV_CUDA_DECODE_SCORE_RING_CUH
#define SKV_CUDA_DECODE_SCORE_RING_CUH

#include "kernels/cuda/decode/decode.cuh"

/* ---- synchronisation -------------------------------------------------------------------------- */

#ifndef SKV_EMULATE
DEVICE uint32_t load_acquire(const uint32_t *p)
{
	uint32_t x;
	asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
	return x;
}
#endif

DEVICE void ring_await_generation(const struct decode_params *c, uint32_t entry, uint32_t turn)
{
	while (load_acquire(&c->ring[entry].generation) != turn)
		__nanosleep(100);
}

/*
 * Signals that a work item is done. Called by one lane of the block, after all its warps have written their results and
 * scores of the item.
 */
DEVICE void ring_item_done(const struct decode_params *c, uint32_t entry)
{
	__threadfence();
	atomicAdd(&c->ring[entry].items_done, 1);
}

/* Waits until all work items of request o have stored their scores. */
DEVICE void ring_await_scores(const struct decode_params *c, const struct request_plan *p, uint32_t o)
{
	const uint32_t entry = o % c->ring_entries, items = (p->first[o + 1] - p->first[o]) * c->request_head_tiles;
	ring_await_generation(c, entry, o / c->ring_entries);
	while (load_acquire(&c->ring[entry].items_done) != items)
		__nanosleep(100);
}

/* Called by one lane when its warp has used request o's scores. The last of `uses` uses releases the ring entry. */
DEVICE void ring_release(const struct decode_params *c, uint32_t o, uint32_t uses)
{
	struct ring_entry *s = &c->ring[o % c->ring_entries];
	__threadfence();
	if (atomicAdd(&s->uses, 1) + 1 < uses)
		return;
	s->items_done = s->uses = 0;
	__threadfence();
	*(volatile uint32_t *)&s->generation = o + c->ring_entries < c->n_requests ? o / c->ring_entries + 1 : 0;
}

/* ---- scores ----------------------------------------------------------------------------------- */

/* Returns the index of a page's scores: the page of head tile x of the request in ring entry `entry`. */
DEVICE size_t score_page(const struct decode_params *c, uint32_t entry, uint32_t x, uint32_t page)
{
	return ((size_t)entry * c->request_head_tiles + x) * (c->tokens / SKV_PAGE_TOKENS) + page;
}

/* Stores a warp's scores of a page in the ring. A lane has those of tokens g and g + 8, columns 2 c and 2 c + 1. */
__device__ static void store_scores(const struct decode_params *c, const struct work_item *j, uint32_t page,
                                    const float s[4], const float max[2])
{
	const uint32_t g = threadIdx.x % 32 / 4, col = threadIdx.x % 4 * 2;
	const size_t at = score_page(c, j->entry, j->x % c->request_head_tiles, page) * c->cols + col;
	const uint64_t stay = evict_last_policy();
	if (col >= c->cols)
		return;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		const __half2 x = __floats2half2_rn(s[2 * half] - max[0], s[2 * half + 1] - max[1]);
		__half *row = c->score + (at - col) * SKV_PAGE_TOKENS + (g + 8 * half) * c->cols + col;
		store4(row, *(const uint32_t *)&x, stay);
	}
	if (g == 0)
		store8(c->page_max + at, make_float2(max[0], max[1]), stay);
}

/* Returns a token's scores for columns 2 w and 2 w + 1, from a stored word w and the page's maxima `top`. */
DEVICE float2 score_pair(uint32_t word, float2 top)
{
	const float2 below = __half22float2(*(const __half2 *)&word);
	return make_float2(below.x + top.x, below.y + top.y);
}

/* ---- softmax over a request -------------------------------------------------------------------- */

/* Max columns of a request. A GQA group of one head has two columns, hence the factor 2. */
#define REQUEST_COLS (2 * SKV_MAX_HEADS)

/*
 * For each column: the largest score, and log2 of the softmax denominator. The latter is infinite for the copy of a
 * column, so that the copy's weights are 0.
 */
struct softmax_stats {
	float max[REQUEST_COLS], lse[REQUEST_COLS];
};

/*
 * Computes the softmax statistics of request o from the partial results of its work items. `me` is the index of the
 * calling thread among `threads` threads.
 */
template <int D>
__device__ static void make_softmax_stats(const struct decode_params *c, const struct request_plan *p,
                                          uint32_t o, uint32_t me, uint32_t threads, struct softmax_stats *s)
{
	const uint32_t heads = c->request_head_tiles, chunks = p->first[o + 1] - p->first[o];
	const uint32_t request = c->first_request + o;
	for (uint32_t at = me; at < heads * c->cols; at += threads) {
		struct work_item j;
		head_tile(c, request / c->list.rows, request % c->list.rows * heads + at / c->cols, &j);
		const uint32_t col = at % c->cols;
		const float *part = partial_of(c, &j, 0, D) + min(col, j.heads - 1);
		float max[MAX_CHUNKS], sum[MAX_CHUNKS], most = -INFINITY, all = 0;
#pragma unroll
		for (uint32_t k = 0; k < MAX_CHUNKS; k++) { /* issues all loads before the first is used */
			max[k] = k < chunks ? __ldcg(part + k * partial_floats(c->tile_heads, D)) : -INFINITY;
			sum[k] = k < chunks ? __ldcg(part + k * partial_floats(c->tile_heads, D) + HEAD_TILE) : 0;
		}
#pragma unroll
		for (uint32_t k = 0; k < MAX_CHUNKS; k++)
			most = fmaxf(most, max[k]);
#pragma unroll
		for (uint32_t k = 0; k < MAX_CHUNKS; k++)
			all += sum[k] * rescale(max[k], most);
		s->max[at] = most;
		s->lse[at] = col < j.heads ? add_sink(c->sinks, j.head + col, most + log2f(all)) : INFINITY;
	}
}

/* ---- weights ---------------------------------------------------------------------------------- */

#define QUAD 4u /* number of tokens that a thread reads at a time: a quarter of a page */

/* Scores of a quad (QUAD tokens) for one head tile, while their loads are in flight. */
template <int COLS> struct quad {
	/* Scores [token][column], two to a word. */
	uint4 score[COLS / 2];
	float2 top[COLS / 2]; /* running maxima of two columns each */
};

/* Loads a quad's scores. Loads bypass the L1 cache, which may hold scores of the entry's previous request. */
template <int COLS>
__device__ static void quad_load(const struct decode_params *c, uint32_t entry, uint32_t x, uint32_t token,
                                 struct quad<COLS> *q)
{
	const size_t at = score_page(c, entry, x, token / SKV_PAGE_TOKENS) * COLS;
	const __half *row = c->score + at * SKV_PAGE_TOKENS + token % SKV_PAGE_TOKENS * COLS;
#pragma unroll
	for (int w = 0; w < COLS / 2; w++) {
		q->score[w] = __ldcg((const uint4 *)row + w);
		q->top[w] = __ldcg((const float2 *)(c->page_max + at) + w);
	}
}

/* Returns word w of a quad's scores: token w / (COLS / 2), columns 2 (w % (COLS / 2)) and the next one. */
template <int COLS> DEVICE uint32_t quad_word(const struct quad<COLS> *q, int w)
{
	const uint4 v = q->score[w / 4];
	return w % 4 == 0 ? v.x : w % 4 == 1 ? v.y : w % 4 == 2 ? v.z : v.w;
}

/*
 * Reduces a quad's scores in a head tile to weight[], in addition to earlier head tiles: to the sum of weights, or, if
 * the maximum is wanted, to the largest log2 of a weight.
 */
template <int COLS>
DEVICE void quad_reduce(const struct decode_params *c, const struct quad<COLS> *q, const float *lse,
                        float weight[QUAD])
{
	float2 base[COLS / 2];
#pragma unroll
	for (int w = 0; w < COLS / 2; w++)
		base[w] = make_float2(q->top[w].x - lse[2 * w], q->top[w].y - lse[2 * w + 1]);
#pragma unroll
	for (int t = 0; t < QUAD; t++)
#pragma unroll
		for (int w = 0; w < COLS / 2; w++) {
			const float2 s = score_pair(quad_word(q, t * (COLS / 2) + w), base[w]);
			if (c->ev.sum)
				weight[t] += exp2_fast(s.x) + exp2_fast(s.y);
			else
				weight[t] = fmaxf(weight[t], fmaxf(s.x, s.y));
		}
}

/* Is a token of request o resident as a row, or, if `quantized`, quantized? */
template <bool quantized>
DEVICE bool token_resident(const struct decode_params *c, const struct request_plan *p, uint32_t o, uint32_t token)
{
	if constexpr (quantized)
		if (token < c->seq[(c->first_request + o) / c->list.rows].n_compressed)
			return true;
	return skv_pte_resident(p->table[o][token / SKV_PAGE_TOKENS]);
}

/*
 * Calls use(token, x, there, quad) for each of n quads of tokens of request o and each head tile x. The first quad is
 * at token `first`, and each is `step` tokens after the previous one. `there`: the quad's page is resident, or, if
 * `quantized`, its tokens are quantized.
 */
template <int COLS, bool quantized, class F>
__device__ static void for_each_tile(const struct decode_params *c, const struct request_plan *p, uint32_t o,
                                     uint32_t first, uint32_t step, uint32_t n, F use)
{
	constexpr int deep = COLS <= 4 ? 6 : 3; /* loads in flight */
	const uint32_t heads = c->request_head_tiles, entry = o % c->ring_entries, len = p->len[o];
	uint32_t token = first, x = 0, ahead_token = first, ahead_x = 0;

	for (uint32_t at = 0; at < n * heads; at += deep) {
		struct quad<COLS> q[deep];
		bool resident[deep];
#pragma unroll
		for (int d = 0; d < deep; d++) { /* quads past the last one are loaded but not used */
			quad_load(c, entry, ahead_x, min(ahead_token, c->tokens - QUAD), &q[d]);
			resident[d] = ahead_token < len && token_resident<quantized>(c, p, o, ahead_token);
			if (++ahead_x == heads) {
				ahead_x = 0;
				ahead_token += step;
			}
		}
#pragma unroll
		for (int d = 0; d < deep; d++) {
			if (at + d >= n * heads)
				break;
			use(token, x, resident[d], &q[d]);
			if (++x == heads) {
				x = 0;
				token += step;
			}
		}
	}
}

/*
 * Calls use(token, weight) for each of n quads of request o, with the tokens' weights reduced over the request's heads.
 * A token that is not resident has weight 0.
 */
template <int COLS, bool quantized = false, class F>
__device__ static void for_each_quad(const struct decode_params *c, const struct request_plan *p, uint32_t o,
                                     const struct softmax_stats *s,
                                     uint32_t first, uint32_t step, uint32_t n, F use)
{
	const uint32_t heads = c->request_head_tiles, len = p->len[o];
	const float none = c->ev.sum ? 0 : -INFINITY;
	float weight[QUAD] = {none, none, none, none};

	for_each_tile<COLS, quantized>(c, p, o, first, step, n,
	                [&](uint32_t token, uint32_t x, bool resident, const struct quad<COLS> *q) {
		quad_reduce(c, q, &s->lse[x * COLS], weight);
		if (x + 1 < heads)
			return;
#pragma unroll
		for (int t = 0; t < QUAD; t++) {
			const bool counts = resident && token + t < len;
			weight[t] = !counts ? 0 : c->ev.sum ? weight[t] : exp2_fast(weight[t]);
		}
		use(token, weight);
#pragma unroll
		for (int t = 0; t < QUAD; t++)
			weight[t] = none;
	});
}

/*
 * Calls use(token, head, weight) with a quad's weights for each q head of a kv head. `head` is the q head's index in
 * its GQA group.
 */
template <int COLS, bool quantized = false, class F>
__device__ static void for_each_head(const struct decode_params *c, const struct request_plan *p, uint32_t o,
                                     const struct softmax_stats *s,
                                     uint32_t first, uint32_t step, uint32_t n, F use)
{
	const uint32_t len = p->len[o];

	for_each_tile<COLS, quantized>(c, p, o, first, step, n,
	                [&](uint32_t token, uint32_t x, bool resident, const struct quad<COLS> *q) {
#pragma unroll
		for (int w = 0; w < COLS / 2; w++) {
			const uint32_t col = x * COLS + 2 * w, head = x * HEAD_TILE + 2 * w;
			const float2 base = make_float2(q->top[w].x - s->lse[col], q->top[w].y - s->lse[col + 1]);
			float weight[2][QUAD];
#pragma unroll
			for (int t = 0; t < QUAD; t++) {
				const float2 score = score_pair(quad_word(q, t * (COLS / 2) + w), base);
				const bool counts = resident && token + t < len;
				weight[0][t] = counts ? exp2_fast(score.x) : 0;
				weight[1][t] = counts ? exp2_fast(score.y) : 0;
			}
			if (head < c->group)
				use(token, head, weight[0]);
			if (head + 1 < c->group)
				use(token, head + 1, weight[1]);
		}
	});
}

#endif
