/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/requests/deferred.h - requests that are answered later: when memory, a file, a worker or another client is ready.
 *
 * A struct skv_deferred is embedded in the struct of the part of the daemon that works on the request. It belongs to that part; the
 * connection only refers to it. When the connection ends, `conn` becomes NULL and nothing else happens: the part notices when it wants
 * to answer, or at its next turn or tick, and frees its struct then.
 */
#ifndef SKV_DAEMON_DEFERRED_H
#define SKV_DAEMON_DEFERRED_H

#include "daemon/ipc/conn.h"

#define SKV_MAX_DEFERRED 16u /* of one connection, that do not pause it */

struct skv_deferred {
	struct skv_conn *conn; /* NULL: it has ended, or the request was answered */
	struct skv_msg_header header;
	bool pauses;
	struct skv_deferred **before, *next; /* of the same connection */
};

/*
 * Defers the answer to a request. `pauses`: no other request of the connection is received until skv_deferred_end(). Once a second
 * the client is told that the request is being worked on.
 */
void skv_deferred_begin(struct skv_deferred *, struct skv_conn *, const struct skv_msg_header *, bool pauses);
/* Ends it: before the answer is sent, or without one. Does nothing if it has ended, or was never begun (zeroed). */
void skv_deferred_end(struct skv_deferred *);
/* Ends it with an error; `error` is a positive errno. */
void skv_deferred_error(struct skv_deferred *, int error, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Does the connection have as many deferred requests as it may have? Then it was told so. */
bool skv_deferred_refuses(struct skv_conn *, const struct skv_msg_header *);
/* The connection has ended: no request refers to it any more. */
void skv_deferred_forget(struct skv_conn *);
/* Once a second: sends WAIT for each request that is deferred. */
void skv_deferred_tick(struct skv_ipc *);

#endif
