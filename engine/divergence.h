/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/divergence.h - how far a policy's next-token distributions are from those of dense attention.
 *
 * The accuracy of answers tells little about long texts, in which every token counts. Here the next-token distributions
 * are compared at each row of a text that is fed to the model token by token (forced decoding). P is the distribution
 * under dense attention (the reference), Q the distribution under the policy, and t the true next token:
 *     KL(P || Q) = Σ_i P(i) (log P(i) − log Q(i)), natural logarithm;
 *     agreement: argmax P = argmax Q;   change of NLL: log P(t) − log Q(t).
 */
#ifndef ENG_DIVERGENCE_H
#define ENG_DIVERGENCE_H

#include <stdint.h>

/* Sums over rows; `rows` is the number of rows, `agree` that of rows with the same argmax. */
struct eng_divergence {
	uint32_t rows, agree;
	double kl, nll_change;
};

/*
 * Adds one row: `vocab` logits under the reference and under the policy, and the true token `want`. Different threads
 * may call it for different sums.
 */
void eng_divergence_add(struct eng_divergence *d, const float *reference, const float *logits, uint32_t vocab, int32_t want);

#endif
