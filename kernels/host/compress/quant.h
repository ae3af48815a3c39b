/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/compress/quant.h - K and V in few bits, read into fp32, for low.c, rebuild.c and decode.c; see codes.h.
 */
#ifndef SKV_HOST_LOW_H
#define SKV_HOST_LOW_H

#include "kernels/host/compress/bits.h"
#include "kernels/host/runtime/host.h"
#include "kernels/host/runtime/simd.h"

/* A layer that packs so, and what follows from how. */
struct low {
	const struct skv_shape *sh;
	uint32_t bits, group, row; /* `row`: bytes of a token's numbers */
	struct skv_low at;
};

static inline struct low low_of(const struct skv_shape *sh)
{
	const struct skv_codes *c = sh->code;

	return (struct low){.sh = sh, .bits = c->bits, .group = c->group, .row = sh->head_dim * c->bits / 8,
	                    .at = skv_low_of(c, sh->head_dim)};
}

/* The record of the token's block and kv head h. */
static inline uint8_t *low_record(const struct low *l, const struct skv_kseq *s, uint32_t token, uint32_t h)
{
	return skv_record_at(l->sh, s, l->sh->codes, l->at.bytes, token / SKV_LOW_BLOCK * l->sh->n_kv_heads + h);
}

INLINE vf low_numbers(uint32_t bits, const uint8_t *p)
{
	return bits == 4 ? v_load_u4(p) : v_load_u2(p);
}

/* K of n tokens of a block from number t on, to[n][head_dim]. */
static inline void low_keys(const struct low *l, const uint8_t *record, uint32_t t, uint32_t n, float *to)
{
	const uint32_t dim = l->sh->head_dim;
	const uint8_t *q = record + l->at.k + t * l->row;

	for (uint32_t d = 0; d < dim; d += VL) {
		vf scale, least;
		v_load_pairs(record + 4 * d, &scale, &least);
		for (uint32_t i = 0; i < n; i++)
			v_storef(to + i * dim + d,
			         v_fma(low_numbers(l->bits, q + i * l->row + d * l->bits / 8), scale, least));
	}
}

/* And V. */
static inline void low_values(const struct low *l, const uint8_t *record, uint32_t t, uint32_t n, float *to)
{
	const uint32_t dim = l->sh->head_dim, groups = dim / l->group;
	const uint8_t *q = record + l->at.v + t * l->row, *shared = record + l->at.v_shared + 4 * t * groups;

	for (uint32_t i = 0; i < n * groups; i++) { /* a group */
		const vf scale = v_set(of_bf16(shared + 4 * i)), least = v_set(of_bf16(shared + 4 * i + 2));
		for (uint32_t d = i * l->group; d < (i + 1) * l->group; d += VL)
			v_storef(to + d, v_fma(low_numbers(l->bits, q + d * l->bits / 8), scale, least));
	}
}

#endif
