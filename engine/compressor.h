/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/compressor.h - the best linear compressor for what was seen of tokens, and its file.
 *
 * The residuals' largest principal directions are the rows of `down`, the columns of `out`: of all maps to so few
 * numbers and back this loses least of what was added up (squares, all elements alike). Numbers of a group share a
 * scale when codes are quantized, so the directions of a group are turned among themselves (Hadamard): then
 * each number is as large as the others.
 */
#ifndef ENG_COMPRESSOR_H
#define ENG_COMPRESSOR_H

#include <stdint.h>
#include "engine/error.h"
#include "engine/residuals.h"

/* Numbers of a code that share a scale where a policy does not say otherwise: usual widths are multiples of it. */
#define ENG_COMPRESSOR_GROUP 64u

struct eng_compressor {
	const struct eng_residuals *of;
	const char *kind; /* "deltakv" or "palu" */
	uint32_t width;   /* numbers of a code */
	uint32_t spans;   /* groups of kv heads whose K and V have numbers of their own; 0: all of x together */
	float *weights;   /* [layer]: down [width][d], out [d][width] */
	double *lost;     /* [layer]: squares, of all tokens and elements */
};
#define ENG_COMPRESSOR_NULL ((struct eng_compressor){.weights = NULL})

/* `width` has been checked: eng_compressor_check(). -ENOMEM; -EIO no directions were found. */
int eng_compressor_make(struct eng_compressor *ret, const struct eng_residuals *of, const char *kind, uint32_t width,
                        uint32_t spans, struct eng_error *err);
void eng_compressor_deinit(struct eng_compressor *c);

/* -EINVAL: codes of so many numbers do not go with x of d elements. */
int eng_compressor_check(uint32_t d, uint32_t width, uint32_t spans, struct eng_error *err);

/* In place of what the file may have been, once all of it is written. Negative errno. */
int eng_compressor_write(const struct eng_compressor *c, const char *path, struct eng_error *err);

#endif
