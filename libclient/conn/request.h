/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/conn/request.h - a request to the daemon, from its posting until its reply is handled. */
#ifndef SKV_CLIENT_CONN_REQUEST_H
#define SKV_CLIENT_CONN_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/wire.h"

struct pool;

/* A request that is sent or queued, until its reply is handled. */
struct request {
	struct request *next; /* in the list of requests: the next later one */
	uint32_t serial;
	uint16_t type;
	bool sent;       /* to the daemon that is connected now */
	bool waits;      /* not to be sent before that daemon knows what this client has */
	bool internal;   /* reconnect.c handles the reply */
	bool settled;    /* needs no reply once that daemon knows what this client has */
	bool pinned;     /* its reply is in, and its thread has not acted on it yet: reconnect.h */
	bool done;       /* a reply is in, or none will come: see `error` */
	bool orphan;     /* no thread waits for the reply: it is undone and freed when it comes */
	int64_t until_ms; /* the daemon reported progress: waits last until then at least */
	bool then_close; /* an orphaned LEASE_GET: close its session after the reply */
	struct skv_msg_header *packet; /* owned; with its body */
	uint32_t session;
	uint32_t device;         /* OPEN: the model's device */
	struct pool *pool;       /* OPEN after success, and CLOSE */
	int error;               /* 0, or negative errno ... */
	char text[SKV_TEXT_MAX]; /* ... and why */
	void *body;              /* of the reply, well-formed for its type; owned */
	int fds[SKV_WIRE_MAX_FDS]; /* owned; -1 once taken */
};

/* A request with its packet, in no list. *serial: the last serial in use; it is advanced. NULL: out of memory. */
struct request *request_new(uint32_t *serial, uint16_t type, const void *body, size_t bytes);
struct request *request_free(struct request *r); /* NULL is fine; returns NULL */

#endif
