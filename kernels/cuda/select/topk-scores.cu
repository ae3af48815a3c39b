/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/topk-scores.cu - selects the top-k tokens of each list by their softmax weights, from the scores
 * that a pass over the keys has stored (MODE_TOPK_KEYS in decode.cuh).
 *
 * The blocks that select for one list (a sequence, or one of its kv heads) are a cluster. Each block adds up the
 * softmax denominators of the list's heads by itself, in the order that makes a sum independent of how the pass was
 * divided. A block makes keys of the weights of its share of the tokens, and selects by the keys of all blocks
 * (cluster-select.cuh). Beside a token's id the block writes the token's scores, as differences from the head's
 * maximum, so that attention to the token does not need K.
 *
 * The input is in the L2 cache and few blocks read it. So each load of a warp takes whole sectors, and several loads
 * are in flight.
 */
#include "kernels/cuda/decode/parts.cuh"
#include "kernels/cuda/decode/score-ring.cuh"
#include "kernels/cuda/runtime/overlap.cuh"
#include "kernels/cuda/select/cluster-select.cuh"
#include "kernels/device.h"

struct topk_scores_params {
	struct decode_params d;
	/* Keys are in d.ev.token in global memory, because shared memory has no room for them. */
	bool in_memory;
};

/* A block's shared memory; the block's keys follow this struct. */
struct topk_scores_room {
	alignas(16) struct softmax_stats stats;
	struct select_smem select;
};

#if __CUDA_ARCH__ >= 900
/* ---- denominators -------------------------------------------------------------------------------- */

#define FOUR 4          /* columns of a head tile that a lane sums at a time */
#define LANE_ITEMS 4    /* work items of the pass whose results a lane loads and sums at a time */
#define WARP_ITEMS (32u * LANE_ITEMS)

struct four_sums {
	struct partial_softmax of[FOUR];
};

DEVICE struct four_sums add_four(const struct four_sums &a, const struct four_sums &b)
{
	struct four_sums r;
#pragma unroll
	for (int k = 0; k < FOUR; k++)
		r.of[k] = add_part(a.of[k], b.of[k]);
	return r;
}

/* Returns an empty sum: adding it does not change the bits of the other sum. */
DEVICE struct four_sums no_sums(void)
{
	struct four_sums r;
#pragma unroll
	for (int k = 0; k < FOUR; k++)
		r.of[k] = {-INFINITY, 0};
	return r;
}

DEVICE struct four_sums read_item(const float *part)
{
	const float4 max = __ldcg((const float4 *)part), sum = __ldcg((const float4 *)(part + HEAD_TILE));
	return {{{max.x, sum.x}, {max.y, sum.y}, {max.z, sum.z}, {max.w, sum.w}}};
}

/* Adds up the sums of a warp's lanes: in pairs, then pairs of pairs, and so on. The first lane has the result. */
DEVICE struct four_sums add_lanes(struct four_sums mine)
{
#pragma unroll
	for (int x = 1; x < 32; x *= 2) {
		struct four_sums later;
#pragma unroll
		for (int k = 0; k < FOUR; k++)
			later.of[k] = {__shfl_down_sync(~0u, mine.of[k].max, x), __shfl_down_sync(~0u, mine.of[k].sum, x)};
		mine = add_four(mine, later);
	}
	return mine;
}

/* Copies the first lane's sum to *mine of lane `to`. */
DEVICE void hand_over(struct four_sums *mine, const struct four_sums &sum, uint32_t to)
{
#pragma unroll
	for (int k = 0; k < FOUR; k++) {
		const struct partial_softmax x = {__shfl_sync(~0u, sum.of[k].max, 0), __shfl_sync(~0u, sum.of[k].sum, 0)};
		if (threadIdx.x % 32 == to)
			mine->of[k] = x;
	}
}

/*
 * Returns, in the first lane of a warp, the sum of the results of work items [first, n), at most WARP_ITEMS << 5 *
 * level of them, added in the order of add_pairs(). `part` points to the maximum of item 0 for the first of the four
 * columns.
 */
