/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/sequences/idle.h - idle sequences: named sequences without a holder, in a list for each user, the least
 * recently used first.
 *
 * With these lists the sequence that has to make room is found at once. A search of all sequences would take time for
 * each refused request, in proportion to the number of all users' sequences.
 */
#ifndef SKV_CORE_IDLE_H
#define SKV_CORE_IDLE_H

#include "daemon/core/state/core-priv.h"

/* Makes the lists and enters all idle sequences of the state. -ENOMEM. */
int skv_idle_init(struct skv_core *);
void skv_idle_deinit(struct skv_idle *); /* accepts a zeroed struct */

/*
 * Call skv_idle_update() when the sequence's holder or name has changed, or its `used` has been set to a value larger
 * than all before. A named sequence without a holder is moved to the end of its user's list; any other sequence is
 * removed.
 */
void skv_idle_update(struct skv_core *, uint32_t seq);
/* Removes a sequence from its list. Call skv_idle_remove() before the sequence's row is given back. */
void skv_idle_remove(struct skv_core *, uint32_t seq);
/* The first sequence of an account's list, and the sequence after `seq` in its list; SKV_NO_INDEX: there is none. */
uint32_t skv_idle_first(const struct skv_core *, uint32_t account);
uint32_t skv_idle_after(const struct skv_core *, uint32_t seq);

#endif
