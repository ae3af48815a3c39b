/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/sequences/sequences.h - sequences: made, found, held, released, removed. */
#ifndef SKV_CORE_SEQUENCES_H
#define SKV_CORE_SEQUENCES_H

#include "daemon/core/sequences/validate.h"
#include "daemon/core/state/core-priv.h"

void skv_seq_remove(struct skv_core *, uint32_t seq);
/* Removes a sequence in turns: continues at *at (0 at first) as far as *units go. SKV_DONE or SKV_GOES_ON. */
enum skv_progress skv_seq_remove_some(struct skv_core *, uint32_t seq, uint32_t *at, uint32_t *units);
/*
 * skv_seq_hold() makes the session the holder of the sequence; skv_seq_unhold() leaves the sequence without a holder.
 */
void skv_seq_hold(struct skv_core *, uint32_t seq, uint32_t session);
void skv_seq_unhold(struct skv_core *, uint32_t seq);
/* Returns the row of the sequence with this name and the model's name and rank; SKV_NO_INDEX: there is none. */
uint32_t skv_seq_find(const struct skv_core *, uint32_t account, const struct skv_model *, const char *name);
/* May a new sequence of the model have this name? 0, E_INVALID, E_EXIST. */
int skv_seq_check_name(struct skv_core *, uint32_t account, const struct skv_model *, const char *name);
/*
 * Does the user's quota of sequences allow one more? `seals`: the new sequence is a sealed prefix, and all of the
 * user's sequences count. `seals` false: the user's sealed prefixes do not count, since they make room for the new
 * sequence. 0, E_QUOTA.
 */
int skv_seq_quota_allows(struct skv_core *, uint32_t account, bool seals);
/* Make an empty sequence: without a holder, or held by the session. 0, or an error of skv_core_seq_new(). */
int skv_seq_make(struct skv_core *, uint32_t pool, const struct skv_model *, const char *name, uint32_t max_tokens,
                 uint32_t *ret_seq);
int skv_seq_make_held(struct skv_core *, uint32_t session, const char *name, uint32_t max_tokens, uint32_t *ret_seq);
struct skv_core_seq_info skv_seq_info(const struct skv_core *, uint32_t seq);

#endif
