/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/memory/charge.h - charges a UID for the host memory that it takes beside its pages: sequence memory,
 * references, keys of sealed prefixes, session pages, queues to its clients, writes to a pool's memfd where it has no
 * segment, and pins (pins.h).
 *
 * Clients write to sequence memory and pools without asking the daemon. So the daemon measures these files from time to
 * time and charges the size measured last.
 */
#ifndef SKV_CORE_CHARGE_H
#define SKV_CORE_CHARGE_H

#include "daemon/core/state/core-priv.h"

#define SKV_SESSION_BYTES 4096u /* bytes charged for a session page */
#define SKV_SEQ_BYTES 4096u     /* least bytes that a sequence's memory takes */
/* Bytes that the daemon itself takes for a sequence and for a client, including kernel memory: */
#define SKV_SEQ_ROOM UINT64_C(8192)
#define SKV_CLIENT_ROOM UINT64_C(8192)

/* All host memory charged to the account, pages included. */
uint64_t skv_charged(const struct skv_core *, uint32_t account);
/* May the account be charged for `more` additional bytes? 0, or E_QUOTA. */
int skv_charge_allows(struct skv_core *, uint32_t account, uint64_t more);
/*
 * Charges the account `now` bytes for an object. *charged is the object's previous charge, which this one replaces;
 * *charged becomes `now`.
 */
void skv_charge(struct skv_core *, uint32_t account, uint64_t *charged, uint64_t now);
/*
 * May the daemon take `more` bytes of its cgroup's memory for the account? That memory is divided like the rows of a
 * table (skv_share_allows()): an account may have as much as it leaves for all others. 0, or E_NOSPC.
 */
int skv_room_allows(struct skv_core *, uint32_t account, uint64_t more);
/* Bytes of memory that a memfd takes; its holes take none. */
uint64_t skv_file_bytes(int fd);
/* Measures and charges a sequence's memory, references and keys. */
void skv_charge_seq(struct skv_core *, uint32_t seq);
/*
 * Measures and charges the memory of the session's newest sequence. A new sequence grows most, and the next regular
 * measurement may be a second away: so the sequence is charged before the client is given more pages.
 */
void skv_charge_newest(struct skv_core *, uint32_t session);

#endif
