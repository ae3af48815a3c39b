/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/requests/reply.h - sends replies to clients; stops the daemon after a fatal error. */
#ifndef SKV_DAEMON_REPLY_H
#define SKV_DAEMON_REPLY_H

#include "daemon/ipc/conn.h"

struct skv_server;

/* Stops the daemon after a fatal error, which is logged. `what`: what failed; `error`: negative errno. */
void skv_server_fail(struct skv_server *, const char *what, int error);

/*
 * Answers a request: announces new segments to the client, then sends the reply to the request with this header. fds
 * are borrowed.
 */
void skv_reply(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, const void *body, size_t bytes,
               const int *fds, unsigned n_fds);
/*
 * Returns whether r, a result of the core, is a failure. If so, the client was sent an error (r > 0), or the daemon
 * stops (r < 0).
 */
bool skv_reply_failed(struct skv_server *, struct skv_conn *, uint32_t serial, const char *what, int r);

/*
 * Announces to a client the segments of its pools that it has not been told of, and the end of segments that are gone.
 */
void skv_reply_announce(struct skv_server *, struct skv_conn *);
/* Announces segments to every client that has not been told of a segment or its end. */
void skv_reply_announce_all(struct skv_server *);

/*
 * Returns whether the daemon can serve a peer that has sent HELLO. If not, the peer is told why and its connection
 * ends.
 */
bool skv_reply_can_serve(struct skv_conn *, uint32_t serial, const struct skv_msg_hello *);
/* Sends the reply to HELLO or RECONNECT. The caller has set ok->client. */
void skv_reply_hello(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, struct skv_msg_hello_ok *ok);

#endif
