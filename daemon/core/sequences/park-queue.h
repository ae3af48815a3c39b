/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/sequences/park-queue.h - queues of sequences that are to be parked, one for each user; users take turns.
 *
 * Thousands of sequences may become due to be parked at the same moment, and parking a sequence takes daemon memory for
 * a list of pages and for marks. So only a few sequences of a user are being parked at once; the sequences that wait
 * for their turn take no memory.
 */
#ifndef SKV_CORE_PARK_QUEUE_H
#define SKV_CORE_PARK_QUEUE_H

#include "daemon/core/state/core-priv.h"

/* Makes empty queues. 0, -ENOMEM. */
int skv_park_queue_init(struct skv_park_queue *, uint32_t max_accounts);
void skv_park_queue_deinit(struct skv_park_queue *); /* accepts a zeroed struct */

/*
 * Sets a sequence's state of parking; no other function sets it. A sequence set to WANTED goes to the end of its user's
 * queue. Call skv_park_set() with SKV_PARK_NOT before the sequence's row is given back.
 */
void skv_park_set(struct skv_core *, uint32_t seq, enum skv_park_state);
/* Is the account below the limit of sequences that are being parked at once? */
bool skv_park_has_room(const struct skv_core *, uint32_t account);
/*
 * Chooses the next user, in turn, that has waiting sequences and is below the limit, and returns the sequence of that
 * user that has waited longest. SKV_NO_INDEX: there is none.
 */
uint32_t skv_park_next(struct skv_core *);
/*
 * Iterate over the user's WANTED sequences and then its STARTED sequences: the first, and the one after `seq`.
 * SKV_NO_INDEX: there is none.
 */
uint32_t skv_park_first(const struct skv_core *, uint32_t account);
uint32_t skv_park_after(const struct skv_core *, uint32_t seq);
/* The first of the user's prefixes that are being read (SKV_PARK_READ); `park_next` leads to the next one. */
uint32_t skv_park_first_read(const struct skv_core *, uint32_t account);

#endif