template <int level> DEVICE struct four_sums sum_items(const float *part, uint32_t n, uint32_t first)
{
	struct four_sums mine = no_sums();

	if constexpr (level == 0) {
		struct four_sums x[LANE_ITEMS];
		const uint32_t at = first + threadIdx.x % 32 * LANE_ITEMS;
#pragma unroll
		for (uint32_t k = 0; k < LANE_ITEMS; k++)
			x[k] = at + k < n ? read_item(part + (size_t)(at + k) * partial_floats(0, 0)) : no_sums();
		mine = add_four(add_four(x[0], x[1]), add_four(x[2], x[3]));
	} else {
		constexpr uint32_t each = WARP_ITEMS << 5 * (level - 1);
		for (uint32_t k = 0; k < 32 && first + k * each < n; k++) {
			const struct four_sums sum = sum_items<level - 1>(part, n, first + k * each);
			if (k == 0 && n - first <= each)
				return sum;
			hand_over(&mine, sum, k);
		}
	}
	return add_lanes(mine);
}

/*
 * Sets the softmax statistics of one column, whose sum over all items is `sum`. The list's first block also stores the
 * maximum, for the pass that attends to the tokens.
 */
DEVICE void put_stats(const struct decode_params *c, const struct work_item *j, uint32_t col, const struct partial_softmax &sum,
                      uint32_t at, struct softmax_stats *to)
{
	const bool head = col < j->heads; /* otherwise the column is a copy, without weight */

	to->max[at] = head ? sum.max : 0;
	to->lse[at] = head ? add_sink(c->sinks, j->head + col, sum.max + log2f(sum.sum)) : INFINITY;
	if (head && cg::this_cluster().block_rank() == 0)
		c->topk_max[(size_t)j->i * c->n_heads + j->head + col] = sum.max;
}

template <int COLS> __device__ static void make_stats(const struct decode_params *c, uint32_t request, struct softmax_stats *to)
{
	constexpr uint32_t fours = (COLS + FOUR - 1) / FOUR; /* groups of four columns in a head tile */
	const uint32_t heads = c->request_head_tiles, items = n_items(c, request_tiles(c, request)), lane = threadIdx.x % 32;

	for (uint32_t u = threadIdx.x / 32; u < heads * fours; u += WARPS) {
		const uint32_t x = u / fours, first = u % fours * FOUR, col = first + lane;
		struct partial_softmax own;
		struct work_item j;
		head_tile(c, request / c->list.rows, request % c->list.rows * heads + x, &j);
		const struct four_sums sum = sum_items<2>(partial_of(c, &j, 0, 0) + first, items, 0);
#pragma unroll
		for (int k = 0; k < FOUR; k++) { /* lane k takes column k */
			const struct partial_softmax one = {__shfl_sync(~0u, sum.of[k].max, 0), __shfl_sync(~0u, sum.of[k].sum, 0)};
			own = k == 0 || lane == k ? one : own;
		}
		if (lane < FOUR && col < COLS)
			put_stats(c, &j, col, own, x * COLS + col, to);
	}
}

/* ---- keys ---------------------------------------------------------------------------------------- */

/*
 * Location of a request's stored scores. Those of one head tile are `tokens` tokens after those of the head tile before
 * it.
 */
struct scores_at {
	const __half *score;
	const float *page_max;
	uint32_t tokens, heads; /* `heads`: number of head tiles */
};

template <int COLS> DEVICE struct scores_at scores_of(const struct decode_params *c, uint32_t entry)
{
	const size_t page = score_page(c, entry, 0, 0);
	return {c->score + page * SKV_PAGE_TOKENS * COLS, c->page_max + page * COLS, c->tokens, c->request_head_tiles};
}

/* Loads the running maxima of token `token`'s page, for the columns of head tile x. */
template <int COLS> DEVICE void read_top(const struct scores_at *at, uint32_t x, uint32_t token, float2 top[COLS / 2])
{
	const float *from = at->page_max + (size_t)(x * (at->tokens / SKV_PAGE_TOKENS) + token / SKV_PAGE_TOKENS) * COLS;
#pragma unroll
	for (int w = 0; w < COLS / 2; w++) {
		if (COLS % 4) {
			top[w] = __ldcg((const float2 *)from + w);
		} else if (w % 2 == 0) {
			const float4 two = __ldcg((const float4 *)from + w / 2);
			top[w] = make_float2(two.x, two.y);
			top[w + 1] = make_float2(two.z, two.w);
		}
	}
}

/* Scores of a few tokens for one head tile, as a lane loads them: 16 bytes, or 48. */
template <int COLS> struct piece {
	static constexpr uint32_t tokens = COLS == 6 ? 4 : 8 / COLS, loads = tokens * COLS / 8;
	/* Scores [token][column], two to a word. */
	uint4 score[loads];
	float2 top[COLS / 2];
};

