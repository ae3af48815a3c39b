/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/request.h - a request to the daemon, from its posting until its reply is dealt with. */
#ifndef SKV_CLIENT_REQUEST_H
#define SKV_CLIENT_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/wire.h"

struct pool;

/* A request that was sent, or waits to be sent, until its reply is dealt with. */
struct request {
	struct request *next; /* later */
	uint32_t serial;
	uint16_t type;
	bool sent;       /* to the daemon that is connected now */
	bool waits;      /* not to be sent before that one knows what this client has */
	bool internal;   /* reconnect.c deals with the reply */
	bool settled;    /* it will need no reply when that daemon knows what this client has */
	bool pinned;     /* its reply is in, and its thread still has to act on it: reconnect.h */
	bool done;       /* a reply is in, or none will come: see `error` */
	bool orphan;     /* no thread waits for the reply: it is undone and freed when it comes */
	int64_t until_ms; /* the daemon works on it: who waits for it waits so long, whatever was meant before */
	bool then_close; /* an orphaned LEASE_GET of a session that waits to be closed */
	struct skv_msg_header *packet; /* owned; with its body */
	uint32_t session;
	uint32_t device;         /* OPEN: of the model */
	struct pool *pool;       /* OPEN, when it succeeded, and CLOSE */
	int error;               /* 0, or negative errno ... */
	char text[SKV_TEXT_MAX]; /* ... and why */
	void *body;              /* of the reply, well-formed for its type; owned */
	int fds[SKV_WIRE_MAX_FDS]; /* owned; -1 once taken */
};

/* One with its packet that is in no list; *serial is that of the one before. NULL: no memory. */
struct request *request_new(uint32_t *serial, uint16_t type, const void *body, size_t bytes);
struct request *request_free(struct request *r); /* NULL is fine; returns NULL */

#endif
