/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/select/sketch.h - the layout of sketches and the rotation of keys and queries, for sketch.c and
 * sketch-scores.c.
 */
#ifndef SKV_HOST_SKETCH_H
#define SKV_HOST_SKETCH_H

#include <math.h>
#include "kernels/host/runtime/simd.h"
#include "kernels/host/select/select.h"

/* The layout of sketches in a state page (see kernels/select.h). */
struct sketch_layout {
	size_t head_bytes, scales; /* bytes of a kv head's part of the page; offset of the scales in that part */
	uint32_t tokens, row;      /* number of tokens whose sketches are in a part; bytes of a token's codes */
};

static inline struct sketch_layout sketch_layout_of(const struct skv_shape *sh)
{
	const uint32_t tokens = skv_sketch_tokens(sh), row = skv_sketch_row(sh);

	return (struct sketch_layout){skv_head_room(sh), (size_t)tokens * row, tokens, row};
}

/*
 * Makes the diagonal factor of the rotation R: a sign for each element, divided by the norm of the Hadamard matrix's
 * rows.
 */
static inline void signs_of(uint32_t dim, float *ret)
{
	const vf norm = v_set(1 / sqrtf((float)(dim & -dim)));

	for (uint32_t d = 0; d < dim; d += VL) {
		vu x = (vu)(v_iota() + (int32_t)d + 1) * 0x9e3779b9u; /* the hash of skv_sketch_flips() */
		x = (x ^ x >> 15) * 0x85ebca6bu;
		x = (x ^ x >> 13) >> 16 << 31;
		v_storef(ret + d, (vf)((vu)norm ^ x));
	}
}

/* Rotates a vector: replaces x by R x. dim is a multiple of 32, so no block of R is shorter than a vector register. */
INLINE void rotate(uint32_t dim, const float *signs, vf *x)
{
	const uint32_t vectors = dim / VL, block = (dim & -dim) / VL;

	for (uint32_t i = 0; i < vectors; i++)
		x[i] = v_hadamard(x[i] * v_loadf(signs + i * VL));
	for (uint32_t half = 1; half < block; half *= 2)
		for (uint32_t i = 0; i < vectors; i += 2 * half)
			for (uint32_t j = i; j < i + half; j++) {
				const vf a = x[j], b = x[j + half];
				x[j] = a + b;
				x[j + half] = a - b;
			}
}
#endif