template <int COLS> DEVICE void read_piece(const struct scores_at *at, uint32_t x, uint32_t token, struct piece<COLS> *p)
{
	const uint4 *from = (const uint4 *)(at->score + ((size_t)x * at->tokens + token) * COLS);
#pragma unroll
	for (uint32_t k = 0; k < p->loads; k++)
		p->score[k] = __ldcg(from + k);
	read_top<COLS>(at, x, token, p->top);
}

/*
 * Reduces a head tile's scores to the tokens' weights, in addition to earlier head tiles: to the sum of weights, or,
 * unless `sum`, to the largest log2 of a weight.
 */
template <int COLS, bool sum> DEVICE void reduce_piece(const struct piece<COLS> *p, const float *lse, float weight[piece<COLS>::tokens])
{
	float2 base[COLS / 2];
#pragma unroll
	for (int w = 0; w < COLS / 2; w++) {
		const float2 two = *(const float2 *)&lse[2 * w];
		base[w] = make_float2(p->top[w].x - two.x, p->top[w].y - two.y);
	}
#pragma unroll
	for (uint32_t t = 0; t < p->tokens; t++)
#pragma unroll
		for (uint32_t w = 0; w < COLS / 2; w++) {
			const uint32_t at = t * (COLS / 2) + w;
			const uint4 v = p->score[at / 4];
			const float2 s = score_pair(at % 4 == 0 ? v.x : at % 4 == 1 ? v.y : at % 4 == 2 ? v.z : v.w, base[w]);
			weight[t] = sum ? weight[t] + (exp2_fast(s.x) + exp2_fast(s.y)) : fmaxf(weight[t], fmaxf(s.x, s.y));
		}
}

/* Returns the key of a token; 0 if the token is never selected. `there`: the token's page is resident. */
template <bool sum>
DEVICE uint32_t key_of_token(const struct skv_topk_counts *counts, uint32_t token, bool there, float weight, float offset)
{
	const float w = (sum ? log2f(weight) : weight) * (1 / KEY_RANGE) + offset;

	if (!there || token >= counts->n)
		return 0;
	if (token < counts->pin || token >= counts->n - counts->recent)
		return KEY_ANYWAY;
	return w == w ? key_of(w) : 0;
}

/* Stores and counts the keys of a piece's tokens; `at` is the index of the first one in the block's share. */
template <int COLS, bool sum>
DEVICE void put_keys(const struct key_share *share, const struct skv_topk_counts *counts, uint32_t at, bool there,
                     const float weight[piece<COLS>::tokens], float offset, struct select_smem *smem)
{
	constexpr uint32_t tokens = piece<COLS>::tokens;
	uint32_t key[tokens];

#pragma unroll
	for (uint32_t t = 0; t < tokens; t++) {
		key[t] = key_of_token<sum>(counts, share->token + at + t, there, weight[t], offset);
		count_upper(smem, key[t]);
	}
	if constexpr (tokens == 4)
		*(uint2 *)&share->key[at] = make_uint2(key[0] | key[1] << 16, key[2] | key[3] << 16);
	else if constexpr (tokens == 2)
		*(uint32_t *)&share->key[at] = key[0] | key[1] << 16;
	else
		share->key[at] = (uint16_t)key[0];
}

/* Returns the block's share of the keys of a list of `len` tokens, in whole pages. */
DEVICE struct key_share share_of(const struct topk_scores_params *t, uint32_t request, uint32_t len, uint16_t *shared)
{
	const uint32_t blocks = cg::this_cluster().num_blocks(), rank = cg::this_cluster().block_rank(), pages = skv_pages_of(len);
	const uint32_t first = pages * rank / blocks * SKV_PAGE_TOKENS, end = pages * (rank + 1) / blocks * SKV_PAGE_TOKENS;
	uint16_t *const list = (uint16_t *)(t->d.ev.token + (size_t)request * t->d.ev.token_stride);

	return {rank, blocks, first, end - first, t->in_memory ? list + first : shared};
}

/*
 * Makes the keys of the block's share, and counts their upper digits. For each piece (some consecutive tokens) the
 * scores of one head tile after the other are read.
 */
