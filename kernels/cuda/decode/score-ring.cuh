/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/decode/score-ring.cuh - scores on their way from the warps that make them to those that use them.
 *
 * A weight needs its head's softmax denominator, which is known when all of the sequence has been seen. So the
 * pass keeps its scores, 2 bytes a token and q head beside the 4 D bytes of K and V a token and kv head, until
 * then. Written out and read back by a later kernel they would cost five times their share. Here the scores of
 * few owners at a time are kept, in slots that are written again and again and hardly ever leave the second
 * cache; warps of their own (helpers) use them up while the others read on.
 *
 * Owner o has slot o % slots. A job of it begins when the owner before it has left the slot, and says when it
 * is done; the last one to use the scores leaves the slot to the next owner. Whoever waits, waits for jobs of
 * lower numbers, and blocks take theirs in ascending order, all at once on the device (a cooperative launch):
 * so there is always one that need not wait.
 *
 * Scores are in 16 bits below the head's running maximum, which is kept once a page: what matters is near it,
 * and exact to a few thousandths there. A head tile has its heads in an even number of columns (`cols`); the
 * one too many, if there is one, has a copy.
 */
#ifndef SKV_CUDA_SLOTS_CUH
#define SKV_CUDA_SLOTS_CUH

#include "kernels/cuda/decode/decode.cuh"

/* ---- who waits for whom ----------------------------------------------------------------------- */

DEVICE uint32_t load_acquire(const uint32_t *p)
{
	uint32_t x;
	asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
	return x;
}

DEVICE void slot_await_turn(const struct call *c, uint32_t slot, uint32_t turn)
{
	while (load_acquire(&c->slot[slot].turn) != turn)
		__nanosleep(100);
}

/* One lane, for all that its block's warps have written of a job. */
DEVICE void slot_job_done(const struct call *c, uint32_t slot)
{
	__threadfence();
	atomicAdd(&c->slot[slot].jobs, 1);
}

/* Wait until the scores of the launch's owner o are complete. */
DEVICE void slot_await_scores(const struct call *c, const struct plan *p, uint32_t o)
{
	const uint32_t slot = o % c->slots, jobs = (p->first[o + 1] - p->first[o]) * c->owner_heads;
	slot_await_turn(c, slot, o / c->slots);
	while (load_acquire(&c->slot[slot].jobs) != jobs)
		__nanosleep(100);
}

/* One lane, when owner o's scores have been used; the last of so many uses leaves the slot. */
DEVICE void slot_leave(const struct call *c, uint32_t o, uint32_t uses)
{
	struct slot *s = &c->slot[o % c->slots];
	__threadfence();
	if (atomicAdd(&s->uses, 1) + 1 < uses)
		return;
	s->jobs = s->uses = 0;
	__threadfence();
	*(volatile uint32_t *)&s->turn = o + c->slots < c->owners ? o / c->slots + 1 : 0;
}

/* ---- scores ----------------------------------------------------------------------------------- */

/* The place, in pages, of a page of the owner's head tile x. */
DEVICE size_t slot_page(const struct call *c, uint32_t slot, uint32_t x, uint32_t page)
{
	return ((size_t)slot * c->owner_heads + x) * (c->tokens / SKV_PAGE_TOKENS) + page;
}

/* Scores of a page, as a warp has them after a product: tokens g and g + 8, columns 2 c and 2 c + 1. */
__device__ static void keep_scores(const struct call *c, const struct job *j, uint32_t page, const float s[4],
                                   const float max[2])
{
	const uint32_t g = threadIdx.x % 32 / 4, col = threadIdx.x % 4 * 2;
	const size_t at = slot_page(c, j->slot, j->x % c->owner_heads, page) * c->cols + col;
	const uint64_t stay = policy_stay();
	if (col >= c->cols)
		return;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		const __half2 x = __floats2half2_rn(s[2 * half] - max[0], s[2 * half + 1] - max[1]);
		__half *row = c->score + (at - col) * SKV_PAGE_TOKENS + (g + 8 * half) * c->cols + col;
		store4(row, *(const uint32_t *)&x, stay);
	}
	if (g == 0)
		store8(c->top + at, make_float2(max[0], max[1]), stay);
}

