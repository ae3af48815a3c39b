/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/pins.h - host memory that the daemon takes for a user beside the rows of the state: keys of a prompt for as long as it is
 * looked for, what a worker is told, keys of prefixes on disk.
 *
 * It counts in the user's quota as its sequences do, and is charged before it is taken. It is the process's: the state does not have it,
 * and the next daemon begins without. Work may outlive its client, so it is counted by UID and needs no account.
 */
#ifndef SKV_CORE_PINS_H
#define SKV_CORE_PINS_H

#include "daemon/core/core.h"

/*
 * Charge so many bytes more, which are added to *pinned, the holder's. 0; E_QUOTA; E_NOSPC: the daemon's cgroup has no room; -ENOMEM.
 */
int skv_core_pin(struct skv_core *, uid_t, uint64_t bytes, uint64_t *pinned);
/*
 * The same for a list of a sequence's pages, which is small beside them: who is at its quota can still park what it has, and what is parked
 * for others is. Where the quota has no room, there is some as long as all that is pinned for the user is a sixteenth of it.
 */
int skv_core_pin_list(struct skv_core *, uid_t, uint64_t bytes, uint64_t *pinned);
/* The holder gives all of it back; *pinned is 0 then. A core that was given up (NULL) has forgotten it. */
void skv_core_unpin(struct skv_core *, uid_t, uint64_t *pinned);

/* For the core: what is pinned for a user; all is forgotten. */
uint64_t skv_pinned(const struct skv_core *, uid_t);
void skv_pins_free_all(struct skv_core *);

#endif