template <int COLS, bool sum>
__device__ static void make_keys(const struct scores_at *from, const struct key_share *share, const struct skv_topk_counts *counts,
                                 const skv_pte *table, struct topk_scores_room *room)
{
	constexpr int deep = COLS <= 4 ? 4 : COLS == 8 ? 3 : 2; /* number of loads in flight */
	constexpr uint32_t tokens = piece<COLS>::tokens, step = THREADS * tokens;
	const uint32_t heads = from->heads, n = (share->n + step - 1) / step * heads;
	const float none = sum ? 0 : -INFINITY, offset = key_offset(counts->n, 0);
	uint32_t at = threadIdx.x * tokens, x = 0, ahead = at, ahead_x = 0;
	float weight[tokens];

	for (uint32_t i = 0; i < n; i += deep) {
		struct piece<COLS> p[deep];
		skv_pte page[deep];
#pragma unroll
		for (int d = 0; d < deep; d++) { /* pieces past the end are loaded but not used */
			const uint32_t token = share->token + min(ahead, share->n - tokens);
			read_piece(from, ahead_x, token, &p[d]);
			page[d] = table[token / SKV_PAGE_TOKENS];
			if (++ahead_x == heads) {
				ahead_x = 0;
				ahead += step;
			}
		}
#pragma unroll
		for (int d = 0; d < deep; d++) {
			if (i + d >= n)
				break;
#pragma unroll
			for (uint32_t t = 0; t < tokens && x == 0; t++)
				weight[t] = none;
			reduce_piece<COLS, sum>(&p[d], &room->stats.lse[x * COLS], weight);
			if (++x < heads)
				continue;
			if (at < share->n)
				put_keys<COLS, sum>(share, counts, at, skv_pte_resident(page[d]), weight, offset, &room->select);
			x = 0;
			at += step;
		}
	}
}

/* ---- scores of what is selected ------------------------------------------------------------------ */

/* Loads a token's scores for head tile x. */
template <int COLS> DEVICE void read_row(const struct scores_at *at, uint32_t x, uint32_t token, uint32_t word[COLS / 2])
{
	const __half *from = at->score + ((size_t)x * at->tokens + token) * COLS;

	if constexpr (COLS == 8) {
		const uint4 all = __ldcg((const uint4 *)from);
		word[0] = all.x;
		word[1] = all.y;
		word[2] = all.z;
		word[3] = all.w;
	} else if constexpr (COLS == 4) {
		const uint2 all = __ldcg((const uint2 *)from);
		word[0] = all.x;
		word[1] = all.y;
	} else {
#pragma unroll
		for (int w = 0; w < COLS / 2; w++)
			word[w] = __ldcg((const uint32_t *)from + w);
	}
}

/*
 * Copies the scores of the tokens whose ids the block has written, as differences from the heads' maxima: to[index
 * among these ids][head tile][column].
 */
template <int COLS>
__device__ static void copy_scores(const struct scores_at *from, const struct softmax_stats *stats, const uint32_t *ids, uint32_t n_ids,
                                   uint32_t *to)
{
	constexpr int deep = 4;
	const uint32_t heads = from->heads, n = n_ids * heads;

	for (uint32_t at = threadIdx.x; at < n; at += deep * THREADS) {
		uint32_t word[deep][COLS / 2];
		float2 top[deep][COLS / 2];
#pragma unroll
		for (int d = 0; d < deep; d++) {
			const uint32_t e = min(at + d * THREADS, n - 1), token = ids[e / heads];
			read_row<COLS>(from, e % heads, token, word[d]);
			read_top<COLS>(from, e % heads, token, top[d]);
		}
#pragma unroll
		for (int d = 0; d < deep; d++) {
			const uint32_t e = at + d * THREADS;
			if (e >= n)
				break;
#pragma unroll
			for (int w = 0; w < COLS / 2; w++) {
				const float *max = &stats->max[e % heads * COLS + 2 * w];
				const float2 x = score_pair(word[d][w], top[d][w]);
				const __half2 below = __floats2half2_rn(x.x - max[0], x.y - max[1]);
				to[(size_t)e * (COLS / 2) + w] = *(const uint32_t *)&below;
			}
		}
	}
}
#endif

/* ---- the kernel ---------------------------------------------------------------------------------- */

