/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/age.h - sequences that nobody holds make room. See age.c. */
#ifndef SKV_CORE_AGE_H
#define SKV_CORE_AGE_H

#include "daemon/core/core-priv.h"

/*
 * The memory of a pool is used up: may one of another user's sequences go, so that this pool's user gets its part? Then its
 * pages come free in turns. True: they do, or those of something that ends already.
 */
bool skv_age_make_room(struct skv_core *, uint32_t pool);

#endif
