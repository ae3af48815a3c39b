/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/idle.h - named sequences that nobody holds, in a list for each user, the least recently used first.
 *
 * The one that is to make room is found without a look at all sequences: that would be a time for each request that is refused, however many
 * sequences others have.
 */
#ifndef SKV_CORE_IDLE_H
#define SKV_CORE_IDLE_H

#include "daemon/core/core-priv.h"

/* All that are in the state are entered. -ENOMEM. */
int skv_idle_init(struct skv_core *);
void skv_idle_deinit(struct skv_idle *); /* zeroed is fine */

/* Its holder, its name, or `used`, which is larger than any before, has changed: if nobody holds it, it is the user's last. */
void skv_idle_update(struct skv_core *, uint32_t seq);
/* Before its row is given back. */
void skv_idle_remove(struct skv_core *, uint32_t seq);
/* The account's first, and the one after `seq`; SKV_NO_INDEX: no more. */
uint32_t skv_idle_first(const struct skv_core *, uint32_t account);
uint32_t skv_idle_after(const struct skv_core *, uint32_t seq);

#endif
