/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/draft.h - drafts for speculative decoding, taken from the text itself.
 *
 * Prompt lookup decoding: if the newest tokens of a text occur earlier in it, the tokens that followed them there are
 * likely to follow again. It needs no second model, and helps if answers repeat the prompt.
 */
#ifndef ENG_DRAFT_H
#define ENG_DRAFT_H

#include <stdint.h>

#define ENG_DRAFT_MAX 15u /* with the newest token, the most rows that a decode step may have */

/*
 * Writes up to `most` tokens that may follow text[0 ... n - 1]: those after the latest earlier occurrence of the last
 * three tokens, or else of the last two. Returns their number; 0: no such occurrence.
 */
uint32_t eng_draft(const int32_t *text, uint32_t n, uint32_t most, int32_t *ret);

/*
 * Returns how many of n drafted tokens equal the model's choice; chosen[i] is the token that the model chose at the
 * position of draft[i].
 */
uint32_t eng_draft_accepted(const int32_t *draft, const int32_t *chosen, uint32_t n);

#endif
