/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/decode/tile.cuh - attention of one warp to a tile of 16 tokens: loads, products and online softmax. See
 * decode.cuh.
 */
#ifndef SKV_CUDA_DECODE_TILE_CUH
#define SKV_CUDA_DECODE_TILE_CUH

#include "kernels/cuda/decode/score-ring.cuh"
#include "kernels/cuda/runtime/fp8.cuh"

/*
 * Factor by which the accumulated output is too large. With this factor, softmax weights times V's fp8 scales are in
 * about the range in which fp16 has the values of V.
 */
template <class T> static constexpr float output_unit = is_fp8<T> ? 256 : 1;

DEVICE void clear_piece(uint4 *x)
{
	*x = make_uint4(0, 0, 0, 0);
}
DEVICE void clear_piece(uint2 *x)
{
	*x = make_uint2(0, 0);
}
DEVICE void clear_piece(uint32_t *x)
{
	*x = 0;
}

/* Queries of a head tile, as the columns of a product, and the accumulated results for these queries. */
template <int D> struct columns {
	static constexpr int ACC = D / 16;
	uint4 q[D / 32];
	float acc[ACC][4];
	float max[2], sum[2];
};

/* K or V of a tile, in the pieces that a lane loads at a time (see decode.cuh for the lanes' layout). */
template <class T, int D> struct half_tile {
	static constexpr int WIDE = D / 64, REST = D % 64 / 32; /* V's dimensions: blocks of 64, then of 32 */
	typedef typename pieces<T>::eight eight;
	typedef typename pieces<T>::four four;
	eight piece[D / 16];
	four piece_of_rest[REST ? 4 : 1];

	__device__ __forceinline__ eight &k(int b, int half) { return piece[2 * b + half]; }
	__device__ __forceinline__ eight &v(int b, int t) { return piece[4 * b + t]; }
	__device__ __forceinline__ four &rest(int t) { return piece_of_rest[t]; }
};

/* The state of one warp in passes that write scores: its head tile, and the tile of tokens that is in flight. */
template <class T, int D> struct warp_state : columns<D> {
	struct half_tile<T, D> k, v;
	uint32_t scale; /* fp8 scales of the tile, from load_scales() */
	uint64_t once; /* L2 cache policy of K and V */
};

/* The page of token `t` of tile `k`, and the index in this page of the token's K row of kv head h. */
struct located_row {
	const uint8_t *page;
	uint32_t row;
};

template <bool rows>
DEVICE struct located_row locate_row(const struct decode_params *c, const struct work_item *j, const struct tile_batch *ts,
                                     uint32_t page, uint32_t k, uint32_t t)
{
	if (!rows)
		return {c->pool + page * c->page_bytes, j->h * SKV_PAGE_TOKENS + t};
	const uint32_t slot = ts->slots[k * 16 + t];
	return {c->pool + slot / SKV_PAGE_TOKENS * c->page_bytes, j->h * SKV_PAGE_TOKENS + slot % SKV_PAGE_TOKENS};
}

/* Returns the address of the K row of token `t` of tile `k`. */
template <class T, int D, bool rows>
DEVICE const uint8_t *row_address(const struct decode_params *c, const struct work_item *j, const struct tile_batch *ts,
                                  uint32_t page, uint32_t k, uint32_t t)
{
	const struct located_row at = locate_row<rows>(c, j, ts, page, k, t);
	return at.page + at.row * (D * element_bytes<T>);
}

/*
 * Returns the token whose row is read for token `t`. For a masked token some row must be read, though its values are
 * not used: the row of another token of the tile.
 */
template <bool rows> DEVICE uint32_t usable_token(uint32_t mask, uint32_t t)
{
	return !rows || mask >> t & 1 ? t : __ffs(mask) - 1;
}

