/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/ref/compress.h - what layers that compress should keep of a token and make of it again, in double precision
 * and plain loops. Written from what kernels/compress.h says; knows nothing of pages or tables, and shares no code
 * with the kernels.
 */
#ifndef SKV_REF_CODES_H
#define SKV_REF_CODES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Matrices are [out][in]; gate NULL: E is `down` alone, open NULL: Dec is `out` alone. */
struct ref_codec {
	uint32_t kv_heads, dim, dtype; /* of the pool */
	uint32_t first, stride, near, ref_bits, id_bytes, bits, width, group, spans, hidden, wide;
	float *gate, *up, *down, *open, *out, *k_norm;
	double *turn; /* [rope_dims / 2] */
	double rope_scale;
	uint32_t rope_dims;
	bool interleaved;
};

uint32_t ref_dims(const struct ref_codec *);

/* What a compressed token becomes, and its number among its like. */
bool ref_is_reference(const struct ref_codec *, uint32_t token, uint32_t *ret_number);
/* References at or before a token. */
uint32_t ref_usable(const struct ref_codec *, uint32_t token);

/* Bytes of a record; and of its n numbers, in so many bits (16: of `each` bytes). */
uint32_t ref_code_record(const struct ref_codec *);
uint32_t ref_reference_record(const struct ref_codec *);
uint32_t ref_numbers_bytes(uint32_t n, uint32_t bits, uint32_t group, uint32_t each);

/* The n numbers that are stored there; with 16 bits of `dtype`. Element i of those in fewer bits: least + q * scale. */
void ref_numbers(const uint8_t *at, uint32_t n, uint32_t bits, uint32_t group, uint32_t dtype, double *x);
void ref_shared(const uint8_t *at, uint32_t g, double *scale, double *least);
uint32_t ref_number(const uint8_t *at, uint32_t n, uint32_t bits, uint32_t group, uint32_t i);
uint32_t ref_id(const struct ref_codec *, const uint8_t *record, uint32_t i);

/* Turn K of all heads to a position (sign 1), or back from it (-1). */
void ref_turn(const struct ref_codec *, uint32_t position, int sign, double *k);

/*
 * E(x), and Dec(z) + b with k_norm, without turning. `terms`, unless NULL: for each element the sum of the sizes of
 * what it was added up from, carried through: what an error of one part of it may grow to.
 */
void ref_encode(const struct ref_codec *, const double *x, double *z, double *terms);
void ref_decode(const struct ref_codec *, const double *z, const double *b, const double *b_terms, double *x,
                double *terms);

#endif
