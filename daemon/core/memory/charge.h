/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/memory/charge.h - host memory that a UID takes beside its pages: sequence memory, references, keys of
 * sealed prefixes, session pages, queues to its clients, writes to a pool's memfd where it has no segment, and pins
 * (pins.h).
 *
 * Clients write to sequence memory and pools by themselves, so these are measured and count as last measured.
 */
#ifndef SKV_CORE_CHARGE_H
#define SKV_CORE_CHARGE_H

#include "daemon/core/state/core-priv.h"

#define SKV_SESSION_BYTES 4096u /* of a session page */
#define SKV_SEQ_BYTES 4096u     /* of a sequence, at least */
/* What the daemon itself takes, including kernel memory: */
#define SKV_SEQ_ROOM UINT64_C(8192)
#define SKV_CLIENT_ROOM UINT64_C(8192)

/* All host memory charged to the account, pages included. */
uint64_t skv_charged(const struct skv_core *, uint32_t account);
/* May the account have `more` bytes? 0, or E_QUOTA. */
int skv_charge_allows(struct skv_core *, uint32_t account, uint64_t more);
/*
 * Charges `now` bytes for an object of the account, in place of *charged, the object's previous charge, which becomes
 * `now`.
 */
void skv_charge(struct skv_core *, uint32_t account, uint64_t *charged, uint64_t now);
/*
 * May the daemon take `more` bytes of its own for the account? What the cgroup allows the daemon is divided as rows of
 * tables are: an account may have as much as is left for all others. 0, or E_NOSPC.
 */
int skv_room_allows(struct skv_core *, uint32_t account, uint64_t more);
/* Memory that a file has; its holes cost nothing. */
uint64_t skv_file_bytes(int fd);
/* Measures and charges a sequence's memory, references and keys. */
void skv_charge_seq(struct skv_core *, uint32_t seq);
/*
 * Charges what the client has written to the memory of the session's newest sequence. A new sequence grows most, and
 * the next measuring may be a second away: so it is charged before the client is given more.
 */
void skv_charge_newest(struct skv_core *, uint32_t session);

#endif
