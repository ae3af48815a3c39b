/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/divergence.h - how far a policy's next-token distributions are from those of dense attention.
 *
 * Accuracy on tasks tells little about a long text, in which every token counts. Here each row of a forced text
 * compares whole distributions. P is the distribution of the reference (dense attention), Q that of the policy, t the
 * true token:
 *     KL(P || Q) = Σ_i P(i) (log P(i) − log Q(i)), natural logarithm;
 *     agreement: argmax P = argmax Q;   change of NLL: log P(t) − log Q(t).
 */
#ifndef ENG_DIVERGENCE_H
#define ENG_DIVERGENCE_H

#include <stdint.h>

/* Sums over rows. */
struct eng_divergence {
	uint32_t rows, agree;
	double kl, nll_change;
};

/* Adds one row: `vocab` logits of the reference and of the policy, and the true token. Any thread may call it. */
void eng_divergence_add(struct eng_divergence *d, const float *reference, const float *logits, uint32_t vocab, int32_t want);

#endif