/* A token's scores of a head tile for columns 2 w and 2 w + 1, from what the slot has of them. */
DEVICE float2 kept_pair(uint32_t word, float2 top)
{
	const float2 below = __half22float2(*(const __half2 *)&word);
	return make_float2(below.x + top.x, below.y + top.y);
}

/* ---- softmax over an owner --------------------------------------------------------------------- */

/* Columns of an owner, at most: a group of one head has two. */
#define OWNER_COLS (2 * SKV_MAX_HEADS)

/* Of each column: the largest score, and the logarithm of the denominator; infinite for a copy, which has no weight. */
struct stats {
	float max[OWNER_COLS], lse[OWNER_COLS];
};

/* From what the jobs of owner o left behind; `me` of so many threads. */
template <int D>
__device__ static void stats_make(const struct call *c, const struct plan *p, uint32_t o, uint32_t me, uint32_t threads,
                                  struct stats *s)
{
	const uint32_t heads = c->owner_heads, chunks = p->first[o + 1] - p->first[o];
	const uint32_t owner = c->first_owner + o;
	for (uint32_t at = me; at < heads * c->cols; at += threads) {
		struct job j;
		head_tile(c, owner / c->list.rows, owner % c->list.rows * heads + at / c->cols, &j);
		const uint32_t col = at % c->cols;
		const float *part = part_of(c, &j, 0, D) + min(col, j.heads - 1);
		float max[CHUNKS_MOST], sum[CHUNKS_MOST], most = -INFINITY, all = 0;
#pragma unroll
		for (uint32_t k = 0; k < CHUNKS_MOST; k++) { /* all on their way at once */
			max[k] = k < chunks ? __ldcg(part + k * part_floats(c->wide, D)) : -INFINITY;
			sum[k] = k < chunks ? __ldcg(part + k * part_floats(c->wide, D) + HEAD_TILE) : 0;
		}
#pragma unroll
		for (uint32_t k = 0; k < CHUNKS_MOST; k++)
			most = fmaxf(most, max[k]);
#pragma unroll
		for (uint32_t k = 0; k < CHUNKS_MOST; k++)
			all += sum[k] * rescale(max[k], most);
		s->max[at] = most;
		s->lse[at] = col < j.heads ? most + log2f(all) : INFINITY;
	}
}

/* ---- weights ---------------------------------------------------------------------------------- */

#define QUAD 4u /* tokens that a thread reads at a time, a quarter of a page */

/* Scores of a quad for one head tile, on their way. */
template <int COLS> struct quad {
	uint4 score[COLS / 2]; /* [token][column], two to a word */
	float2 top[COLS / 2];
};

/* Past the first cache: another owner's scores may have been there. */
template <int COLS>
__device__ static void quad_load(const struct call *c, uint32_t slot, uint32_t x, uint32_t token, struct quad<COLS> *q)
{
	const size_t at = slot_page(c, slot, x, token / SKV_PAGE_TOKENS) * COLS;
	const __half *row = c->score + at * SKV_PAGE_TOKENS + token % SKV_PAGE_TOKENS * COLS;
#pragma unroll
	for (int w = 0; w < COLS / 2; w++) {
		q->score[w] = __ldcg((const uint4 *)row + w);
		q->top[w] = __ldcg((const float2 *)(c->top + at) + w);
	}
}

/* Word w of a quad: token w / (COLS / 2), columns 2 (w % (COLS / 2)) and the next. */
template <int COLS> DEVICE uint32_t quad_word(const struct quad<COLS> *q, int w)
{
	const uint4 v = q->score[w / 4];
	return w % 4 == 0 ? v.x : w % 4 == 1 ? v.y : w % 4 == 2 ? v.z : v.w;
}

/* Pool what a head tile has into a quad's weights; as logarithms, where the largest is wanted. */
template <int COLS>
DEVICE void quad_pool(const struct call *c, const struct quad<COLS> *q, const float *lse, float weight[QUAD])
{
	float2 base[COLS / 2];
#pragma unroll
	for (int w = 0; w < COLS / 2; w++)
		base[w] = make_float2(q->top[w].x - lse[2 * w], q->top[w].y - lse[2 * w + 1]);
#pragma unroll
	for (int t = 0; t < QUAD; t++)
#pragma unroll
		for (int w = 0; w < COLS / 2; w++) {
			const float2 s = kept_pair(quad_word(q, t * (COLS / 2) + w), base[w]);
			if (c->ev.sum)
				weight[t] += exp2_fast(s.x) + exp2_fast(s.y);
			else
				weight[t] = fmaxf(weight[t], fmaxf(s.x, s.y));
		}
}

