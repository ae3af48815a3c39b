/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/compressor.h - computes the best linear compressor for accumulated K and V, and writes its file.
 *
 * The residuals' largest principal directions are the rows of `down` and the columns of `out`. Of all linear maps to
 * `width` numbers and back this one loses least of the accumulated residuals (squared error, all elements with equal
 * weight). Numbers of a scale block share a scale when codes are quantized, so the directions of a block are mixed by
 * a Hadamard transform: then all its numbers have about the same magnitude.
 */
#ifndef ENG_COMPRESSOR_H
#define ENG_COMPRESSOR_H

#include <stdint.h>
#include "engine/error.h"
#include "engine/residuals.h"

/* Default size of a scale block of a code; default widths are multiples of it. */
#define ENG_COMPRESSOR_GROUP 64u

struct eng_compressor {
	const struct eng_residuals *of;
	const char *kind; /* "deltakv" or "palu" */
	uint32_t width;   /* numbers in a code */
	uint32_t spans;   /* spans of kv heads that are encoded separately, K and V apart; 0: all of x together */
	float *weights;   /* [layer]: down [width][d], out [d][width] */
	double *lost;     /* [layer]: squared error, over all tokens and elements */
};
#define ENG_COMPRESSOR_NULL ((struct eng_compressor){.weights = NULL})

/* The caller has checked `width` with eng_compressor_check(). -ENOMEM; -EIO: no directions were found. */
int eng_compressor_make(struct eng_compressor *ret, const struct eng_residuals *of, const char *kind, uint32_t width,
                        uint32_t spans, struct eng_error *err);
void eng_compressor_deinit(struct eng_compressor *c);

/* -EINVAL: codes of `width` numbers do not fit x of d elements. */
int eng_compressor_check(uint32_t d, uint32_t width, uint32_t spans, struct eng_error *err);

/* Replaces the file when all of it is written. Returns a negative errno. */
int eng_compressor_write(const struct eng_compressor *c, const char *path, struct eng_error *err);

#endif
