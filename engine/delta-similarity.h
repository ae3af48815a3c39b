/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/delta-similarity.h - how similar the errors of neighbouring rows are; corrected sparse prefill depends on
 * it.
 *
 * A row's difference d is a head's output of dense attention minus its output of sparse attention. The first of each
 * gamma rows is computed densely, and its difference d_0 is added to the outputs of the other rows: the error of row
 * j changes from d_j to d_j - d_0. Its square is smaller than that of d_j if 2 cos |d_0| |d_j| > |d_0|^2; for
 * differences of equal length, if their cosine is above 1/2.
 */
#ifndef ENG_DELTA_SIMILARITY_H
#define ENG_DELTA_SIMILARITY_H

#include <stdint.h>

#define ENG_DELTA_SIMILARITY_BINS 12u /* of distances j: 1, 2 to 3, 4 to 7, ... 2,048 and more */

/* Sums over rows and heads; initially all zero. */
struct eng_delta_similarity {
	uint64_t n[ENG_DELTA_SIMILARITY_BINS];
	double cosine[ENG_DELTA_SIMILARITY_BINS];
	double dense; /* |dense output|^2 */
	double whole; /* |d_j|^2 */
	double left;  /* |d_j - d_0|^2 */
};

/* One head's outputs for the first row of a window and for row j of it, j at least 1. */
struct eng_delta_similarity_pair {
	const float *dense_first, *sparse_first, *dense, *sparse;
};
void eng_delta_similarity_add(struct eng_delta_similarity *, const struct eng_delta_similarity_pair *, uint32_t dim,
                              uint32_t j);
void eng_delta_similarity_merge(struct eng_delta_similarity *, const struct eng_delta_similarity *other);

/* Mean cosine of one bin, and of all. NAN: no rows. */
double eng_delta_similarity_bin(const struct eng_delta_similarity *, uint32_t bin);
double eng_delta_similarity_cosine(const struct eng_delta_similarity *);

/* |d|^2 over the square of the dense outputs: the relative error of sparse attention. NAN: no rows. */
double eng_delta_similarity_missed(const struct eng_delta_similarity *);

/* The share of that error which the correction leaves: below 1 it helps, above 1 it harms. 0 if there is no error. */
double eng_delta_similarity_left(const struct eng_delta_similarity *);

#endif
