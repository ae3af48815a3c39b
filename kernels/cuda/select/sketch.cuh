/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/sketch.cuh - sketches of keys (kernels/select.h): where they are stored, and queries for scoring
 * them.
 *
 *   sketch.cu          makes sketches, and appends the rows of a call, if there are any
 *   sketch-scan.cuh    computes a warp's scores of a chunk of tokens
 *   sketch-stream.cuh  scans many state pages by a block, with copies to shared memory
 *   sketch-sample.cuh  estimates the softmax denominators from a sample of the tokens
 *   sketch-scores.cu   computes the weights of all tokens and writes them to memory
 *   sketch-topk.cu     selects the best tokens of a kv head: scores and selection in one launch
 *   cluster-select.cuh selects by the keys of all blocks of a cluster
 *
 * A query is rotated like the keys and rounded to 8 bits. So the product of a query and a key's code is an integer,
 * which does not depend on the order of summation. A warp holds the elements of a query or key: lane x has elements x,
 * x + 32, ...
 */
#ifndef SKV_CUDA_SELECT_SKETCH_CUH
#define SKV_CUDA_SELECT_SKETCH_CUH

#include "kernels/cuda/runtime/cuda.h"
#include "kernels/cuda/runtime/fp8.cuh"
#include "kernels/cuda/runtime/softmax.cuh"

struct sketch_params {
	const struct skv_kseq *seq;
	const void *q;
	const uint8_t *pool;
	size_t page_bytes;
	const float *sinks;
	struct score_scale scale;
	/*
	 * head_bytes: a kv head's bytes of a state page. page_tokens: tokens of a state page. row_bytes: bytes of a
	 * token's codes.
	 */
	uint32_t head_bytes, page_tokens, row_bytes;
	/* 2^32 divided by the number of pages of K that a state page has sketches of, rounded up. */
	uint32_t per_state_page;
	uint32_t n_heads, n_kv_heads, group, dtype, io_dtype, layer, state, q_stride;
};

/*
 * Queries of a head tile, for products with codes (integers from 0, multiplied by `factor`: see sketch-scan.cuh). A sum
 * of products that begins with `start` is MAGIC_BITS plus `factor` times the product with the codes' values. The score
 * is this sum taken as a float, minus MAGIC, times `unit` and the token's scale, plus `base`. With a softcap, the
 * result is the softcap's argument instead.
 */
struct sketch_query {
	uint32_t code[HEAD_TILE][SKV_MAX_HEAD_DIM / 4]; /* int8_t elements, four to a word */
	struct alignas(16) sketch_head {
		float unit, base;
		int start;
	} head[HEAD_TILE];
	/* `code` as tensor core operands, in the order that the scan needs */
	uint4 operand[SKV_MAX_HEAD_DIM / 32 + 1][32];
};

DEVICE float bf16_low(uint32_t two)
{
	return __uint_as_float(two << 16);
}

DEVICE float warp_sum(float x)
{
#pragma unroll
	for (int lane = 1; lane < 32; lane *= 2)
		x += __shfl_xor_sync(~0u, x, lane);
	return x;
}

/*
 * Loads elements lane, lane + 32, ... of a row without converting them. All loads are issued before any value is used.
 */
template <int D> DEVICE void load_raw(uint32_t dtype, const void *p, size_t at, uint32_t (&x)[D / 32])
{
	at += threadIdx.x % 32;
	if (dtype == SKV_F32) {
#pragma unroll
		for (int r = 0; r < D / 32; r++)
			x[r] = ((const uint32_t *)p)[at + 32 * r];
	} else if (dtype == SKV_FP8) {
#pragma unroll
		for (int r = 0; r < D / 32; r++)
			x[r] = ((const uint8_t *)p)[at + 32 * r];
	} else {
#pragma unroll
		for (int r = 0; r < D / 32; r++)
			x[r] = ((const uint16_t *)p)[at + 32 * r];
	}
}
/* Converts an element from load_raw() to its value; for fp8 without its row's scale. */
DEVICE float raw_value(uint32_t dtype, uint32_t x)
{
	return dtype == SKV_F32   ? __uint_as_float(x)
	       : dtype == SKV_F16 ? __half2float(__ushort_as_half((uint16_t)x))
	       : dtype == SKV_FP8 ? fp8_two(x).x
	                          : bf16_low(x);
}

/* Replaces x by R x, where R is the rotation of sketches (kernels/select.h). */
template <int D> DEVICE void sketch_rotate(float (&x)[D / 32])
{
	constexpr int block = D & -D;
	const uint32_t lane = threadIdx.x % 32;
	constexpr float norm = block == 32 ? 0.176776695f : block == 64 ? 0.125f : block == 128 ? 0.0883883461f : 0.0625f;

#pragma unroll
	for (int r = 0; r < D / 32; r++)
		x[r] *= skv_sketch_flips(lane + 32 * r) ? -norm : norm;
#pragma unroll
	for (int half = 1; half < 32; half *= 2)
#pragma unroll
		for (int r = 0; r < D / 32; r++) {
			const float other = __shfl_xor_sync(~0u, x[r], half);
			x[r] = lane & half ? other - x[r] : x[r] + other;
		}
#pragma unroll
	for (int half = 32; half < block; half *= 2)
#pragma unroll
		for (int r = 0; r < D / 32; r++)
			if (!(32 * r & half)) {
				const float a = x[r], b = x[r + half / 32];
				x[r] = a + b;
				x[r + half / 32] = a - b;
			}
}

/*
 * Location of a page's rows of keys: `row` points to the first row, and `scale`, for fp8, to its scale. Row t is t
 * head_dim elements further, its scale t bytes.
 */