template <bool rows, class T, int D>
__device__ static void load_k(struct half_tile<T, D> *to, const struct decode_params *c, const struct work_item *j,
                              const struct tile_batch *ts, uint32_t k, uint64_t once)
{
	const uint32_t g = threadIdx.x % 32 / 4, at = threadIdx.x % 4 * 8 * element_bytes<T>;
	const uint32_t mask = __shfl_sync(~0u, ts->mask, k), page = rows ? 0 : __shfl_sync(~0u, ts->page, k);
	if (!mask)
		return;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		const uint8_t *row = row_address<T, D, rows>(c, j, ts, page, k,
		                                             usable_token<rows>(mask, g + 8 * half)) + at;
#pragma unroll
		for (int b = 0; b < D / 32; b++)
			load_piece(&to->k(b, half), row + b * 32 * element_bytes<T>, once);
	}
}

/*
 * Loads the scales of an fp8 tile: lane i has the scale of token i's K row, lane 16 + i that of its V row. A masked
 * token gets 0: its stored scale may stand for infinity, and its weight must be 0.
 */
template <class T, int D, bool rows>
DEVICE uint32_t load_scales(const struct decode_params *c, const struct work_item *j, const struct tile_batch *ts, uint32_t k)
{
	uint32_t scale = 0;
	if constexpr (is_fp8<T>) {
		/* all: number of K rows of a page */
		const uint32_t lane = threadIdx.x % 32, all = c->n_kv_heads * SKV_PAGE_TOKENS;
		const uint32_t mask = __shfl_sync(~0u, ts->mask, k), page = rows ? 0 : __shfl_sync(~0u, ts->page, k);
		if (mask >> lane % 16 & 1) {
			const struct located_row at = locate_row<rows>(c, j, ts, page, k, lane % 16);
			scale = at.page[(size_t)2 * all * D + lane / 16 * all + at.row];
		}
	}
	return scale;
}

/* Converts the scales of tokens g and g + 8 to factors: those of K, or those of V times output_unit. */
template <class T> DEVICE void take_units(uint32_t scale, bool v, float unit[2])
{
	const uint32_t g = threadIdx.x % 32 / 4 + 16 * v;
#pragma unroll
	for (int half = 0; half < 2; half++)
		unit[half] = is_fp8<T> ? fp8_unit(__shfl_sync(~0u, scale, g + 8 * half)) * (v ? output_unit<T> : 1) : 1;
}

template <bool rows, class T, int D>
__device__ static void load_v(struct half_tile<T, D> *to, const struct decode_params *c, const struct work_item *j,
                              const struct tile_batch *ts, uint32_t k, uint64_t once)
{
	const uint32_t g = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
	const uint32_t mask = __shfl_sync(~0u, ts->mask, k), page = rows ? 0 : __shfl_sync(~0u, ts->page, k);
	if (!mask)
		return;
#pragma unroll
	for (int t = 0; t < 4; t++) {
		const uint32_t token = pair + t % 2 + t / 2 * 8;
		const uint8_t *row = row_address<T, D, rows>(c, j, ts, page, k, usable_token<rows>(mask, token)) +
		                     c->n_kv_heads * SKV_PAGE_TOKENS * (D * element_bytes<T>);
#pragma unroll
		for (int b = 0; b < to->WIDE; b++)
			load_piece(&to->v(b, t), row + (b * 64 + g * 8) * element_bytes<T>, once);
		if (to->REST)
			load_piece(&to->rest(t), row + (to->WIDE * 64 + g * 4) * element_bytes<T>, once);
	}
}

/*
 * Loads the scores of tokens g and g + 8 of a list's tile, for the same heads as scores(). They were stored when the
 * list was selected.
 */
DEVICE void load_topk_scores(__half2 to[2], const struct decode_params *c, const struct work_item *j, uint32_t tile)
{
	const uint32_t g = threadIdx.x % 32 / 4, col = min(threadIdx.x % 4 * 2, c->cols - 2);
	const uint32_t heads = c->request_head_tiles, x = j->x % heads;
	const __half *list = c->topk_scores + (size_t)j->request * c->tokens * heads * c->cols;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		const uint32_t at = tile * 16 + g + 8 * half;
		to[half] = *(const __half2 *)&list[(at * heads + x) * c->cols + col];
	}
}

