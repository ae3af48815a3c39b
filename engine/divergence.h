/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/divergence.h - how far a policy's next-token distributions are from dense attention's.
 *
 * Accuracy on tasks says little about a long text, where every token counts: here each row of a forced text compares
 * the whole distribution. P is the reference's (dense attention's), Q the policy's, t the true token:
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

/* Take in one row: `vocab` logits of the reference and of the policy, and the true token. Any thread. */
void eng_divergence_add(struct eng_divergence *d, const float *reference, const float *logits, uint32_t vocab, int32_t want);

#endif
