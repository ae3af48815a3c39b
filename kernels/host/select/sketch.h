/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/select/sketch.h - the layout of sketches and the rotation of keys and queries, for sketch.c,
 * sketch-scores.c and decode/sketches.c.
 */
#ifndef SKV_HOST_SKETCH_H
#define SKV_HOST_SKETCH_H

#include <math.h>
#include "kernels/host/runtime/simd.h"
#include "kernels/host/select/select.h"

static inline uint16_t to_bf16(float x)
{
	uint32_t u;

	memcpy(&u, &x, sizeof u);
	return x != x ? 0x7fc0 : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
static inline float from_bf16(uint16_t h)
{
	const uint32_t u = (uint32_t)h << 16;
	float x;

	memcpy(&x, &u, sizeof x);
	return x;
}

/* The layout of sketches in a state page (see kernels/select.h). */
struct sketch_layout {
	size_t head_bytes; /* bytes of a kv head's part of the page */
	/* offsets in that part: of the keys' scales, the values' codes, and the values' least values and steps */
	size_t scales, values, steps;
	uint32_t tokens, row; /* number of tokens whose sketches are in a part; bytes of a key's codes */
	uint32_t value_row, value_steps; /* bytes of a value's codes, and of its groups' least values and steps */
};

static inline struct sketch_layout sketch_layout_of(const struct skv_shape *sh)
{
	struct sketch_layout l = {
	        .head_bytes = skv_head_room(sh),
	        .tokens = skv_sketch_tokens(sh),
	        .row = skv_sketch_row(sh),
	        .value_row = skv_value_row(sh),
	        .value_steps = skv_value_steps(sh),
	};

	l.scales = (size_t)l.tokens * l.row;
	l.values = l.scales + (size_t)l.tokens * sizeof(uint16_t);
	l.steps = l.values + (size_t)l.tokens * l.value_row;
	return l;
}

/* The sketches of a page's tokens: kv head 0's part of the state page (NULL: none), and the first token's index in it. */
struct sketch_spot {
	const uint8_t *part;
	uint32_t at;
};

static inline struct sketch_spot sketch_spot_of(const struct skv_shape *sh, const struct sketch_layout *l,
                                                const struct skv_kseq *s, uint32_t page)
{
	const skv_pte state = skv_state_table(sh, s)[page * SKV_PAGE_TOKENS / l->tokens];

	if (!skv_pte_resident(skv_layer_table(sh, s)[page]) || !skv_pte_resident(state))
		return (struct sketch_spot){NULL, 0};
	return (struct sketch_spot){sh->pool + skv_pte_id(state) * sh->page_bytes, page * SKV_PAGE_TOKENS % l->tokens};
}

/*
 * Computes the scores of each sequence's tokens by the sketches of their keys, in units of log2: score[seq][q
 * head][stride]; -infinity for tokens that are not resident, and from len to the end of the last page. The stride is at
 * least the tokens of max_len's pages. Sequences of fewer than T tokens get undefined scores. The function takes
 * sketch_logits_bytes() of `c`.
 */
void ISA(sketch_logits)(const struct skv_shape *, const struct skv_batch *, const float *q, float *score, size_t stride,
                        struct carve *c, int threads);
size_t ISA(sketch_logits_bytes)(const struct skv_shape *, uint32_t n_seqs);

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