/*
 * Loads of K and V for quantized KV (decode-quant.cuh): the quantized numbers of a tile are loaded into the registers
 * of its rows, and are dequantized in place before use.
 */
template <class T, int D>
__device__ static void quant_load_k(struct half_tile<T, D> *to, const struct decode_params *c, const struct work_item *j,
                                    const struct tile_batch *ts, uint32_t k, uint64_t once);
template <class T, int D>
__device__ static void quant_load_v(struct half_tile<T, D> *to, const struct decode_params *c, const struct work_item *j,
                                    const struct tile_batch *ts, uint32_t k, uint64_t once);
template <class T, int D>
__device__ static void dequantize_k(struct half_tile<T, D> *of, const struct decode_params *c, const struct tile_batch *ts, uint32_t k);
template <class T, int D>
__device__ static void dequantize_v(struct half_tile<T, D> *of, const struct decode_params *c, const struct tile_batch *ts, uint32_t k);

template <enum decode_mode mode, class T, int D>
__device__ static void load_keys(struct half_tile<T, D> *to, const struct decode_params *c, const struct work_item *j,
                                 const struct tile_batch *ts, uint32_t k, uint64_t once)
{
	if constexpr (quantized<mode>)
		quant_load_k(to, c, j, ts, k, once);
	else
		load_k<(mode >= MODE_TOKENS)>(to, c, j, ts, k, once);
}

template <enum decode_mode mode, class T, int D>
__device__ static void load_values(struct half_tile<T, D> *to, const struct decode_params *c, const struct work_item *j,
                                   const struct tile_batch *ts, uint32_t k, uint64_t once)
{
	if constexpr (quantized<mode>)
		quant_load_v(to, c, j, ts, k, once);
	else
		load_v<(mode >= MODE_TOKENS)>(to, c, j, ts, k, once);
}

/* Clears V of masked tokens: their rows may contain anything, and a weight of 0 times infinity or NaN would be NaN. */
template <class T, int D> __device__ static void clear_v(struct half_tile<T, D> *of, uint32_t mask)
{
	const uint32_t pair = threadIdx.x % 4 * 2;
#pragma unroll
	for (int t = 0; t < 4; t++) {
		if (mask >> (pair + t % 2 + t / 2 * 8) & 1)
			continue;
#pragma unroll
		for (int b = 0; b < of->WIDE; b++)
			clear_piece(&of->v(b, t));
		if (of->REST)
			clear_piece(&of->rest(t));
	}
}

/*
 * Computes the products K Qᵀ of a tile, not scaled. s[0] and s[1] are those of token g with heads 2 c and 2 c + 1, s[2]
 * and s[3] those of token g + 8.
 */
template <class T, int D> __device__ static void scores(struct half_tile<T, D> *k, const struct columns<D> *of, float s[4])
{
	float more[4] = {0, 0, 0, 0};
	s[0] = s[1] = s[2] = s[3] = 0;
#pragma unroll
	for (int b = 0; b < D / 32; b++) {
		const uint4 lo = widen(k->k(b, 0)), hi = widen(k->k(b, 1)), q = of->q[b];
		T::mma(s, lo.x, hi.x, lo.y, hi.y, q.x, q.y);
		T::mma(more, lo.z, hi.z, lo.w, hi.w, q.z, q.w);
	}
#pragma unroll
	for (int x = 0; x < 4; x++)
		s[x] += more[x];
}

/* Adds the tile's weights to the sums. Sets p to the weights times V's scales, as columns of a product. */
template <class T, int D>
DEVICE void add_weights(struct columns<D> *w, const float weight[4], const float unit[2], uint32_t p[2])
{
	w->sum[0] += weight[0] + weight[2];
	w->sum[1] += weight[1] + weight[3];
#pragma unroll
	for (int half = 0; half < 2; half++)
		p[half] = is_fp8<T> ? transpose8x8(T::pair(weight[2 * half] * unit[half], weight[2 * half + 1] * unit[half]))
		                    : transpose8x8(T::pair(weight[2 * half], weight[2 * half + 1]));
}

