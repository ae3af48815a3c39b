/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/host/compress/nearest-refs.h - search for the references nearest to a token, for compress.c. */
#ifndef SKV_HOST_NEAREST_REFS_H
#define SKV_HOST_NEAREST_REFS_H

#include "kernels/host/compress/records.h"

#define REFS 64u /* number of references with which a tile of tokens is compared at a time */

/* The buffers of one thread for the search. */
struct ref_buffers {
	float *ref;   /* [REFS][d]: references in fp32 */
	float *score; /* [TOKENS][REFS]: dot products of tokens and references */
};

static inline size_t ref_buffers_bytes(uint32_t d)
{
	return carve_size((REFS * d + TOKENS * REFS) * sizeof(float) + 2 * 64);
}
static inline struct ref_buffers ref_buffers_carve(struct carve *c, uint32_t d)
{
	return (struct ref_buffers){.ref = carve(c, REFS * d * sizeof(float)),
	                            .score = carve(c, TOKENS * REFS * sizeof(float))};
}

/* The references found so far that are nearest to a token, the nearest first. */
struct nearest_refs {
	float score[SKV_MAX_REFS];
	uint32_t id[SKV_MAX_REFS];
};

/*
 * Finds, for each of m ascending tokens, whose vectors are x[m][d], the n_refs nearest references among those at or
 * before the token.
 */
void ISA(nearest_refs)(const struct latent *, const struct skv_kseq *, const struct ref_buffers *, const float *x,
                       const uint32_t *token, uint32_t m, struct nearest_refs *best);
#endif
