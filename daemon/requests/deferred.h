/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/requests/deferred.h - deferred requests, which are answered later: when memory, a file, a worker or another
 * client is ready.
 *
 * A struct skv_deferred is embedded in the struct of the part of the daemon that works on the request. That part owns
 * the struct; the connection only has a list of pointers to its deferred requests. When the connection ends, `conn`
 * becomes NULL and nothing else happens: the part finds that when it wants to answer, or in its next turn or tick, and
 * then frees its struct.
 */
#ifndef SKV_DAEMON_DEFERRED_H
#define SKV_DAEMON_DEFERRED_H

#include "daemon/ipc/conn.h"

#define SKV_MAX_DEFERRED 16u /* maximum of deferred requests of a connection, not counting those that pause it */

struct skv_deferred {
	struct skv_conn *conn; /* NULL: the connection has ended, or the request was answered */
	struct skv_msg_header header;
	bool pauses;
	struct skv_deferred **before, *next; /* list of the connection's deferred requests */
};

/*
 * Defers the answer to a request. If `pauses` is set, no other request of the connection is received until
 * skv_deferred_end(). Once a second the client is told that its request is in progress.
 */
void skv_deferred_begin(struct skv_deferred *, struct skv_conn *, const struct skv_msg_header *, bool pauses);
/*
 * Ends a deferred request; called before its answer is sent, or if there is none. Does nothing on a zeroed or ended
 * struct.
 */
void skv_deferred_end(struct skv_deferred *);
/* Ends a deferred request, and answers it with an error; `error` is a positive errno. */
void skv_deferred_error(struct skv_deferred *, int error, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/*
 * Does a deferred request of the connection pause it? It may be a task of the client in the core, which has one task at
 * a time: a deferred request that does not pause, and may begin a task, has to wait.
 */
bool skv_deferred_pauses(struct skv_conn *);
/* Returns whether the connection has SKV_MAX_DEFERRED deferred requests already; then the new request was refused. */
bool skv_deferred_refuses(struct skv_conn *, const struct skv_msg_header *);
/* Call it when a connection has ended: sets `conn` of all its deferred requests to NULL. */
void skv_deferred_forget(struct skv_conn *);
/* Sends the notice WAIT for each deferred request. Call it once a second. */
void skv_deferred_tick(struct skv_ipc *);

#endif
