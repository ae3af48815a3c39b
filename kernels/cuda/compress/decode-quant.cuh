/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/compress/decode-quant.cuh - dense decode over quantized KV, dequantized in registers: see
 * decode/decode.cuh.
 *
 * A tile is half a quantization block. A lane loads the quantized numbers of the elements that it would load as rows,
 * and the parameters {scale, zero point} of their scale blocks. A scale block of K is one channel of all tokens in the
 * block, so the eight lanes that load the same channels load one pair of parameters each, and exchange the pairs by
 * shuffles. All data in flight fits in the registers for rows. The data is dequantized when it is used, to 16-bit rows
 * that equal those of decompress(). A row's numbers are loaded in parts smaller than a memory transaction, so the loads
 * go through the L1 cache.
 */
#ifndef SKV_CUDA_COMPRESS_DECODE_QUANT_CUH
#define SKV_CUDA_COMPRESS_DECODE_QUANT_CUH

#include "kernels/cuda/decode/tile.cuh"

/* The address of a tile's record, and the index of the tile's first token in the quantization block. */
struct quant_tile {
	const uint8_t *record;
	uint32_t token;
};

DEVICE struct quant_tile quant_tile_at(const struct decode_params *c, uint32_t page, uint32_t at)
{
	return {c->pool + page * c->page_bytes + (at & ~1u), at % 2 * SKV_PAGE_TOKENS};
}

template <class T, int D>
__device__ static void quant_load_k(struct half_tile<T, D> *to, const struct decode_params *c, const struct work_item *j,
                                    const struct tile_batch *ts, uint32_t k, uint64_t once)
{
	const uint32_t g = threadIdx.x % 32 / 4, e = threadIdx.x % 4 * 8;
	const uint32_t mask = __shfl_sync(~0u, ts->mask, k), page = __shfl_sync(~0u, ts->page, k);
	const uint32_t at = __shfl_sync(~0u, ts->quant, k);
	if (at == NOT_QUANTIZED) {
		load_k<false>(to, c, j, ts, k, once);
		return;
	}
	if (!mask)
		return;
	const struct quant_tile t = quant_tile_at(c, page, at);
	const uint8_t *row = t.record + c->quant.at.k + (t.token + g) * (D * c->quant.bits / 8);
#pragma unroll
	for (int b = 0; b < D / 32; b++) {
		const uint32_t from = (b * 32 + e) * c->quant.bits / 8;
		to->k(b, 0).x = load_quant_word(&c->quant, row + from);
		to->k(b, 1).x = load_quant_word(&c->quant, row + 8 * (D * c->quant.bits / 8) + from);
		to->k(b, 0).y = __ldg((const uint32_t *)t.record + b * 32 + e + g);
	}
}

template <class T, int D>
__device__ static void quant_load_v(struct half_tile<T, D> *to, const struct decode_params *c, const struct work_item *j,
                                    const struct tile_batch *ts, uint32_t k, uint64_t once)
{
	const uint32_t g = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
	const uint32_t mask = __shfl_sync(~0u, ts->mask, k), page = __shfl_sync(~0u, ts->page, k);
	const uint32_t at = __shfl_sync(~0u, ts->quant, k), bits = c->quant.bits, group = c->quant.group;
	if (at == NOT_QUANTIZED) {
		load_v<false>(to, c, j, ts, k, once);
		return;
	}
	if (!mask)
		return;
	const struct quant_tile x = quant_tile_at(c, page, at);
#pragma unroll
	for (int t = 0; t < 4; t++) {
		const uint32_t token = x.token + pair + t % 2 + t / 2 * 8;
		const uint8_t *row = x.record + c->quant.at.v + token * (D * bits / 8);
		const uint32_t *shared = (const uint32_t *)(x.record + c->quant.at.v_scales) + token * (D / group);
#pragma unroll
		for (int b = 0; b < to->WIDE; b++) {
			const uint32_t e = b * 64 + g * 8;
			to->v(b, t).x = load_quant_word(&c->quant, row + e * bits / 8);
			to->v(b, t).y = __ldg(shared + e / group);
		}
		if (to->REST) { /* the last elements of the row: four numbers */
			const uint32_t e = to->WIDE * 64 + g * 4;
			const uint8_t *from = row + e * bits / 8;
			to->rest(t) = make_uint2(bits == 4 ? __ldg((const uint16_t *)from) : __ldg(from),
			                               __ldg(shared + e / group));
		}
	}
}

/* Dequantizes elements 2 i and 2 i + 1 of a word. `first` and `second` are the scales and zero points of the two. */
template <class T>
DEVICE uint32_t dequantize_pair(const struct quant_form *f, uint32_t word, int i, uint32_t first, uint32_t second)
{
	return T::pair(dequantize_number(quant_number(f, word, 2 * i), first),
	               dequantize_number(quant_number(f, word, 2 * i + 1), second));
}

template <class T, int D>
__device__ static void dequantize_k(struct half_tile<T, D> *of, const struct decode_params *c, const struct tile_batch *ts, uint32_t k)
{
	const uint32_t lane = threadIdx.x % 4;
	if (__shfl_sync(~0u, ts->quant, k) == NOT_QUANTIZED)
		return;
#pragma unroll
	for (int b = 0; b < D / 32; b++) {
		const uint32_t lo = of->k(b, 0).x, hi = of->k(b, 1).x, own = of->k(b, 0).y;
		uint32_t a[4], z[4];
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const uint32_t first = __shfl_sync(~0u, own, 8 * i + lane);
			const uint32_t second = __shfl_sync(~0u, own, 8 * i + 4 + lane);
			a[i] = dequantize_pair<T>(&c->quant, lo, i, first, second);
			z[i] = dequantize_pair<T>(&c->quant, hi, i, first, second);
		}
		of->k(b, 0) = make_uint4(a[0], a[1], a[2], a[3]);
		of->k(b, 1) = make_uint4(z[0], z[1], z[2], z[3]);
	}
}

template <class T, int D>
__device__ static void dequantize_v(struct half_tile<T, D> *of, const struct decode_params *c, const struct tile_batch *ts, uint32_t k)
{
	if (__shfl_sync(~0u, ts->quant, k) == NOT_QUANTIZED)
		return;
#pragma unroll
	for (int t = 0; t < 4; t++) {
#pragma unroll
		for (int b = 0; b < of->WIDE; b++) {
			const uint32_t word = of->v(b, t).x, own = of->v(b, t).y;
			of->v(b, t) = make_uint4(dequantize_pair<T>(&c->quant, word, 0, own, own),
			                             dequantize_pair<T>(&c->quant, word, 1, own, own),
			                             dequantize_pair<T>(&c->quant, word, 2, own, own), dequantize_pair<T>(&c->quant, word, 3, own, own));
		}
		if (of->REST) {
			const uint32_t word = of->rest(t).x, own = of->rest(t).y;
			of->rest(t) = make_uint2(dequantize_pair<T>(&c->quant, word, 0, own, own),
			                               dequantize_pair<T>(&c->quant, word, 1, own, own));
		}
	}
}

#endif
