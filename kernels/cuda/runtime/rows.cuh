/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/runtime/rows.cuh - scores of many query rows on the tensor cores: 64 rows per block, 16 per warp.
 *
 * All rows of a block belong to one kv head: a row here is a pair of a query row of the call and a q head of the GQA
 * group, so that short calls fill a block, too. K (and V) pass through shared memory in tiles of 64 tokens, which begin
 * at multiples of 64 tokens. So a row's result does not depend on other rows or on how a prompt is chunked.
 *
 * A token's row in a tile is stored as 16-byte pieces. Piece p of token t is at p ^ (t % 8), so that the eight tokens'
 * pieces that one ldmatrix reads lie in different banks.
 */
#ifndef SKV_CUDA_ROWS_CUH
#define SKV_CUDA_ROWS_CUH

#include "kernels/cuda/runtime/fp8.cuh"
#include "kernels/cuda/runtime/cuda.h"
#include "kernels/cuda/runtime/async-copy.cuh"
#include "kernels/cuda/runtime/softmax.cuh"

#define WARPS 4
#define THREADS (32 * WARPS)
#define ROWS (16 * WARPS)
#define TILE 64u
#define TILE_PAGES (TILE / SKV_PAGE_TOKENS)

struct rows_params {
	const struct skv_kseq *seq;
	const uint8_t *pool;
	size_t page_bytes;
	const void *q;
	uint32_t q_stride; /* elements from one row of q to the next */
	struct score_scale scale;
	uint32_t n_heads, n_kv_heads, group, layer, io_dtype;
};

static inline struct rows_params rows_params_of(const struct skv_shape *sh, const struct skv_batch *b, const void *q)
{
	struct rows_params c = {};

	c.seq = b->seq;
	c.pool = sh->pool;
	c.page_bytes = sh->page_bytes;
	c.q = q;
	c.q_stride = skv_q_stride(sh);
	c.scale = score_scale_of(sh);
	c.n_heads = sh->n_heads;
	c.n_kv_heads = sh->n_kv_heads;
	c.group = sh->n_heads / sh->n_kv_heads;
	c.layer = sh->layer;
	c.io_dtype = sh->io_dtype;
	return c;
}

/* The rows that a block processes. */
struct rows_item {
	const struct skv_kseq *s;
	const skv_pte *table;
	uint32_t h, first; /* index of the kv head; index of the block's first (row, head) pair */
	uint32_t skip;     /* query rows of the sequence before its first (row, head) pair */
	uint32_t end;      /* number of tokens that the block's last row attends to */
};

/* Bytes of a token's row in a tile: a power of two, as the swizzle requires. */
template <int D> constexpr uint32_t pitch = D == 96 ? 256 : D * 2;

/* Byte offset of piece p of token t in a tile. */
template <int D> DEVICE uint32_t piece_at(uint32_t t, uint32_t p)
{
	return t * pitch<D> + (p ^ t % 8) * 16;
}

/*
 * Loads piece p of a row of a page into shared memory. `row` is the row's index among the page's `rows` rows, of which
 * the first half are K. fp8 rows are converted to fp16, so they are not copied asynchronously.
 */
template <class T, int D>
DEVICE void load_row_piece(uint32_t to, const uint8_t *page, uint32_t row, uint32_t rows, uint32_t p, bool resident)
{
	const uint8_t *from = page + (size_t)row * (D * element_bytes<T>) + p * 8 * element_bytes<T>;
	if constexpr (is_fp8<T>)
		store_shared16(to, resident ? fp8_values(from, page[(size_t)rows * D + row]) : make_uint4(0, 0, 0, 0));
	else
		cp_async16(to, from, resident);
}

/* Loads the K rows of a tile's 64 tokens into shared memory. */
template <class T, int D>
__device__ static void load_tile(const struct rows_params *c, const struct rows_item *j, uint32_t tile, uint32_t k_at)
{
	constexpr uint32_t pieces = D / 8;
	for (uint32_t e = threadIdx.x; e < TILE * pieces; e += THREADS) {
		const uint32_t t = e / pieces, p = e % pieces, token = tile * TILE + t;
		const skv_pte entry = token < j->end ? j->table[token / SKV_PAGE_TOKENS] : 0;
		const bool resident = skv_pte_resident(entry);
		const uint8_t *page = c->pool + (resident ? skv_pte_id(entry) * c->page_bytes : 0);
		load_row_piece<T, D>(k_at + piece_at<D>(t, p), page, j->h * SKV_PAGE_TOKENS + token % SKV_PAGE_TOKENS,
		                     2 * c->n_kv_heads * SKV_PAGE_TOKENS, p, resident);
	}
}

/*
 * State of a warp's 16 rows: (row, head) pairs, of which the block's first is j->first. Lane 4 g + c has parts of rows
 * g and g + 8.
 */
template <class T, int D> struct rows {
	uint32_t q[D / 16][4];
	float acc[D / 8][4];
	float max[2], sum[2];
	uint32_t token[2]; /* position of the last token that the row attends to */
	uint32_t out[2];   /* index of the (row, head) pair in the call; 0xffffffff past the end */
};

