/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/memory/pins.h - pins charge a user for host memory that the daemon takes for it beside the rows of the
 * state: keys of a prompt during a lookup, jobs of workers, keys of prefixes on disk.
 *
 * Pinned memory counts towards the user's quota, as the memory of its sequences does, and is charged before it is
 * taken. Pins are in process memory, not in the state: the next daemon starts without them. Work may outlive the client
 * that asked for it, so pins are counted by UID and need no account.
 */
#ifndef SKV_CORE_PINS_H
#define SKV_CORE_PINS_H

#include "daemon/core/core.h"

/*
 * Charges the user `bytes` more and adds them to *pinned, the total that the caller has pinned for one piece of work.
 * 0; E_QUOTA; E_NOSPC: the daemon's cgroup has no room; -ENOMEM.
 */
int skv_core_pin(struct skv_core *, uid_t, uint64_t bytes, uint64_t *pinned);
/*
 * skv_core_pin() for the memory of a list of a sequence's pages. A user at its quota must still be able to park its
 * sequences, also to make room for other users, and a list is small beside the pages. So the bytes are allowed beyond
 * the quota as long as all pins of the user are at most a sixteenth of the quota.
 */
int skv_core_pin_list(struct skv_core *, uid_t, uint64_t bytes, uint64_t *pinned);
/* Refunds the *pinned bytes; *pinned becomes 0. Without a core (NULL: it was freed) there is no charge to refund. */
void skv_core_unpin(struct skv_core *, uid_t, uint64_t *pinned);

/* Bytes pinned for a user; and a function that forgets the pins of all users. For the core alone. */
uint64_t skv_pinned(const struct skv_core *, uid_t);
void skv_pins_free_all(struct skv_core *);

#endif
