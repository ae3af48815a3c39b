/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/reclaim.h - what clients give up, in turns. See reclaim.c. */
#ifndef SKV_CORE_RECLAIM_H
#define SKV_CORE_RECLAIM_H

#include "daemon/core/core-priv.h"
#include "daemon/core/detach.h"

struct skv_reclaim {
	uint32_t client;  /* row */
	uint32_t session; /* row, or SKV_NO_INDEX: all that the client has, and itself */
	uint32_t seq;     /* rows before are not, or no more, of it; SKV_NO_INDEX: all have been looked at */
	bool detaching;
	struct skv_detach detach;
	uint32_t pool, at; /* pools before have no page on lease to it; the segment to look at */
};

void skv_reclaim_begin(uint32_t client, uint32_t session, struct skv_reclaim *);
/* SKV_DONE: the session, or the client, is no more. SKV_FAILED: there is no memory to check a sequence with. */
enum skv_progress skv_reclaim_some(struct skv_core *, struct skv_reclaim *, uint32_t *units);
/* The memory of a device is lost: no sequence there is detached any more. */
void skv_reclaim_lose(struct skv_core *, struct skv_reclaim *, uint32_t device);
/* Give it up in the middle. */
void skv_reclaim_end(struct skv_reclaim *);

#endif
