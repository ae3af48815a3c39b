/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/reconnect.h - a client of the daemon before says what it has, and the rest is let go. See reconnect.c. */
#ifndef SKV_CORE_RECONNECT_H
#define SKV_CORE_RECONNECT_H

#include "daemon/core/core-priv.h"
#include "daemon/core/detach.h"

struct skv_reconnect {
	struct skv_reconnect *next;
	uint32_t client;    /* row */
	uint8_t *sessions;  /* by row: it was named */
	uint8_t *sequences; /* the same */
	uint8_t **pages;    /* by pool, a bit a page; NULL: none was named */
	uint32_t n_pools;
	/* letting go: what was looked at so far */
	uint32_t seq;  /* SKV_NO_INDEX: all have been */
	uint32_t pool, segment;
	bool detaching;
	struct skv_detach detach;
};

/* The client will say what it has. 0, -ENOMEM. */
int skv_reconnect_begin(struct skv_core *, uint32_t client);
/* The client's, the caller's from now on; NULL: it does not reconnect. */
struct skv_reconnect *skv_reconnect_take(struct skv_core *, uint32_t client);
void skv_reconnect_free(struct skv_reconnect *); /* NULL is fine */
/* SKV_DONE: the client has what it named. */
enum skv_progress skv_reconnect_some(struct skv_core *, struct skv_reconnect *, uint32_t *units);
/* The memory of a device is lost: no sequence there is detached any more. */
void skv_reconnect_lose(struct skv_core *, struct skv_reconnect *, uint32_t device);
void skv_reconnect_free_all(struct skv_core *);

#endif
