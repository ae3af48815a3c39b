/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/charge.h - host memory that a UID takes beside its pages: memory of its sequences, their references, session
 * pages, queues to its clients, and what was written into host memory where it has no segment.
 *
 * Clients write into sequence memory and pools by themselves, so these are measured: they count as they were found last.
 */
#ifndef SKV_CORE_CHARGE_H
#define SKV_CORE_CHARGE_H

#include "daemon/core/core-priv.h"

#define SKV_SESSION_BYTES 4096u /* of a session page */
#define SKV_SEQ_BYTES 4096u     /* of a sequence, at least */

/* All of its host memory, pages included. */
uint64_t skv_charged(const struct skv_core *, uint32_t account);
/* May it have so many bytes more? 0, or E_QUOTA. */
int skv_charge_allows(struct skv_core *, uint32_t account, uint64_t more);
/* An object of the account takes `now` bytes; *charged are those that it took when it was charged last. */
void skv_charge(struct skv_core *, uint32_t account, uint64_t *charged, uint64_t now);
/* Memory that a file has; holes of it cost nothing. */
uint64_t skv_file_bytes(int fd);
/* A sequence's memory, and the references that it has, are measured. */
void skv_charge_seq(struct skv_core *, uint32_t seq);

#endif
