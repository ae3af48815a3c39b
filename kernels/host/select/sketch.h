/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/host/select/sketch.h - what the making of sketches and the scores by them share: where they lie, and the rotation. */
#ifndef SKV_HOST_SKETCH_H
#define SKV_HOST_SKETCH_H

#include <math.h>
#include "kernels/host/runtime/simd.h"
#include "kernels/host/select/select.h"

/* Where sketches are in a state page. */
struct sketch_layout {
	size_t head_bytes, scales; /* of a kv head's part; from its begin to its scales */
	uint32_t tokens, row;      /* of a part; bytes of a token's codes */
};

static inline struct sketch_layout sketch_layout_of(const struct skv_shape *sh)
{
	const uint32_t tokens = skv_sketch_tokens(sh), row = skv_sketch_row(sh);

	return (struct sketch_layout){sh->page_bytes / sh->n_kv_heads, (size_t)tokens * row, tokens, row};
}

/* x becomes R x. */
static inline void rotate(uint32_t dim, float *x)
{
	const uint32_t block = dim & -dim;
	const float norm = 1 / sqrtf((float)block);

	for (uint32_t d = 0; d < dim; d++)
		x[d] *= skv_sketch_flips(d) ? -norm : norm;
	for (uint32_t half = 1; half < block; half *= 2)
		for (uint32_t i = 0; i < dim; i += 2 * half)
			for (uint32_t j = i; j < i + half; j++) {
				const float a = x[j], b = x[j + half];
				x[j] = a + b;
				x[j + half] = a - b;
			}
}

INLINE void widen(uint32_t dtype, const uint8_t *row, uint32_t dim, float *x)
{
	for (uint32_t d = 0; d < dim; d += VL)
		v_storef(x + d, v_load(dtype, row + d * skv_dtype_bytes(dtype)));
}

static inline void load_key(const struct skv_shape *sh, const uint8_t *row, float *x)
{
	BY_DTYPE(sh->dtype, widen, row, sh->head_dim, x);
}
#endif
