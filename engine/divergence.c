/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/divergence.h"

#include <math.h>
#include "engine/ops.h"

/* Returns log Σ exp(x). `top` is the largest x, which is subtracted to avoid overflow. */
static double log_sum_exp(const float *x, uint32_t n, float top)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += exp((double)x[i] - top);
	return log(sum) + top;
}

void eng_divergence_add(struct eng_divergence *d, const float *reference, const float *logits, uint32_t vocab, int32_t want)
{
	uint32_t best = eng_argmax(reference, vocab), other = eng_argmax(logits, vocab);
	double p = log_sum_exp(reference, vocab, reference[best]), q = log_sum_exp(logits, vocab, logits[other]);
	double kl = 0;

	for (uint32_t i = 0; i < vocab; i++)
		kl += exp(reference[i] - p) * ((reference[i] - p) - (logits[i] - q));
	d->rows++;
	d->agree += best == other;
	d->kl += kl;
	d->nll_change += (reference[want] - p) - (logits[want] - q);
}
