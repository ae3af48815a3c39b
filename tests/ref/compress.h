/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/ref/compress.h - reference for KV cache compression: records and decompressed tokens, in double precision and
 * plain loops. Written from the description in kernels/compress.h; does not know pages or tables, and shares no code
 * with the kernels.
 */
#ifndef SKV_REF_CODES_H
#define SKV_REF_CODES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Matrices are [out][in]; gate NULL: E is `down` alone, open NULL: Dec is `out` alone. */
struct ref_codec {
	uint32_t kv_heads, dim, dtype; /* dtype: of the pool */
	uint32_t first, stride, near, ref_bits, id_bytes, bits, width, group, spans, hidden, wide;
	float *gate, *up, *down, *open, *out, *k_norm;
	double *turn; /* [rope_dims / 2] */
	double rope_scale;
	uint32_t rope_dims;
	bool interleaved;
};

uint32_t ref_dims(const struct ref_codec *);

/* Is a compressed token a reference? *ret_number is its number among references or among codes. */
bool ref_is_reference(const struct ref_codec *, uint32_t token, uint32_t *ret_number);
/* Number of references at or before a token. */
uint32_t ref_usable(const struct ref_codec *, uint32_t token);

/* Bytes of a record; and of n numbers of `bits` bits (16: of `each` bytes). */
uint32_t ref_code_record(const struct ref_codec *);
uint32_t ref_reference_record(const struct ref_codec *);
uint32_t ref_numbers_bytes(uint32_t n, uint32_t bits, uint32_t group, uint32_t each);

/*
 * ref_numbers() reads the n numbers stored at `at`. With 16 bits they have the dtype `dtype`, else element i is
 * least + q * scale. ref_shared() reads scale and least of scale block g, ref_number() reads q of element i, and
 * ref_id() the number of a record's reference i.
 */
void ref_numbers(const uint8_t *at, uint32_t n, uint32_t bits, uint32_t group, uint32_t dtype, double *x);
void ref_shared(const uint8_t *at, uint32_t g, double *scale, double *least);
uint32_t ref_number(const uint8_t *at, uint32_t n, uint32_t bits, uint32_t group, uint32_t i);
uint32_t ref_id(const struct ref_codec *, const uint8_t *record, uint32_t i);

/* Rotates K of all heads to a position (sign 1), or back from it (-1). */
void ref_turn(const struct ref_codec *, uint32_t position, int sign, double *k);

/*
 * E(x), and Dec(z) + b with k_norm, without RoPE. `terms`, which may be NULL in ref_encode(), receives for each element
 * the sum of the magnitudes of its summands, carried through all stages: the bound for the effect of an error in one of
 * them.
 */
void ref_encode(const struct ref_codec *, const double *x, double *z, double *terms);
void ref_decode(const struct ref_codec *, const double *z, const double *b, const double *b_terms, double *x,
                double *terms);

#endif