/*
 * Performs one step of the online softmax, for a tile with scores s: updates the running maximum, sum and output, and
 * sets p to the tile's weights as columns of a product.
 */
template <class T, int D>
__device__ static void softmax_step(struct columns<D> *w, const float s[4], const float unit[2], uint32_t p[2])
{
	float top[2], weight[4];
#pragma unroll
	for (int x = 0; x < 2; x++) {
		top[x] = fmaxf(s[x], s[x + 2]);
#pragma unroll
		for (int lane = 4; lane < 32; lane *= 2)
			top[x] = fmaxf(top[x], __shfl_xor_sync(~0u, top[x], lane));
		top[x] = fmaxf(top[x], w->max[x]);
	}
	if (__any_sync(~0u, top[0] > w->max[0] || top[1] > w->max[1])) {
		const float fix[2] = {top[0] > w->max[0] ? exp2_fast(w->max[0] - top[0]) : 1,
		                      top[1] > w->max[1] ? exp2_fast(w->max[1] - top[1]) : 1};
#pragma unroll
		for (int a = 0; a < w->ACC; a++)
#pragma unroll
			for (int x = 0; x < 4; x++)
				w->acc[a][x] *= fix[x % 2];
#pragma unroll
		for (int x = 0; x < 2; x++) {
			w->sum[x] *= fix[x];
			w->max[x] = top[x];
		}
	}
#pragma unroll
	for (int x = 0; x < 4; x++) /* no token so far: 0, as inf - inf is NaN */
		weight[x] = s[x] == -INFINITY ? 0 : exp2_fast(s[x] - w->max[x % 2]);
	add_weights<T>(w, weight, unit, p);
}

/*
 * Adds a product Vᵀ Pᵀ. Its operands are the low halves of words a and b, their high halves, and likewise of c and d.
 */
template <class T>
__device__ static void add_pair(float acc[4], uint32_t a, uint32_t b, uint32_t c, uint32_t d,
                                const uint32_t p[2])
{
	T::mma(acc, __byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632), __byte_perm(c, d, 0x5410),
	       __byte_perm(c, d, 0x7632), p[0], p[1]);
}

/*
 * Adds two products Vᵀ Pᵀ with fp8 V, from words of four rows with four dimensions each. Interleaved bytes of two rows
 * make a pair of fp16 numbers for each dimension.
 */
template <class T>
__device__ static void add_fp8_pairs(float first[4], float second[4], uint32_t a, uint32_t b, uint32_t c, uint32_t d, const uint32_t p[2])
{
	const uint32_t ab = __byte_perm(a, b, 0x5140), cd = __byte_perm(c, d, 0x5140);
	const uint32_t more_ab = __byte_perm(a, b, 0x7362), more_cd = __byte_perm(c, d, 0x7362);
	T::mma(first, fp8_lower(ab), fp8_upper(ab), fp8_lower(cd), fp8_upper(cd), p[0], p[1]);
	T::mma(second, fp8_lower(more_ab), fp8_upper(more_ab), fp8_lower(more_cd), fp8_upper(more_cd), p[0], p[1]);
}

template <int D> __device__ static void add_values(struct half_tile<FP8, D> *of, struct columns<D> *to, const uint32_t p[2])
{
#pragma unroll
	for (int b = 0; b < of->WIDE; b++) {
		const uint2 *v = &of->v(b, 0);
		add_fp8_pairs<FP8>(to->acc[4 * b], to->acc[4 * b + 1], v[0].x, v[1].x, v[2].x, v[3].x, p);
		add_fp8_pairs<FP8>(to->acc[4 * b + 2], to->acc[4 * b + 3], v[0].y, v[1].y, v[2].y, v[3].y, p);
	}
	if (of->REST) {
		const uint32_t *v = &of->rest(0);
		add_fp8_pairs<FP8>(to->acc[4 * of->WIDE], to->acc[4 * of->WIDE + 1], v[0], v[1], v[2], v[3], p);
	}
}

