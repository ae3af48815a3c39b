/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/operations/age.h - sequences without a holder make room. See age.c. */
#ifndef SKV_CORE_AGE_H
#define SKV_CORE_AGE_H

#include "daemon/core/state/core-priv.h"

/*
 * The pool's memory has no room for `pages` more pages: parks or drops a sequence, if this pool's user may ask for
 * that. True: pages come free in turns or when the sequence is parked, or those of a sequence or client that is already
 * ending do.
 */
bool skv_age_make_room(struct skv_core *, uint32_t pool, uint64_t pages);
/*
 * The user's quota in that memory is used up: parks one of the user's own sequences. True: one is being parked or will
 * be.
 */
bool skv_age_make_own_room(struct skv_core *, uint32_t pool);
/*
 * If the user's prefixes exceed their share of the quotas, parks or drops one more of them; beyond the quota of
 * sequences, as many as there are too many. True: the user's sequences were searched for that.
 */
bool skv_age_trim_prefixes(struct skv_core *, uint32_t account);

#endif
