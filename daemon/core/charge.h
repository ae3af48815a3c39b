/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/charge.h - host memory that a UID takes beside its pages: memory of its sequences, their references, keys of sealed
 * prefixes, session pages, queues to its clients, what was written into host memory where it has no segment, and pins (pins.h).
 *
 * Clients write into sequence memory and pools by themselves, so these are measured: they count as they were found last.
 */
#ifndef SKV_CORE_CHARGE_H
#define SKV_CORE_CHARGE_H

#include "daemon/core/core-priv.h"

#define SKV_SESSION_BYTES 4096u /* of a session page */
#define SKV_SEQ_BYTES 4096u     /* of a sequence, at least */
/* What the daemon takes itself, with the kernel's part: */
#define SKV_SEQ_ROOM UINT64_C(8192)
#define SKV_CLIENT_ROOM UINT64_C(8192)

/* All of its host memory, pages included. */
uint64_t skv_charged(const struct skv_core *, uint32_t account);
/* May it have so many bytes more? 0, or E_QUOTA. */
int skv_charge_allows(struct skv_core *, uint32_t account, uint64_t more);
/* An object of the account takes `now` bytes; *charged are those that it took when it was charged last. */
void skv_charge(struct skv_core *, uint32_t account, uint64_t *charged, uint64_t now);
/*
 * May the daemon take so many bytes of its own for the account? What a cgroup allows the daemon is divided as tables are: an
 * account may have as much as is left for all others. 0, or E_NOSPC.
 */
int skv_room_allows(struct skv_core *, uint32_t account, uint64_t more);
/* Memory that a file has; holes of it cost nothing. */
uint64_t skv_file_bytes(int fd);
/* A sequence's memory, and the references and keys that it has, are measured. */
void skv_charge_seq(struct skv_core *, uint32_t seq);

#endif
