/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/score.h - how right an answer is.
 *
 * A reference answer is its tokens, eos among them where it has one. It falls into lines, each ending with a token that
 * has a '\n', or with eos; the eos behind a final '\n' is a line of its own.
 */
#ifndef ENG_SCORE_H
#define ENG_SCORE_H

#include <stdbool.h>
#include <stdint.h>
#include "engine/tokens.h"

struct eng_score {
	bool exact;   /* every token right, nothing after them */
	double line;  /* share of the reference's lines that are wholly right */
	double token; /* share of the reference's tokens that are right */
};

/* Forced decoding: got[i] is what the model would have said in place of want[i], both n long, n >= 1. */
struct eng_score eng_score_forced(const int32_t *got, const int32_t *want, uint32_t n, const struct eng_tokens *tokens);

/*
 * Free decoding: what the model said, of any length. Tokens are compared position by position, and line i
 * with line i wherever they stand, so that one byte too many spoils a line and not all after it.
 */
struct eng_score eng_score_free(const int32_t *got, uint32_t n_got, const int32_t *want, uint32_t n_want,
                                const struct eng_tokens *tokens);

/* ---- what the logits say, row by row of a forced answer -------------------------------------- */

#define ENG_TOP 8

struct eng_likelihood {
	uint32_t rows;
	double nll;             /* sum over the rows of −log p(true token), natural logarithm */
	double smallest_margin; /* smallest gap between the best and the second logit */
	uint32_t top[ENG_TOP];  /* the first row's best ids, best first ... */
	float top_logit[ENG_TOP];
};
#define ENG_LIKELIHOOD_NULL ((struct eng_likelihood){.rows = 0})

/* Take in one row of `vocab` logits (at least ENG_TOP) and the true token. */
void eng_likelihood_add(struct eng_likelihood *l, const float *logits, uint32_t vocab, int32_t want);

#endif
