/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/score.h - scores answers.
 *
 * A reference answer is a list of tokens, with eos if it has one. It consists of lines; each ends with a token that
 * contains '\n', or with eos. An eos after a final '\n' is a line of its own.
 */
#ifndef ENG_SCORE_H
#define ENG_SCORE_H

#include <stdbool.h>
#include <stdint.h>
#include "engine/tokens.h"

struct eng_score {
	bool exact;   /* every token is right, and no token follows */
	double line;  /* share of the reference's lines that are completely right */
	double token; /* share of the reference's tokens that are right */
};

/* Forced decoding: got[i] is the token that the model chose at the position of want[i], both n long, n >= 1. */
struct eng_score eng_score_forced(const int32_t *got, const int32_t *want, uint32_t n, const struct eng_tokens *tokens);

/*
 * Free decoding: the model's answer may have any length. Tokens are compared by position, and lines by number
 * wherever they begin, so that one token too many spoils one line and not all after it.
 */
struct eng_score eng_score_free(const int32_t *got, uint32_t n_got, const int32_t *want, uint32_t n_want,
                                const struct eng_tokens *tokens);

/* ---- statistics of the logits, row by row of a forced answer --------------------------------- */

#define ENG_TOP 8

struct eng_likelihood {
	uint32_t rows;
	double nll;             /* sum over the rows of −log p(true token), natural logarithm */
	double smallest_margin; /* smallest gap between the largest and the second logit */
	uint32_t top[ENG_TOP];  /* the best ids of the first row, best first ... */
	float top_logit[ENG_TOP];
};
#define ENG_LIKELIHOOD_NULL ((struct eng_likelihood){.rows = 0})

/* Adds one row of `vocab` logits (at least ENG_TOP) and the true token. */
void eng_likelihood_add(struct eng_likelihood *l, const float *logits, uint32_t vocab, int32_t want);

#endif
