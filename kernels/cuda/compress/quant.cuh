/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/compress/quant.cuh - dequantization of K and V, for all kernels that read quantized KV: see
 * kernels/compress.h.
 */
#ifndef SKV_CUDA_COMPRESS_QUANT_CUH
#define SKV_CUDA_COMPRESS_QUANT_CUH

#include "kernels/cuda/runtime/convert.cuh"
#include "kernels/cuda/runtime/cuda.h"

/* The format of a layer's quantized KV. bits is 0 if K and V are not quantized. */
struct quant_form {
	uint32_t bits, group;
	uint32_t codes; /* number of the layer's table of codes */
	uint32_t each;  /* number of records per page */
	struct skv_quant_layout at;
};

static inline struct quant_form quant_form_of(const struct skv_shape *sh)
{
	const struct skv_quant_layout at = skv_quant_layout_of(sh->codec, sh->head_dim);
	return {sh->codec->bits, sh->codec->scale_block, sh->codes, (uint32_t)sh->page_bytes / at.bytes, at};
}

/* Returns quantized number n of a word, as a float. */
DEVICE float quant_number(const struct quant_form *f, uint32_t word, int n)
{
	const uint32_t q = word >> n * f->bits & (f->bits == 4 ? 15 : 3);
	return __uint_as_float(0x4b000000 | q) - 0x1p23f; /* sets mantissa bits, since integer conversion is slow */
}

/*
 * Dequantizes a number. `pair` has the scale (lower half) and the zero point (upper half) of its scale block, as bf16.
 */
DEVICE float dequantize_number(float number, uint32_t pair)
{
	return fmaf(number, __uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000));
}

/* Loads eight quantized numbers of a record, as one word. */
DEVICE uint32_t load_quant_word(const struct quant_form *f, const uint8_t *at)
{
	return f->bits == 4 ? __ldg((const uint32_t *)at) : __ldg((const uint16_t *)at);
}

#endif
