/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/score.h"

#include <math.h>
#include <string.h>
#include "engine/ops.h"

/* Returns the index after the last token of the line that begins at index `at`; n if no token ends the line. */
static uint32_t line_end(const int32_t *ids, uint32_t at, uint32_t n, const struct eng_tokens *tokens)
{
	while (at < n && !eng_tokens_ends_line(tokens, ids[at]))
		at++;
	return at < n ? at + 1 : n;
}

struct eng_score eng_score_forced(const int32_t *got, const int32_t *want, uint32_t n, const struct eng_tokens *tokens)
{
	uint32_t right = 0, lines = 0, lines_right = 0;

	for (uint32_t at = 0, end; at < n; at = end) {
		uint32_t here = 0;

		end = line_end(want, at, n, tokens);
		for (uint32_t i = at; i < end; i++)
			here += got[i] == want[i];
		right += here;
		lines++;
		lines_right += here == end - at;
	}
	return (struct eng_score){right == n, (double)lines_right / lines, (double)right / n};
}

struct eng_score eng_score_free(const int32_t *got, uint32_t n_got, const int32_t *want, uint32_t n_want,
                                const struct eng_tokens *tokens)
{
	uint32_t right = 0, lines = 0, lines_right = 0, got_at = 0;

	for (uint32_t i = 0; i < n_want && i < n_got; i++)
		right += got[i] == want[i];
	for (uint32_t at = 0, end; at < n_want; at = end) {
		uint32_t got_end = line_end(got, got_at, n_got, tokens);

		end = line_end(want, at, n_want, tokens);
		lines++;
		lines_right += got_end - got_at == end - at &&
		               !memcmp(got + got_at, want + at, (end - at) * sizeof(*got));
		got_at = got_end;
	}
	return (struct eng_score){right == n_want && n_got == n_want, (double)lines_right / lines,
	                          (double)right / n_want};
}

void eng_likelihood_add(struct eng_likelihood *l, const float *logits, uint32_t vocab, int32_t want)
{
	uint32_t top[ENG_TOP] = {0}, n = 0;
	double margin;

	/*
	 * Inserts each id into a short sorted list. An id goes after those with equal logits, so of equal logits the
	 * lower id is first.
	 */
	for (uint32_t i = 0; i < vocab; i++) {
		uint32_t at = n;

		while (at > 0 && logits[i] > logits[top[at - 1]])
			at--;
		if (at == ENG_TOP)
			continue;
		if (n < ENG_TOP)
			n++;
		memmove(top + at + 1, top + at, (n - 1 - at) * sizeof(*top));
		top[at] = i;
	}
	margin = (double)logits[top[0]] - logits[top[1]];
	for (uint32_t i = 0; !l->rows && i < n; i++) {
		l->top[i] = top[i];
		l->top_logit[i] = logits[top[i]];
	}
	if (!l->rows || margin < l->smallest_margin)
		l->smallest_margin = margin;
	l->nll += eng_nll(logits, vocab, (uint32_t)want);
	l->rows++;
}
