/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/age.h - sequences that nobody holds make room. See age.c. */
#ifndef SKV_CORE_AGE_H
#define SKV_CORE_AGE_H

#include "daemon/core/core-priv.h"

/*
 * The memory of a pool has no room for so many pages more: may a sequence go, so that this pool's user gets its part? Then its
 * pages come free in turns, or when it is parked. True: they do, or those of something that ends already.
 */
bool skv_age_make_room(struct skv_core *, uint32_t pool, uint64_t pages);
/* The user's quota there is used up: may one of its own be parked? True: it is, or will be. */
bool skv_age_make_own_room(struct skv_core *, uint32_t pool);
/*
 * One more prefix makes room, parked or dropped, where the user's prefixes take more than they are to; beyond the quota of sequences as many
 * as there are too many. True: the user's sequences were looked at for it.
 */
bool skv_age_trim_prefixes(struct skv_core *, uint32_t account);

#endif
