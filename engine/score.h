/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/score.h - scores a model's answers against reference answers.
 *
 * A reference answer is a list of tokens, which may end with eos. A reference answer consists of lines: a newlines
 * with a token that contains '\n', or with eos. An eos that follows a '\n' is a line of its own.
 */
#ifndef ENG_SCORE_H
#define ENG_SCORE_H

#include <stdbool.h>
#include <stdint.h>
#include "engine/tokens.h"

struct eng_score {
	bool exact;   /* every token of the reference is right, and the answer has no further token */
	double line;  /* share of the reference's lines that are completely right */
	double token; /* share of the reference's tokens that are right */
};

/*
 * Scores forced decoding: got[i] is the token that the model chose at the position of want[i]. Both have n >= 1
 * elements.
 */
struct eng_score eng_score_forced(const int32_t *got, const int32_t *want, uint32_t n, const struct eng_tokens *tokens);

/*
 * Scores free decoding, in which the model's answer may have any length. Tokens are compared by position. Line i of the
 * answer is compared with line i of the reference, even if the two begin at different positions. So one token too many
 * makes only one line wrong, and not all lines after it.
 */
struct eng_score eng_score_free(const int32_t *got, uint32_t n_got, const int32_t *want, uint32_t n_want,
                                const struct eng_tokens *tokens);

/* ---- statistics of the logits of a forced answer ------------------------------------------------ */

#define ENG_TOP 8

struct eng_likelihood {
	uint32_t rows;
	double nll;             /* sum over rows of −log p(true token), natural logarithm */
	double smallest_margin; /* smallest difference between the largest and the second largest logit of a row */
	uint32_t top[ENG_TOP];  /* the ids with the largest logits of the first row, in descending order */
	float top_logit[ENG_TOP];
};
#define ENG_LIKELIHOOD_NULL ((struct eng_likelihood){.rows = 0})

/* Adds one row: `vocab` logits (at least ENG_TOP) and the true token `want`. */
void eng_likelihood_add(struct eng_likelihood *l, const float *logits, uint32_t vocab, int32_t want);

#endif
