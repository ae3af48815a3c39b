/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/operations/age.h - parks or drops sequences without a holder to make room. See age.c. */
#ifndef SKV_CORE_AGE_H
#define SKV_CORE_AGE_H

#include "daemon/core/state/core-priv.h"

/*
 * Called when a memory has no room for `pages` more pages of the pool: parks or drops a sequence, if the pool's user
 * may make others lose one or has one of its own. True: pages will come free, of this sequence or of a sequence or
 * client that is being removed already.
 */
bool skv_age_make_room(struct skv_core *, uint32_t pool, uint64_t pages);
/*
 * Called when the quota of the pool's user in that memory is used up: parks one of the user's own sequences. True: a
 * sequence is being parked or will be.
 */
bool skv_age_make_own_room(struct skv_core *, uint32_t pool);
/*
 * Parks or drops one of the user's sealed prefixes if prefixes exceed their share of the user's quotas; if the user has
 * more sequences than its quota, as many prefixes as it has sequences too many. True: the call searched the user's
 * sequences for prefixes.
 */
bool skv_age_trim_prefixes(struct skv_core *, uint32_t account);

#endif