template <class T, int D>
__device__ static void begin_rows(struct rows<T, D> *r, const struct rows_params *c, const struct rows_item *j)
{
	const uint32_t lane = threadIdx.x % 32, col = lane % 4 * 2;
#pragma unroll
	for (int x = 0; x < 2; x++) {
		const uint32_t pair = j->first + threadIdx.x / 32 * 16 + lane / 4 + 8 * x;
		const uint32_t row = j->skip + pair / c->group;
		const bool exists = row < j->s->n_q;
		const uint32_t in_call = j->s->row + row, head = j->h * c->group + pair % c->group;
		r->token[x] = j->s->len - j->s->n_q + min(row, j->s->n_q - 1);
		r->out[x] = exists ? in_call * c->n_heads + head : 0xffffffff;
		r->max[x] = -INFINITY;
		r->sum[x] = 0;
		const size_t from = (exists ? (size_t)in_call * c->q_stride + head * D : 0) + col;
#pragma unroll
		for (int k = 0; k < D / 16; k++)
#pragma unroll
			for (int half = 0; half < 2; half++) {
				const float2 e = io_load2(c->io_dtype, c->q, from + 16 * k + 8 * half);
				r->q[k][2 * half + x] = exists ? T::pair(e.x, e.y) : 0;
			}
	}
#pragma unroll
	for (int a = 0; a < D / 8; a++)
#pragma unroll
		for (int x = 0; x < 4; x++)
			r->acc[a][x] = 0;
}

/*
 * Computes the products q·k of 64 tokens: s[n][0, 1] are those of tokens 8 n + 2 c and 8 n + 2 c + 1 with row g,
 * s[n][2, 3] those with row g + 8. The lane is 4 g + c.
 */
template <class T, int D>
__device__ static void qk_scores(const struct rows<T, D> *r, uint32_t k_at, float s[TILE / 8][4])
{
	const uint32_t lane = threadIdx.x % 32, t = lane / 16 * 8 + lane % 8, p = lane / 8 % 2;
#pragma unroll
	for (int n = 0; n < (int)TILE / 16; n++) {
#pragma unroll
		for (int x = 0; x < 4; x++)
			s[2 * n][x] = s[2 * n + 1][x] = 0;
#pragma unroll
		for (int k = 0; k < D / 16; k++) {
			const uint4 b = ldmatrix_x4(k_at + piece_at<D>(16 * n + t, 2 * k + p));
			const uint32_t *q = r->q[k];
			T::mma(s[2 * n], q[0], q[1], q[2], q[3], b.x, b.y);
			T::mma(s[2 * n + 1], q[0], q[1], q[2], q[3], b.z, b.w);
		}
	}
}

/* Applies the softcap, if the model has one, to products q·k that are not yet scaled: see struct score_scale. */
DEVICE void cap_scores(struct score_scale by, float s[TILE / 8][4])
{
	if (by.cap == 0)
		return;
#pragma unroll
	for (int n = 0; n < (int)TILE / 8; n++)
#pragma unroll
		for (int x = 0; x < 4; x++)
			s[n][x] = soft_cap(by.cap, s[n][x]);
}

/*
 * Turns products q·k into scores: they are scaled, or become -infinity for tokens that a row does not attend to or
 * whose page is not resident. `resident` has a bit for each page of the tile.
 */
template <class T, int D>
__device__ static void mask(const struct rows<T, D> *r, const struct rows_params *c, uint32_t tile,
                            uint32_t resident, float s[TILE / 8][4])
{
	const uint32_t first = tile * TILE + threadIdx.x % 4 * 2;
	cap_scores(c->scale, s);
#pragma unroll
	for (int n = 0; n < (int)TILE / 8; n++)
#pragma unroll
		for (int x = 0; x < 4; x++) {
			const bool seen = first + 8 * n + x % 2 <= r->token[x / 2] && (resident >> n / 2 & 1);
			s[n][x] = seen ? s[n][x] * c->scale.scale : -INFINITY;
		}
}

/*
 * Performs an online softmax step for a tile: scores s become weights; the row's maximum, sum and output are updated.
 */
template <class T, int D> __device__ static void softmax_step(struct rows<T, D> *r, float s[TILE / 8][4])
{
#pragma unroll
	for (int x = 0; x < 2; x++) {
		float max = r->max[x], sum = 0;
#pragma unroll
		for (int n = 0; n < (int)TILE / 8; n++)
			max = fmaxf(max, fmaxf(s[n][2 * x], s[n][2 * x + 1]));
		max = fmaxf(max, __shfl_xor_sync(~0u, max, 1));
		max = fmaxf(max, __shfl_xor_sync(~0u, max, 2));
		const float base = max == -INFINITY ? 0 : max, fix = exp2_fast(r->max[x] - base);
#pragma unroll
		for (int n = 0; n < (int)TILE / 8; n++)
#pragma unroll
			for (int y = 2 * x; y < 2 * x + 2; y++) {
				s[n][y] = exp2_fast(s[n][y] - base);
				sum += s[n][y];
			}
		r->sum[x] = r->sum[x] * fix + sum;
		r->max[x] = max;
#pragma unroll
		for (int a = 0; a < D / 8; a++) {
			r->acc[a][2 * x] *= fix;
			r->acc[a][2 * x + 1] *= fix;
		}
	}
}

/* Returns a bit mask of the pages of a tile that are resident. */
__device__ static uint32_t pages_resident(const struct rows_item *j, uint32_t tile)
{
	uint32_t resident = 0;
#pragma unroll
	for (uint32_t p = 0; p < TILE_PAGES; p++) {
		const uint32_t page = tile * TILE_PAGES + p;
		if (page * SKV_PAGE_TOKENS < j->end && skv_pte_resident(j->table[page]))
			resident |= 1u << p;
	}
	return resident;
}

#endif
