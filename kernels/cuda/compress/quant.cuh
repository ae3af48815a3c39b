/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cuda/compress/quant.cuh - K and V in few bits, as kernels read them: see codes.h. */
#ifndef SKV_CUDA_LOW_CUH
#define SKV_CUDA_LOW_CUH

#include "kernels/cuda/runtime/convert.cuh"
#include "kernels/cuda/runtime/cuda.h"

/* How a layer keeps them; bits 0: it does not. */
struct low_form {
	uint32_t bits, group;
	uint32_t codes; /* number of the table */
	uint32_t each;  /* records in a page */
	struct skv_low at;
};

static inline struct low_form low_form_of(const struct skv_shape *sh)
{
	const struct skv_low at = skv_low_of(sh->code, sh->head_dim);
	return {sh->code->bits, sh->code->group, sh->codes, (uint32_t)sh->page_bytes / at.bytes, at};
}

/* Number n of those in a word. */
DEVICE float low_number(const struct low_form *f, uint32_t word, int n)
{
	const uint32_t q = word >> n * f->bits & (f->bits == 4 ? 15 : 3);
	return __uint_as_float(0x4b000000 | q) - 0x1p23f; /* without a slow conversion */
}

/* What a number means, by the pair that its group shares. */
DEVICE float low_meaning(float number, uint32_t pair)
{
	return fmaf(number, __uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000));
}

/* Eight numbers of a record. */
DEVICE uint32_t low_word(const struct low_form *f, const uint8_t *at)
{
	return f->bits == 4 ? __ldg((const uint32_t *)at) : __ldg((const uint16_t *)at);
}

#endif