struct key_rows {
	const uint8_t *row, *scale;
};
DEVICE float key_unit(uint32_t dtype, const uint8_t *scale)
{
	return dtype == SKV_FP8 ? fp8_unit(*scale) : 1;
}

/* Returns the rows of kv head h in the sequence's first page; NULL if that page is not resident or not complete. */
DEVICE struct key_rows first_rows(const struct sketch_params *c, uint32_t head_dim, const struct skv_kseq *s, uint32_t h)
{
	const skv_pte entry = s->table[(size_t)c->layer * s->layer_stride];
	const uint8_t *page = c->pool + skv_pte_id(entry) * c->page_bytes;
	if (s->len < SKV_PAGE_TOKENS || !skv_pte_resident(entry))
		return {NULL, NULL};
	return {page + (size_t)h * SKV_PAGE_TOKENS * head_dim * skv_dtype_bytes(c->dtype),
	        page + (2 * c->n_kv_heads * head_dim + h) * SKV_PAGE_TOKENS};
}

/* A float with the bits MAGIC_BITS + n has the value MAGIC + n, for integers n of up to 22 bits. */
#define MAGIC 12582912.0f
#define MAGIC_BITS 0x4b400000

/*
 * A warp makes query `g` of the head tile that begins with q head `head`, in the GQA group of kv head h. `factor` is
 * even.
 */
template <int D, int bits, int factor>
__device__ static void make_sketch_query(const struct sketch_params *c, const struct skv_kseq *s, uint32_t h,
                                         uint32_t head, uint32_t g, struct sketch_query *to)
{
	const uint32_t lane = threadIdx.x % 32;
	const size_t row = (size_t)s->row * c->q_stride + (size_t)(head + g) * D;
	const float fold = c->scale.cap != 0 ? 1 : c->scale.scale;
	float x[D / 32], most = 0, base = 0;
	uint32_t raw[D / 32];
	int sum = 0;

	load_raw<D>(c->io_dtype, c->q, row, raw);
#pragma unroll
	for (int r = 0; r < D / 32; r++)
		x[r] = raw_value(c->io_dtype, raw[r]);
	if (c->scale.cap != 0 || c->sinks) { /* unlike a softmax alone, these depend on the keys' mean c */
		const struct key_rows rows = first_rows(c, D, s, h);
		for (uint32_t t = 0; t < SKV_PAGE_TOKENS && rows.row; t++) {
			const float unit = key_unit(c->dtype, rows.scale + t);
			load_raw<D>(c->dtype, rows.row, t * D, raw);
#pragma unroll
			for (int r = 0; r < D / 32; r++)
				base += x[r] * (raw_value(c->dtype, raw[r]) * unit);
		}
		base = warp_sum(base) / SKV_PAGE_TOKENS;
	}
	sketch_rotate<D>(x);
#pragma unroll
	for (int r = 0; r < D / 32; r++)
		most = fmaxf(most, fabsf(x[r]));
#pragma unroll
	for (int half = 1; half < 32; half *= 2)
		most = fmaxf(most, __shfl_xor_sync(~0u, most, half));
#pragma unroll
	for (int r = 0; r < D / 32; r++) {
		const int u = most > 0 && x[r] == x[r] ? (int)rintf(x[r] * (127 / most)) : 0;
		((int8_t *)to->code[g])[lane + 32 * r] = (int8_t)u;
		sum += u;
	}
	sum = ((1 << bits) - 1) * (int)__reduce_add_sync(~0u, (unsigned)sum);
	to->head[g] = {most / (127 * factor) * fold, base * fold, MAGIC_BITS - factor / 2 * sum};
}

static inline struct sketch_params sketch_params_of(const struct skv_shape *sh, const struct skv_batch *b, const void *q)
{
	return {
		.seq = b->seq,
		.q = q,
		.pool = sh->pool,
		.page_bytes = sh->page_bytes,
		.sinks = sh->sinks,
		.scale = score_scale_of(sh),
		.head_bytes = (uint32_t)skv_head_room(sh),
		.page_tokens = skv_sketch_tokens(sh),
		.row_bytes = skv_sketch_row(sh),
		.per_state_page = UINT32_MAX / (skv_sketch_tokens(sh) / SKV_PAGE_TOKENS) + 1,
		.n_heads = sh->n_heads,
		.n_kv_heads = sh->n_kv_heads,
		.group = sh->n_heads / sh->n_kv_heads,
		.dtype = sh->dtype,
		.io_dtype = sh->io_dtype,
		.layer = sh->layer,
		.state = sh->state,
		.q_stride = skv_q_stride(sh),
	};
}

/*
 * Calls launch.run<D, bits>() with the shape's head_dim and sketch_bits. L is a struct with a member template, because
 * lambdas cannot be called with explicit template arguments.
 */
template <int D, class L> static void sketch_dispatch_bits(uint32_t bits, const L &launch)
{
	switch (bits) {
	case 1: launch.template run<D, 1>(); break;
	case 2: launch.template run<D, 2>(); break;
	case 3: launch.template run<D, 3>(); break;
	default: launch.template run<D, 4>();
	}
}
template <class L> static void sketch_dispatch(const struct skv_shape *sh, const L &launch)
{
	switch (sh->head_dim) {
	case 64: sketch_dispatch_bits<64>(sh->sketch_bits, launch); break;
	case 96: sketch_dispatch_bits<96>(sh->sketch_bits, launch); break;
	case 128: sketch_dispatch_bits<128>(sh->sketch_bits, launch); break;
	default: sketch_dispatch_bits<256>(sh->sketch_bits, launch);
	}
}

#endif
