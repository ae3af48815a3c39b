/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/operations/reconnect.h - a client of the previous daemon names what it has, and the rest is released. See
 * reconnect.c.
 */
#ifndef SKV_CORE_RECONNECT_H
#define SKV_CORE_RECONNECT_H

#include "daemon/core/state/core-priv.h"
#include "daemon/core/operations/detach.h"

struct skv_reconnect {
	struct skv_reconnect *next;
	uint32_t client;    /* row */
	uint8_t *sessions;  /* by row: it was named */
	uint8_t *sequences; /* the same */
	uint8_t **pages;    /* by pool, a bit for each page; NULL: no page was named */
	uint32_t n_pools;
	/* progress of releasing the rest */
	uint32_t seq;  /* next row; SKV_NO_INDEX: all are done */
	uint32_t pool, segment;
	bool detaching;
	struct skv_detach detach;
};

/* The client is going to name what it has. 0, -ENOMEM. */
int skv_reconnect_begin(struct skv_core *, uint32_t client);
/* The client's reconnect, owned by the caller from now on; NULL: the client does not reconnect. */
struct skv_reconnect *skv_reconnect_take(struct skv_core *, uint32_t client);
void skv_reconnect_free(struct skv_reconnect *); /* NULL is fine */
/* Releases what was not named. SKV_DONE: the client has exactly what it named. */
enum skv_progress skv_reconnect_some(struct skv_core *, struct skv_reconnect *, uint32_t *units);
/* The device's memory is lost: stops detaching a sequence there. */
void skv_reconnect_lose(struct skv_core *, struct skv_reconnect *, uint32_t device);
void skv_reconnect_free_all(struct skv_core *);

#endif
