/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/decode/leaf.cuh - a leaf of LEAF_TILES tiles, from memory to its sum: see decode.cuh.
 *
 * All scores of a leaf are computed first, then its softmax, then its output. So a leaf is read as K of its tiles, then
 * V of the same tiles. K or V of a tile is a half tile. Half tiles are loaded in this order into a ring of registers,
 * leaf after leaf of a run.
 */
#ifndef SKV_CUDA_DECODE_LEAF_CUH
#define SKV_CUDA_DECODE_LEAF_CUH

#include "kernels/cuda/decode/tile.cuh"

template <enum decode_mode mode> static constexpr bool reads_keys = mode != MODE_TOPK_VALUES;
template <enum decode_mode mode> static constexpr bool reads_values = mode != MODE_TOPK_KEYS;

/*
 * leaf_halves: number of half tiles of a leaf. halves: number of half tiles that a warp has in registers or in flight.
 * More of them were slower even if they are small: only six scoreboards tell loads in flight apart.
 */
template <enum decode_mode mode> static constexpr int leaf_halves = (reads_keys<mode> + reads_values<mode>) * (int)LEAF_TILES;
template <int D, enum decode_mode mode> static constexpr int halves = D == 256 || mode == MODE_QUANT ? 2 : 4;

template <class T, int D, enum decode_mode mode> struct leaf_state : columns<D> {
	struct half_tile<T, D> half[halves<D, mode>];
	uint32_t scale[LEAF_TILES];           /* for fp8: scales of the leaf's tiles, from load_scales() */
	__half2 topk_scores[LEAF_TILES][2]; /* scores stored by the selection, in modes that read no K */
	uint64_t once;                        /* L2 cache policy of K and V */
};

/* A leaf to read: tiles `first` to `first` + LEAF_TILES - 1 of a run, as far as they exist. */
struct leaf {
	const struct work_item *j;
	struct tile_batch tiles;
	uint32_t first;
};

/* Begins to load half tile `h` of a leaf, if the leaf has this half tile. `h` is a constant. */
template <enum decode_mode mode, class T, int D>
DEVICE void load_half(struct leaf_state<T, D, mode> *w, const struct decode_params *c, const struct leaf *l, int h)
{
	const int t = h % (int)LEAF_TILES;
	const bool key = reads_keys<mode> && h < (int)LEAF_TILES;
	const uint32_t k = l->first + t;
	const struct tile_batch *const ts = &l->tiles;
	struct half_tile<T, D> *const to = &w->half[h % halves<D, mode>];

	if (key)
		w->scale[t] = 0; /* if K is not loaded, registers have any values, but no weight */
	if (k >= ts->n)
		return;
	if (key)
		w->scale[t] = load_scales<T, D, (mode >= MODE_TOKENS)>(c, l->j, ts, k);
	if (key)
		load_keys<mode>(to, c, l->j, ts, k, w->once);
	else
		load_values<mode>(to, c, l->j, ts, k, w->once);
}

/* Loads the stored scores of a leaf, in modes that do not read K. */
template <enum decode_mode mode, class T, int D>
DEVICE void load_leaf_scores(struct leaf_state<T, D, mode> *w, const struct decode_params *c, const struct leaf *l)
{
#pragma unroll
	for (uint32_t t = 0; t < LEAF_TILES; t++) {
		const uint32_t k = l->first + t;
		w->scale[t] = 0;
		if (k >= l->tiles.n)
			continue;
		w->scale[t] = load_scales<T, D, (mode >= MODE_TOKENS)>(c, l->j, &l->tiles, k);
		load_topk_scores(w->topk_scores[t], c, l->j, stream_tile<D, mode>(l->j, k));
	}
}

/* Loads the first half tiles of a warp's first leaf. */
template <enum decode_mode mode, class T, int D>
__device__ static void load_first_halves(struct leaf_state<T, D, mode> *w, const struct decode_params *c, const struct leaf *l)
{
#pragma unroll
	for (int h = 0; h < halves<D, mode>; h++)
		load_half<mode>(w, c, l, h);
	if (!reads_keys<mode>)
		load_leaf_scores(w, c, l);
}

/* Begins to load half tile `h` of a leaf. Numbers of leaf_halves and above are half tiles of the next leaf. */
template <enum decode_mode mode, class T, int D>
DEVICE void load_ahead(struct leaf_state<T, D, mode> *w, const struct decode_params *c, const struct leaf *l, const struct leaf *next, int h)
{
	load_half<mode>(w, c, h < leaf_halves<mode> ? l : next, h % leaf_halves<mode>);
}

