/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/draft.h - drafts for speculative decoding, taken from the text itself.
 *
 * This is prompt lookup decoding: if the newest tokens of a text also occur earlier in the text, the tokens that
 * followed the earlier occurrence are likely to follow again. Prompt lookup needs no second model. The drafts make
 * decoding faster if answers repeat parts of the prompt.
 */
#ifndef ENG_DRAFT_H
#define ENG_DRAFT_H

#include <stdint.h>

/* most tokens of a draft, one less than the most rows of a decode step (its first row is the newest token) */
#define ENG_DRAFT_MAX 15u

/*
 * Writes up to `most` tokens that may follow text[0 ... n - 1]: the tokens after the latest earlier occurrence of the
 * text's last three tokens or, if there is none, of its last two tokens. Returns the number of tokens written; 0 if
 * neither occurs earlier.
 */
uint32_t eng_draft(const int32_t *text, uint32_t n, uint32_t most, int32_t *ret);

/*
 * Returns how many of the n drafted tokens are accepted: those before the first one that differs from the model's
 * choice. chosen[i] is the token that the model chose at the position of draft[i].
 */
uint32_t eng_draft_accepted(const int32_t *draft, const int32_t *chosen, uint32_t n);

#endif