/*
 * Adds Vᵀ Pᵀ of a tile to the output. acc[4 b + a][x] is dimension 64 b + 8 g + 2 a (plus 1 if x is 2 or 3) of head 2 c
 * + x % 2.
 */
template <class T, int D> __device__ static void add_values(struct half_tile<T, D> *of, struct columns<D> *to, const uint32_t p[2])
{
#pragma unroll
	for (int b = 0; b < of->WIDE; b++) {
		const uint4 *v = &of->v(b, 0);
		add_pair<T>(to->acc[4 * b], v[0].x, v[1].x, v[2].x, v[3].x, p);
		add_pair<T>(to->acc[4 * b + 1], v[0].y, v[1].y, v[2].y, v[3].y, p);
		add_pair<T>(to->acc[4 * b + 2], v[0].z, v[1].z, v[2].z, v[3].z, p);
		add_pair<T>(to->acc[4 * b + 3], v[0].w, v[1].w, v[2].w, v[3].w, p);
	}
	if (of->REST) {
		const uint2 *v = &of->rest(0);
		add_pair<T>(to->acc[4 * of->WIDE], v[0].x, v[1].x, v[2].x, v[3].x, p);
		add_pair<T>(to->acc[4 * of->WIDE + 1], v[0].y, v[1].y, v[2].y, v[3].y, p);
	}
}

/*
 * Calls take(index of the first element, four elements) for all elements that this lane has of the output row of head 2
 * c + x.
 */
template <class T, int D, class Take> DEVICE void each_four(const struct columns<D> *w, int x, Take take)
{
	constexpr int wide = half_tile<T, D>::WIDE, rest = half_tile<T, D>::REST;
	const uint32_t g = threadIdx.x % 32 / 4;
#pragma unroll
	for (int a = 0; a < 4 * wide + 2 * rest; a += 2)
		take(a < 4 * wide ? 64 * (a / 4) + 8 * g + 2 * (a % 4) : 64 * wide + 4 * g,
		     make_float4(w->acc[a][x] / output_unit<T>, w->acc[a][x + 2] / output_unit<T>, w->acc[a + 1][x] / output_unit<T>,
		                 w->acc[a + 1][x + 2] / output_unit<T>));
}

/* Loads the queries of n columns of the item's head tile, beginning with column `first`. */
template <class T, int D>
__device__ static void load_q(struct columns<D> *w, const struct decode_params *c, const struct work_item *j, uint32_t first, uint32_t n)
{
	const uint32_t column = first + min(threadIdx.x % 32 / 4, n - 1), at = threadIdx.x % 4 * 8;
	const size_t row = (size_t)io_row(c, j, column) * c->q_stride + head_of(c, j, column) * D + at;
	struct vec8 e[D / 32];
#pragma unroll
	for (int b = 0; b < D / 32; b++)
		e[b] = io_read8(c->io_dtype, c->q, row + b * 32);
#pragma unroll
	/* Columns past the last head are copies of its query; their results are not used. */
	for (int b = 0; b < D / 32; b++) {
		uint32_t word[4];
#pragma unroll
		for (int k = 0; k < 4; k++) {
			const float2 two = io_pair(c->io_dtype, &e[b], k);
			word[k] = T::pair(two.x, two.y);
		}
		w->q[b] = make_uint4(word[0], word[1], word[2], word[3]);
	}
}

/* Multiplies products q·k by K's fp8 scales and applies the softcap, before the products are scaled. */
template <class T> DEVICE void cap_products(const struct decode_params *c, const float unit[2], float s[4])
{
	if constexpr (is_fp8<T>)
#pragma unroll
		for (int x = 0; x < 4; x++)
			s[x] *= unit[x / 2];
	if (c->scale.cap != 0)
#pragma unroll
		for (int x = 0; x < 4; x++)
			s[x] = soft_cap(c->scale.cap, s[x]);
}

/* Scales a tile's products q·k; the scores of tokens that do not count become -infinity. */
DEVICE void scale_scores(const struct decode_params *c, uint32_t mask, float s[4])
{
	const uint32_t g = threadIdx.x % 32 / 4;
#pragma unroll
	for (int x = 0; x < 4; x++)
		s[x] = mask >> (g + x / 2 * 8) & 1 ? s[x] * c->scale.scale : -INFINITY;
}

