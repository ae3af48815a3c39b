/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/memory/pins.h - host memory that the daemon takes for a user beside the rows of the state: keys of a
 * prompt during a lookup, jobs of workers, keys of prefixes on disk.
 *
 * It counts towards the user's quota like its sequences, and is charged before it is taken. Pins are in process memory,
 * not in the state, and the next daemon starts without them. Work may outlive its client, so pins are counted by UID
 * and need no account.
 */
#ifndef SKV_CORE_PINS_H
#define SKV_CORE_PINS_H

#include "daemon/core/core.h"

/*
 * Charges `bytes` more, which are added to *pinned, the total of the pin's holder. 0; E_QUOTA; E_NOSPC: the daemon's
 * cgroup has no room; -ENOMEM.
 */
int skv_core_pin(struct skv_core *, uid_t, uint64_t bytes, uint64_t *pinned);
/*
 * The same for a list of a sequence's pages, which is small beside the pages: a user at its quota can still park what
 * it has, also to make room for other users. If the quota has no room, the bytes are allowed as long as all pins of the
 * user are at most a sixteenth of it.
 */
int skv_core_pin_list(struct skv_core *, uid_t, uint64_t bytes, uint64_t *pinned);
/* Returns all of the holder's charge; *pinned becomes 0. A core that was given up (NULL) has forgotten the charge. */
void skv_core_unpin(struct skv_core *, uid_t, uint64_t *pinned);

/* For the core: bytes pinned for a user; forgets all pins. */
uint64_t skv_pinned(const struct skv_core *, uid_t);
void skv_pins_free_all(struct skv_core *);

#endif
