/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/draft.h - drafts for speculative decoding, from the text itself.
 *
 * Prompt lookup decoding: where the newest tokens of a text stand earlier in it, what followed them there is likely
 * to follow again. It costs no second model, and helps where answers repeat the prompt.
 */
#ifndef ENG_DRAFT_H
#define ENG_DRAFT_H

#include <stdint.h>

#define ENG_DRAFT_MAX 15u /* with the newest token, as many rows as a decode step may have */

/*
 * Up to `most` tokens that may follow text[0 ... n - 1]: those behind the latest earlier place where the last three
 * tokens stand, or else the last two. Their number; 0: there is no such place.
 */
uint32_t eng_draft(const int32_t *text, uint32_t n, uint32_t most, int32_t *ret);

/* How many of n drafted tokens are what the model chose: `chosen`[i] is what it says in place of draft[i]. */
uint32_t eng_draft_accepted(const int32_t *draft, const int32_t *chosen, uint32_t n);

#endif
