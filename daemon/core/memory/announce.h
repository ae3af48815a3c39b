/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/memory/announce.h - what clients are told of the memory of their pools. */
#ifndef SKV_CORE_ANNOUNCE_H
#define SKV_CORE_ANNOUNCE_H

#include "daemon/core/state/core-priv.h"

void skv_member_join(struct skv_core *, uint32_t pool, uint32_t client);
/* with the last session the leases are freed */
void skv_member_leave(struct skv_core *, uint32_t pool, uint32_t client);

/* A device's segment got memory, or lost it. The latter returns how many clients have to acknowledge. */
void skv_announce_arrival(struct skv_core *, uint32_t pool, uint32_t segment);
uint32_t skv_announce_end(struct skv_core *, uint32_t pool, uint32_t segment);

/* A client that reconnects is told of everything again. */
void skv_announce_anew(struct skv_core *, uint32_t client);

#endif