template <int D> DEVICE void clear_acc(struct columns<D> *w)
{
#pragma unroll
	for (int a = 0; a < w->ACC; a++)
#pragma unroll
		for (int x = 0; x < 4; x++)
			w->acc[a][x] = 0;
}

/* Initializes the accumulated results, for a sum over no tokens. */
template <int D> DEVICE void begin_sum(struct columns<D> *w)
{
	clear_acc(w);
	w->max[0] = w->max[1] = -INFINITY;
	w->sum[0] = w->sum[1] = 0;
}

/* Adds up the sums of weights over lanes; each lane had the sum over its own tokens. */
template <int D> DEVICE void total_sums(struct columns<D> *w)
{
#pragma unroll
	for (int x = 0; x < 2; x++)
#pragma unroll
		for (int lane = 4; lane < 32; lane *= 2)
			w->sum[x] += __shfl_xor_sync(~0u, w->sum[x], lane);
}

/* ---- where scores are written ------------------------------------------------------------------- */

/* Begins to load the first tile of a batch, if the batch has any. */
template <enum decode_mode mode, class T, int D>
__device__ static void load_first_tile(struct warp_state<T, D> *w, const struct decode_params *c, const struct work_item *j,
                                       const struct tile_batch *ts)
{
	if (ts->n == 0)
		return;
	w->scale = load_scales<T, D, false>(c, j, ts, 0);
	load_keys<mode>(&w->k, c, j, ts, 0, w->once);
	load_values<mode>(&w->v, c, j, ts, 0, w->once);
}

/*
 * Attends to tile k of a batch, which is loaded or in flight, and loads the batch's next tile. `number` is the tile's
 * index in the request.
 */
template <enum decode_mode mode, class T, int D>
__device__ static void attend_tile(struct warp_state<T, D> *w, const struct decode_params *c, const struct work_item *j,
                                   const struct tile_batch *ts, uint32_t number, uint32_t k)
{
	const uint32_t mask = __shfl_sync(~0u, ts->mask, k);
	float s[4], k_unit[2], v_unit[2];
	uint32_t p[2];
	if constexpr (quantized<mode>)
		dequantize_k(&w->k, c, ts, k);
	take_units<T>(w->scale, false, k_unit);
	take_units<T>(w->scale, true, v_unit);
	scores(&w->k, w, s);
	if (k + 1 < ts->n) {
		w->scale = load_scales<T, D, false>(c, j, ts, k + 1);
		load_keys<mode>(&w->k, c, j, ts, k + 1, w->once);
	}
	cap_products<T>(c, k_unit, s);
	scale_scores(c, mask, s);
	softmax_step<T>(w, s, v_unit, p);
	if (mask)
		store_scores(c, j, number, s, w->max);
	if constexpr (quantized<mode>)
		dequantize_v(&w->v, c, ts, k);
	if (mask != 0xffff)
		clear_v(&w->v, mask);
	add_values(&w->v, w, p);
	if (k + 1 < ts->n)
		load_values<mode>(&w->v, c, j, ts, k + 1, w->once);
}

/* Attends to a warp's part of a work item whose scores go to the ring. The first tile and q are loaded or in flight. */
template <enum decode_mode mode, class T, int D>
__device__ static void attend_item(struct warp_state<T, D> *w, const struct decode_params *c,
                                   const struct work_item *j, struct tile_batch *ts)
{
	begin_sum(w);
	ring_await_generation(c, j->entry, j->generation);
	for (uint32_t first = 0;;) {
		for (uint32_t k = 0; k < ts->n; k++)
			attend_tile<mode>(w, c, j, ts, stream_tile<D, mode>(j, first + k), k);
		first += BATCH;
		if (first >= stream_tiles<D, mode>(j))
			return;
		locate_tiles<D, mode>(c, j, first, ts);
		load_first_tile<mode>(w, c, j, ts);
	}
}

#endif
