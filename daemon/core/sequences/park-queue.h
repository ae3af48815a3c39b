/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/sequences/park-queue.h - sequences that are to be parked, in a queue for each user; users take turns.
 *
 * Thousands of sequences may become due at one moment, and parking takes daemon memory for a list of pages and for
 * marks. So only a few of a user's sequences are being parked at once; sequences that wait take no memory.
 */
#ifndef SKV_CORE_PARK_QUEUE_H
#define SKV_CORE_PARK_QUEUE_H

#include "daemon/core/state/core-priv.h"

/* -ENOMEM. */
int skv_park_queue_init(struct skv_park_queue *, uint32_t max_accounts);
void skv_park_queue_deinit(struct skv_park_queue *); /* zeroed is fine */

/*
 * The only writer of `parking`. A sequence set to WANTED goes to the end of its user's queue. Set SKV_PARK_NOT before
 * the sequence's row is given back.
 */
void skv_park_set(struct skv_core *, uint32_t seq, enum skv_park_state);
/* May another sequence of this user be started? */
bool skv_park_has_room(const struct skv_core *, uint32_t account);
/*
 * The sequence that has waited longest, of the next user by turn among those that have room. SKV_NO_INDEX: there is
 * none.
 */
uint32_t skv_park_next(struct skv_core *);
/* The user's WANTED sequences, then its STARTED ones: the first, and the one after `seq`. SKV_NO_INDEX: no more. */
uint32_t skv_park_first(const struct skv_core *, uint32_t account);
uint32_t skv_park_after(const struct skv_core *, uint32_t seq);
/* The first of the user's prefixes in state READ; park_next leads to the others. */
uint32_t skv_park_first_read(const struct skv_core *, uint32_t account);

#endif
