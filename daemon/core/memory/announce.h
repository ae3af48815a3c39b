/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/memory/announce.h - tells clients of the memory of their pools: memfds, and segments that come and go. */
#ifndef SKV_CORE_ANNOUNCE_H
#define SKV_CORE_ANNOUNCE_H

#include "daemon/core/state/core-priv.h"

void skv_member_join(struct skv_core *, uint32_t pool, uint32_t client);
/* Ends one session of the client on the pool. With the last session the pages on lease to the client are freed. */
void skv_member_leave(struct skv_core *, uint32_t pool, uint32_t client);

/* A device's segment has got memory. */
void skv_announce_arrival(struct skv_core *, uint32_t pool, uint32_t segment);
/* A device's segment has lost its memory. Returns the number of clients that have to acknowledge its end. */
uint32_t skv_announce_end(struct skv_core *, uint32_t pool, uint32_t segment);

/* Marks everything as to be announced again, for a client that reconnects. */
void skv_announce_anew(struct skv_core *, uint32_t client);

#endif
