/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/park-queue.h - sequences that are to be parked, in a queue for each user; users have turns.
 *
 * Thousands of sequences may fall due at one moment. A parking takes memory of the daemon's, for a list of pages and for marks. So few of
 * a user's sequences are under way at once, and those that wait take nothing.
 */
#ifndef SKV_CORE_PARK_QUEUE_H
#define SKV_CORE_PARK_QUEUE_H

#include "daemon/core/core-priv.h"

/* -ENOMEM. */
int skv_park_queue_init(struct skv_park_queue *, uint32_t max_accounts);
void skv_park_queue_deinit(struct skv_park_queue *); /* zeroed is fine */

/* The only writer of `parking`: a sequence that is WANTED waits at the end of its user's queue. NOT: also before its row is given back. */
void skv_park_set(struct skv_core *, uint32_t seq, enum skv_parking);
/* May another one of this user's be started? */
bool skv_park_has_room(const struct skv_core *, uint32_t account);
/* The sequence that waits for longest, of the user whose turn it is among those that have room. SKV_NO_INDEX: there is none. */
uint32_t skv_park_next(struct skv_core *);
/* The user's sequences that are WANTED, then those that are STARTED: the first, and the one after `seq`. SKV_NO_INDEX: no more. */
uint32_t skv_park_first(const struct skv_core *, uint32_t account);
uint32_t skv_park_after(const struct skv_core *, uint32_t seq);
/* The user's prefixes that are READ: the first, from where park_next goes on. */
uint32_t skv_park_first_read(const struct skv_core *, uint32_t account);

#endif
