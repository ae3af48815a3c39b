/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/operations/reclaim.h - closes a session or ends a client and reclaims its pages, in turns. See reclaim.c.
 */
#ifndef SKV_CORE_RECLAIM_H
#define SKV_CORE_RECLAIM_H

#include "daemon/core/state/core-priv.h"
#include "daemon/core/operations/detach.h"

struct skv_reclaim {
	uint32_t client;  /* row of the client */
	uint32_t session; /* row of the session to close; SKV_NO_INDEX: all sessions of the client, and the client */
	uint32_t seq;     /* row of the next sequence; SKV_NO_INDEX: all sequences are detached */
	bool detaching;   /* `detach` is in progress */
	struct skv_detach detach;
	uint32_t pool, at; /* progress of freeing leased pages: pool, and the next page in it */
};

void skv_reclaim_begin(uint32_t client, uint32_t session, struct skv_reclaim *);
/*
 * Continues to close the session or to end the client, as far as *units go. SKV_DONE: the session or client no longer
 * exists. SKV_FAILED: out of memory for validating a sequence.
 */
enum skv_progress skv_reclaim_some(struct skv_core *, struct skv_reclaim *, uint32_t *units);
/* The device's memory is lost: stops detaching a sequence whose pages are there. */
void skv_reclaim_lose(struct skv_core *, struct skv_reclaim *, uint32_t device);
/* Abandons the closing of a session or the end of a client, and frees its memory. */
void skv_reclaim_end(struct skv_reclaim *);

#endif
