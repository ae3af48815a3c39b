/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/sequences/idle.h - named sequences without a holder, in a list for each user, the least recently used
 * first.
 *
 * So the sequence that is to make room is found without searching all sequences: a search would cost time for each
 * refused request, in proportion to the number of all users' sequences.
 */
#ifndef SKV_CORE_IDLE_H
#define SKV_CORE_IDLE_H

#include "daemon/core/state/core-priv.h"

/* Enters all sequences of the state. -ENOMEM. */
int skv_idle_init(struct skv_core *);
void skv_idle_deinit(struct skv_idle *); /* zeroed is fine */

/*
 * To be called when the sequence's holder, name, or `used` (larger than any before) has changed: a named sequence
 * without a holder becomes the user's last.
 */
void skv_idle_update(struct skv_core *, uint32_t seq);
/* To be called before its row is given back. */
void skv_idle_remove(struct skv_core *, uint32_t seq);
/* The account's first sequence, and the one after `seq`; SKV_NO_INDEX: no more. */
uint32_t skv_idle_first(const struct skv_core *, uint32_t account);
uint32_t skv_idle_after(const struct skv_core *, uint32_t seq);

#endif
