/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/conn/request.h - a request to the daemon, from its posting until its reply is handled. */
#ifndef SKV_CLIENT_CONN_REQUEST_H
#define SKV_CLIENT_CONN_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/wire.h"

struct pool;

/* A request that is sent or queued, and whose reply is not handled yet. */
struct request {
	struct request *next; /* the next later request in the client's list */
	uint32_t serial;
	uint16_t type;
	bool sent;       /* the request was sent to the daemon that is connected now */
	bool waits;      /* the request must not be sent before the connected daemon knows what this client has */
	bool internal;   /* reconnect.c made the request and handles its reply */
	bool settled;    /* the request needs no reply once the connected daemon knows what this client has */
	bool pinned;     /* the reply has arrived, and its thread has not acted on it yet: reconnect.h */
	bool done;       /* the reply has arrived, or none will come: see `error` */
	bool orphan;     /* no thread waits for the reply: it is undone and freed on arrival */
	int64_t until_ms; /* the daemon reported progress: threads wait for the reply until this time at least */
	bool then_close; /* an orphaned LEASE_GET: its session is closed after the reply */
	struct skv_msg_header *packet; /* the message with header and body; owned by the request */
	uint32_t session;
	uint32_t device;         /* OPEN: the model's device */
	struct pool *pool;       /* pool of the session, in CLOSE and in an OPEN that succeeded */
	int error;               /* 0, or a negative errno */
	char text[SKV_TEXT_MAX]; /* reason of the error */
	void *body;              /* body of the reply, well-formed for its type; owned by the request */
	int fds[SKV_WIRE_MAX_FDS]; /* descriptors of the reply, owned by the request; a taken one is set to -1 */
};

/* Make a request with its packet, in no list. *serial, the last serial in use, is advanced. NULL: out of memory. */
struct request *request_new(uint32_t *serial, uint16_t type, const void *body, size_t bytes);
struct request *request_free(struct request *r); /* NULL is ignored; returns NULL */

#endif
