/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/compressor.h - computes the best linear compressor for accumulated K and V, and writes its file.
 *
 * The rows of the matrix `down`, and the columns of the matrix `out`, are the principal directions of the accumulated
 * residuals with the largest eigenvalues. Of all linear maps from a residual to `width` numbers and back, this one has
 * the smallest squared error (all elements have equal weight). When codes are quantized, the numbers of a scale block
 * share one scale. So a Hadamard transform mixes the directions of a scale block, which gives all numbers of the block
 * about the same magnitude.
 */
#ifndef ENG_COMPRESSOR_H
#define ENG_COMPRESSOR_H

#include <stdint.h>
#include "engine/error.h"
#include "engine/residuals.h"

/* Default size of the scale blocks of a code. Default widths of codes are multiples of it. */
#define ENG_COMPRESSOR_GROUP 64u

struct eng_compressor {
	const struct eng_residuals *of;
	const char *kind; /* "deltakv" or "palu" */
	uint32_t width;   /* numbers in a code */
	/*
	 * number of spans of kv heads that are encoded separately, K and V apart (palu); 0: all of x is encoded
	 * together (deltakv)
	 */
	uint32_t spans;
	float *weights;   /* [layer]: matrix `down` [width][d], then matrix `out` [d][width] */
	double *lost;     /* [layer]: squared error, summed over tokens and elements */
};
#define ENG_COMPRESSOR_NULL ((struct eng_compressor){.weights = NULL})

/*
 * Makes a compressor of accumulated residuals. The caller must have checked `width` with eng_compressor_check().
 * Returns 0, -ENOMEM, or -EIO if LAPACK finds no principal directions.
 */
int eng_compressor_make(struct eng_compressor *ret, const struct eng_residuals *of, const char *kind, uint32_t width,
                        uint32_t spans, struct eng_error *err);
void eng_compressor_deinit(struct eng_compressor *c);

/* Returns 0, or -EINVAL if x of d elements cannot be encoded by codes of `width` numbers in `spans` spans. */
int eng_compressor_check(uint32_t d, uint32_t width, uint32_t spans, struct eng_error *err);

/*
 * Writes the compressor to a file, which replaces an existing one only when it is complete. Returns 0 or a negative
 * errno.
 */
int eng_compressor_write(const struct eng_compressor *c, const char *path, struct eng_error *err);

#endif
