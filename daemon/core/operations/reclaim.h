/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/operations/reclaim.h - reclaims what a client had, in turns. See reclaim.c. */
#ifndef SKV_CORE_RECLAIM_H
#define SKV_CORE_RECLAIM_H

#include "daemon/core/state/core-priv.h"
#include "daemon/core/operations/detach.h"

struct skv_reclaim {
	uint32_t client;  /* row */
	uint32_t session; /* row, or SKV_NO_INDEX: everything that the client has, and the client */
	uint32_t seq;     /* earlier rows are done; SKV_NO_INDEX: all are */
	bool detaching;
	struct skv_detach detach;
	uint32_t pool, at; /* earlier pools have no page on lease to it; and the next page */
};

void skv_reclaim_begin(uint32_t client, uint32_t session, struct skv_reclaim *);
/* SKV_DONE: the session or client no longer exists. SKV_FAILED: no memory to check a sequence with. */
enum skv_progress skv_reclaim_some(struct skv_core *, struct skv_reclaim *, uint32_t *units);
/* The device's memory is lost: stops detaching a sequence there. */
void skv_reclaim_lose(struct skv_core *, struct skv_reclaim *, uint32_t device);
/* Abandons the work. */
void skv_reclaim_end(struct skv_reclaim *);

#endif