/*
 * Computes the softmax of a leaf, without regard to other leaves: scores s become weights p, as columns of a product.
 * If scores are stored as differences from the maximum, the leaf's maximum is 0.
 */
template <enum decode_mode mode, class T, int D>
DEVICE void softmax_of_leaf(struct columns<D> *w, const float s[LEAF_TILES][4], const float unit[LEAF_TILES][2], uint32_t p[LEAF_TILES][2])
{
#pragma unroll
	for (int x = 0; x < 2; x++) {
		float top = -INFINITY;
#pragma unroll
		for (uint32_t t = 0; t < LEAF_TILES; t++)
			top = fmaxf(top, fmaxf(s[t][x], s[t][x + 2]));
#pragma unroll
		for (int lane = 4; lane < 32; lane *= 2)
			top = fmaxf(top, __shfl_xor_sync(~0u, top, lane));
		w->max[x] = reads_keys<mode> ? top : 0;
		w->sum[x] = 0;
	}
#pragma unroll
	for (uint32_t t = 0; t < LEAF_TILES; t++) {
		float weight[4];
#pragma unroll
		for (int x = 0; x < 4; x++) /* no token: 0, as inf - inf is NaN */
			weight[x] = s[t][x] == -INFINITY ? 0 : exp2_fast(s[t][x] - w->max[x % 2]);
		add_weights<T>(w, weight, unit[t], p[t]);
	}
}

/*
 * Attends to a leaf whose first half tiles are loaded or in flight. Loads the leaf's other half tiles and the first
 * ones of the next leaf, which may belong to another run. So the amount of data in flight is always the same.
 */
template <enum decode_mode mode, class T, int D>
__device__ static void attend_leaf(struct leaf_state<T, D, mode> *w, const struct decode_params *c, const struct leaf *l, const struct leaf *next)
{
	constexpr int ahead = halves<D, mode>, values = reads_keys<mode> ? (int)LEAF_TILES : 0;
	float s[LEAF_TILES][4], unit[LEAF_TILES][2];
	uint32_t mask[LEAF_TILES], p[LEAF_TILES][2];

#pragma unroll
	for (int t = 0; t < (int)LEAF_TILES; t++) {
		mask[t] = __shfl_sync(~0u, l->tiles.mask, l->first + t);
		take_units<T>(w->scale[t], true, unit[t]);
		if constexpr (reads_keys<mode>) {
			struct half_tile<T, D> *const keys = &w->half[t % ahead];
			float k_unit[2];
			take_units<T>(w->scale[t], false, k_unit);
			if constexpr (quantized<mode>)
				dequantize_k(keys, c, &l->tiles, l->first + t);
			scores(keys, w, s[t]);
			load_ahead<mode>(w, c, l, next, t + ahead);
			cap_products<T>(c, k_unit, s[t]);
			scale_scores(c, mask[t], s[t]);
		} else {
#pragma unroll
			for (int x = 0; x < 4; x++) {
				const __half2 pair = w->topk_scores[t][x / 2];
				const bool counts = mask[t] >> (threadIdx.x % 32 / 4 + x / 2 * 8) & 1;
				s[t][x] = counts ? x % 2 ? __high2float(pair) : __low2float(pair) : -INFINITY;
			}
		}
	}
	softmax_of_leaf<mode, T>(w, s, unit, p);
	if (!reads_keys<mode>)
		load_leaf_scores(w, c, next);
	if (mode == MODE_TOPK_KEYS) {
#pragma unroll
		for (int t = 0; t < (int)LEAF_TILES; t++)
			if (mask[t])
				store_scores(c, l->j, stream_tile<D, mode>(l->j, l->first + t), s[t], w->max);
		return;
	}
	clear_acc(w);
#pragma unroll
	for (int t = 0; t < (int)LEAF_TILES; t++) {
		struct half_tile<T, D> *const v = &w->half[(values + t) % ahead];
		if constexpr (quantized<mode>)
			dequantize_v(v, c, &l->tiles, l->first + t);
		if (mask[t] != 0xffff)
			clear_v(v, mask[t]);
		add_values(v, w, p[t]);
		load_ahead<mode>(w, c, l, next, values + t + ahead);
	}
}

#endif
