/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/error-similarity.h"

#include <math.h>

void eng_delta_similarity_add(struct eng_delta_similarity *a, const struct eng_delta_similarity_pair *p, uint32_t dim,
                              uint32_t j)
{
	uint32_t bin = 31 - (uint32_t)__builtin_clz(j);
	double first = 0, both = 0, own = 0;

	bin = bin < ENG_DELTA_SIMILARITY_BINS ? bin : ENG_DELTA_SIMILARITY_BINS - 1;
	for (uint32_t i = 0; i < dim; i++) {
		double d0 = (double)p->dense_first[i] - p->sparse_first[i], d = (double)p->dense[i] - p->sparse[i];

		first += d0 * d0;
		both += d0 * d;
		own += d * d;
		a->dense += (double)p->dense[i] * p->dense[i];
	}
	a->whole += own;
	a->left += first - 2 * both + own;
	a->n[bin]++;
	if (first > 0 && own > 0)
		a->cosine[bin] += both / sqrt(first * own);
}

void eng_delta_similarity_merge(struct eng_delta_similarity *a, const struct eng_delta_similarity *other)
{
	for (uint32_t i = 0; i < ENG_DELTA_SIMILARITY_BINS; i++) {
		a->n[i] += other->n[i];
		a->cosine[i] += other->cosine[i];
	}
	a->dense += other->dense;
	a->whole += other->whole;
	a->left += other->left;
}

double eng_delta_similarity_bin(const struct eng_delta_similarity *a, uint32_t bin)
{
	return a->n[bin] ? a->cosine[bin] / (double)a->n[bin] : NAN;
}

double eng_delta_similarity_cosine(const struct eng_delta_similarity *a)
{
	double sum = 0;
	uint64_t n = 0;

	for (uint32_t i = 0; i < ENG_DELTA_SIMILARITY_BINS; i++) {
		sum += a->cosine[i];
		n += a->n[i];
	}
	return n ? sum / (double)n : NAN;
}

double eng_delta_similarity_missed(const struct eng_delta_similarity *a)
{
	return a->dense > 0 ? a->whole / a->dense : NAN;
}

double eng_delta_similarity_left(const struct eng_delta_similarity *a)
{
	return a->whole > 0 ? a->left / a->whole : 0;
}