/* Selects the tokens of a list by stored scores. The grid is one cluster of blocks for each list of the launch. */
template <int COLS, bool sum>
__global__ void __launch_bounds__(THREADS) topk_scores_kernel(const __grid_constant__ struct topk_scores_params t)
{
#if __CUDA_ARCH__ >= 900
	SHARED_MEMORY(uint8_t, memory, 128);
	struct topk_scores_room *room = (struct topk_scores_room *)memory;
	const struct decode_params *c = &t.d;
	const uint32_t entry = blockIdx.x / cg::this_cluster().num_blocks(), request = c->first_request + entry;
	const struct skv_kseq *s = &c->seq[request / c->list.rows];
	const struct skv_topk_counts counts = skv_topk_counts_of(&c->select, s->len);
	const struct key_share share = share_of(&t, request, s->len, (uint16_t *)(room + 1));
	const struct scores_at scores = scores_of<COLS>(c, entry);
	uint32_t *const ids = c->list.ids + (size_t)request * c->list.stride;

	clear_counts(&room->select);
	await_previous();
	let_next_begin();
	make_stats<COLS>(c, request, &room->stats);
	__syncthreads();
	make_keys<COLS, sum>(&scores, &share, &counts, s->table + (size_t)c->layer * s->layer_stride, room);
	const struct kth k = find_key(&share, &room->select, counts.want);
	/*
	 * This block no longer reads other blocks' shared memory. But its own must stay until the other blocks are
	 * done, too.
	 */
	asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
	const struct id_range own = write_ids(&share, &room->select, &k, ids, &c->list.count[request]);
	__syncthreads(); /* all ids of the block are written */
	const size_t at = ((size_t)request * c->tokens + own.first) * c->request_head_tiles * (COLS / 2);
	copy_scores<COLS>(&scores, &room->stats, ids + own.first, own.n, (uint32_t *)c->topk_scores + at);
	asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

/* ---- launches ---------------------------------------------------------------------------------- */

typedef void topk_fn(struct topk_scores_params);

static uint32_t clusters_that_fit[SKV_BACKEND_MAX_DEVICES][MAX_CLUSTER + 1];

static topk_fn *kernel_of(uint32_t cols, bool sum)
{
	switch (cols) {
	case 2: return sum ? topk_scores_kernel<2, true> : topk_scores_kernel<2, false>;
	case 4: return sum ? topk_scores_kernel<4, true> : topk_scores_kernel<4, false>;
	case 6: return sum ? topk_scores_kernel<6, true> : topk_scores_kernel<6, false>;
	default: return sum ? topk_scores_kernel<8, true> : topk_scores_kernel<8, false>;
	}
}

#define PAGE_KEYS (SKV_PAGE_TOKENS * (uint32_t)sizeof(uint16_t)) /* bytes of a page's keys */
/* Estimate of a block's fixed time, as the number of scores that take as long. */
#define FIXED_SCORES 160000u

/*
 * Returns the number of blocks for each list of at most `pages` pages with `page_scores` scores each. Keys are in
 * shared memory or, with `in_memory`, in global memory; 0: there is no room for them.
 */
static uint32_t topk_blocks(uint32_t lists, uint32_t pages, uint32_t page_scores, bool in_memory)
{
	const uint32_t most = in_memory ? SHARE_TOKENS / SKV_PAGE_TOKENS
	                                : (skv_cuda_max_shared_memory() - (uint32_t)sizeof(struct topk_scores_room)) / PAGE_KEYS;
	int device = 0;

	cudaGetDevice(&device);
	return blocks_of_list(clusters_that_fit[device], lists, pages, most, FIXED_SCORES / page_scores);
}

bool skv_cuda_selects_by_scores(uint32_t max_len)
{
	return skv_cuda_overlaps() && topk_blocks(1, skv_pages_of(max_len), 1, true) > 0;
}

void skv_cuda_topk_by_scores(const struct decode_params *c, uint32_t max_len, cudaStream_t stream)
{
	const uint32_t pages = skv_pages_of(max_len), page_scores = SKV_PAGE_TOKENS * c->request_head_tiles * c->cols;
	struct topk_scores_params t = {*c, false};
	uint32_t blocks = topk_blocks(c->n_requests, pages, page_scores, false);

	if (!blocks) {
		t.in_memory = true;
		blocks = topk_blocks(c->n_requests, pages, page_scores, true);
	}
	const size_t keys = t.in_memory ? 0 : ceil_div(pages, blocks) * PAGE_KEYS;
	launch_overlapped(kernel_of(c->cols, c->ev.sum), t, blocks * c->n_requests, THREADS, sizeof(struct topk_scores_room) + keys,
	                  blocks, stream);
}

/* Called once for each device that has overlapping launches and clusters. */
cudaError_t skv_cuda_topk_scores_init(unsigned device, uint32_t room)
{
	cudaError_t e = cudaSuccess;

	for (uint32_t cols = 2; cols <= HEAD_TILE; cols += 2)
		for (uint32_t sum = 0; sum < 2; sum++)
			e = e ? e : allow_clusters(kernel_of(cols, sum), room);
	for (uint32_t blocks = 1; blocks <= MAX_CLUSTER; blocks++)
		clusters_that_fit[device][blocks] = clusters_of(kernel_of(HEAD_TILE, true), blocks, room);
	return e;
}
