/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/delta-similarity.h - how alike the differences of neighbouring rows are, which a corrected prompt stands on.
 *
 * A row's difference d is what dense attention gives a head minus what sparse attention does. Of each gamma rows the
 * first is dense, and its difference d_0 is added to what the others have: of such a row's d_j there is d_j - d_0
 * left. That is less than d_j, in squares, if 2 cos |d_0| |d_j| > |d_0|^2; with differences of one length, if their
 * cosine is above 1/2.
 */
#ifndef ENG_DELTA_SIMILARITY_H
#define ENG_DELTA_SIMILARITY_H

#include <stdint.h>

#define ENG_DELTA_SIMILARITY_BINS 12u /* of distances j: 1, 2 to 3, 4 to 7, ... up to 4,095 */

/* Sums over rows and heads; all zero: none yet. */
struct eng_delta_similarity {
	uint64_t n[ENG_DELTA_SIMILARITY_BINS];
	double cosine[ENG_DELTA_SIMILARITY_BINS];
	double dense; /* |dense output|^2 */
	double whole; /* |d_j|^2 */
	double left;  /* |d_j - d_0|^2 */
};

/* One head's outputs: of the window's first row, and of row j of the window, j at least 1. */
struct eng_delta_similarity_pair {
	const float *dense_first, *sparse_first, *dense, *sparse;
};
void eng_delta_similarity_add(struct eng_delta_similarity *, const struct eng_delta_similarity_pair *, uint32_t dim,
                              uint32_t j);
void eng_delta_similarity_merge(struct eng_delta_similarity *, const struct eng_delta_similarity *other);

/* Mean cosine of a bin, and of all. NAN: there is no row. */
double eng_delta_similarity_bin(const struct eng_delta_similarity *, uint32_t bin);
double eng_delta_similarity_cosine(const struct eng_delta_similarity *);

/* |d|^2 over that of dense outputs: what sparse attention loses. NAN: there is no row. */
double eng_delta_similarity_missed(const struct eng_delta_similarity *);

/* What of that the correction leaves: below 1 it helps, above it does harm. 0 where nothing is missed. */
double eng_delta_similarity_left(const struct eng_delta_similarity *);

#endif
