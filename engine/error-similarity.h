/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/error-similarity.h - measures how similar the errors of sparse attention are in neighbouring rows. Corrected
 * sparse prefill (Delta Attention) helps only if they are similar.
 *
 * The difference d of a row is a head's output of dense attention minus its output of sparse attention. Of each window
 * of gamma rows the first is also computed with dense attention, and its difference d_0 is added to the sparse outputs
 * of the other rows. So the error of row j changes from d_j to d_j - d_0. The correction makes the square of the error
 * smaller if 2 cos |d_0| |d_j| > |d_0|^2, where cos is the cosine between d_0 and d_j; if d_0 and d_j have the same
 * length, a cosine above 1/2 is enough.
 */
#ifndef ENG_ERROR_SIMILARITY_H
#define ENG_ERROR_SIMILARITY_H

#include <stdint.h>

#define ENG_DELTA_SIMILARITY_BINS 12u /* number of bins of the distance j: 1, 2 to 3, 4 to 7, ... 2,048 and more */

/* Sums over rows and heads. All zeros is the initial state. */
struct eng_delta_similarity {
	uint64_t n[ENG_DELTA_SIMILARITY_BINS];
	double cosine[ENG_DELTA_SIMILARITY_BINS];
	double dense; /* square of the dense output, |out_j|^2 */
	double whole; /* square of the error without correction, |d_j|^2 */
	double left;  /* square of the error with correction, |d_j - d_0|^2 */
};

/*
 * One head's outputs, dense and sparse, for the first row of a window and for row j of the same window, j at least 1.
 */
struct eng_delta_similarity_pair {
	const float *dense_first, *sparse_first, *dense, *sparse;
};
void eng_delta_similarity_add(struct eng_delta_similarity *, const struct eng_delta_similarity_pair *, uint32_t dim,
                              uint32_t j);
void eng_delta_similarity_merge(struct eng_delta_similarity *, const struct eng_delta_similarity *other);

/* Return the mean cosine of one bin, and of all bins. NAN: no rows were added. */
double eng_delta_similarity_bin(const struct eng_delta_similarity *, uint32_t bin);
double eng_delta_similarity_cosine(const struct eng_delta_similarity *);

/*
 * Returns the square of the uncorrected errors, relative to the square of the dense outputs. NAN: no rows were added.
 */
double eng_delta_similarity_missed(const struct eng_delta_similarity *);

/*
 * Returns the square of the corrected errors, relative to that of the uncorrected errors: below 1 the correction helps,
 * above 1 it does harm. 0 if there is no error.
 */
double eng_delta_similarity_left(const struct eng_delta_similarity *);

#endif