/* Is a token of owner o there? */
template <bool low> DEVICE bool has_token(const struct call *c, const struct plan *p, uint32_t o, uint32_t token)
{
	if constexpr (low)
		if (token < c->seq[(c->first_owner + o) / c->list.rows].coded)
			return true;
	return skv_pte_resident(p->table[o][token / SKV_PAGE_TOKENS]);
}

/*
 * Scores of owner o by quads of tokens, the first at `first` and each `step` tokens further on, n of them; of a
 * quad one head tile after the other: use(token, x, there, quad), `there` if its page is; `low`: tokens in few bits are.
 */
template <int COLS, bool low, class F>
__device__ static void each_tile(const struct call *c, const struct plan *p, uint32_t o, uint32_t first, uint32_t step,
                                 uint32_t n, F use)
{
	constexpr int deep = COLS <= 4 ? 6 : 3; /* on their way */
	const uint32_t heads = c->owner_heads, slot = o % c->slots, len = p->len[o];
	uint32_t token = first, x = 0, ahead_token = first, ahead_x = 0;

	for (uint32_t at = 0; at < n * heads; at += deep) {
		struct quad<COLS> q[deep];
		bool there[deep];
#pragma unroll
		for (int d = 0; d < deep; d++) { /* what is past the end is read, but not used */
			quad_load(c, slot, ahead_x, min(ahead_token, c->tokens - QUAD), &q[d]);
			there[d] = ahead_token < len && has_token<low>(c, p, o, ahead_token);
			if (++ahead_x == heads) {
				ahead_x = 0;
				ahead_token += step;
			}
		}
#pragma unroll
		for (int d = 0; d < deep; d++) {
			if (at + d >= n * heads)
				break;
			use(token, x, there[d], &q[d]);
			if (++x == heads) {
				x = 0;
				token += step;
			}
		}
	}
}

/* Weights of its tokens, pooled over its heads: use(token, there, weight). Of tokens that are not there: 0. */
template <int COLS, bool low = false, class F>
__device__ static void each_quad(const struct call *c, const struct plan *p, uint32_t o, const struct stats *s,
                                 uint32_t first, uint32_t step, uint32_t n, F use)
{
	const uint32_t heads = c->owner_heads, len = p->len[o];
	const float none = c->ev.sum ? 0 : -INFINITY;
	float weight[QUAD] = {none, none, none, none};

	each_tile<COLS, low>(c, p, o, first, step, n,
	                [&](uint32_t token, uint32_t x, bool there, const struct quad<COLS> *q) {
		uint32_t mask = 0;
		quad_pool(c, q, &s->lse[x * COLS], weight);
		if (x + 1 < heads)
			return;
#pragma unroll
		for (int t = 0; t < QUAD; t++) {
			const bool counts = there && token + t < len;
			mask |= (uint32_t)counts << t;
			weight[t] = !counts ? 0 : c->ev.sum ? weight[t] : exp2_fast(weight[t]);
		}
		use(token, mask, weight);
#pragma unroll
		for (int t = 0; t < QUAD; t++)
			weight[t] = none;
	});
}

/* Weights of each q head of a kv head: use(token, head, weight), head counted from its first. */
template <int COLS, bool low = false, class F>
__device__ static void each_head(const struct call *c, const struct plan *p, uint32_t o, const struct stats *s,
                                 uint32_t first, uint32_t step, uint32_t n, F use)
{
	const uint32_t len = p->len[o];

	each_tile<COLS, low>(c, p, o, first, step, n,
	                [&](uint32_t token, uint32_t x, bool there, const struct quad<COLS> *q) {
#pragma unroll
		for (int w = 0; w < COLS / 2; w++) {
			const uint32_t col = x * COLS + 2 * w, head = x * HEAD_TILE + 2 * w;
			const float2 base = make_float2(q->top[w].x - s->lse[col], q->top[w].y - s->lse[col + 1]);
			float weight[2][QUAD];
#pragma unroll
			for (int t = 0; t < QUAD; t++) {
				const float2 score = kept_pair(quad_word(q, t * (COLS / 2) + w), base);
				const bool counts = there && token + t < len;
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
