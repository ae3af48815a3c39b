/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/operations/reconnect.h - a client of the previous daemon names the sessions, sequences and pages that it
 * has, and everything else that the state says it has is released. See reconnect.c.
 */
#ifndef SKV_CORE_RECONNECT_H
#define SKV_CORE_RECONNECT_H

#include "daemon/core/state/core-priv.h"
#include "daemon/core/operations/detach.h"

struct skv_reconnect {
	struct skv_reconnect *next;
	uint32_t client;    /* row of the client */
	uint8_t *sessions;  /* [session row]: 1 if the client named the session */
	uint8_t *sequences; /* [sequence row]: 1 if the client named the sequence */
	uint8_t **pages;    /* [pool]: a bit for each page, set if it was named; NULL: no page of the pool was named */
	uint32_t n_pools;
	/* progress of releasing everything that was not named: */
	uint32_t seq;  /* next row of a sequence; SKV_NO_INDEX: all sequences are done */
	uint32_t pool, segment;
	bool detaching; /* `detach` is in progress */
	struct skv_detach detach;
};

/* Begins a reconnect, in which the client names what it has. 0, -ENOMEM. */
int skv_reconnect_begin(struct skv_core *, uint32_t client);
/* Returns the client's reconnect, which the caller owns from now on; NULL: the client does not reconnect. */
struct skv_reconnect *skv_reconnect_take(struct skv_core *, uint32_t client);
void skv_reconnect_free(struct skv_reconnect *); /* accepts NULL */
/*
 * Releases the sessions, sequences and leased pages that the client did not name, as far as *units go. SKV_DONE: the
 * client has exactly what it named.
 */
enum skv_progress skv_reconnect_some(struct skv_core *, struct skv_reconnect *, uint32_t *units);
/* The device's memory is lost: stops detaching a sequence whose pages are there. */
void skv_reconnect_lose(struct skv_core *, struct skv_reconnect *, uint32_t device);
void skv_reconnect_free_all(struct skv_core *);

#endif
