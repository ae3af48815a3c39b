/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/requests/reply.h - replies to clients, and fatal errors of the daemon. */
#ifndef SKV_DAEMON_REPLY_H
#define SKV_DAEMON_REPLY_H

#include "daemon/ipc/conn.h"

struct skv_server;

/* Fatal error: logs why and stops the daemon. `error`: negative errno. */
void skv_server_fail(struct skv_server *, const char *what, int error);

/* Answers a request: announces segments, then sends the reply of the header's type. fds are borrowed. */
void skv_reply(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, const void *body, size_t bytes,
               const int *fds, unsigned n_fds);
/* Is r, the core's result, a failure? Then the client has been told (r > 0), or the daemon stops (r < 0). */
bool skv_reply_failed(struct skv_server *, struct skv_conn *, uint32_t serial, const char *what, int r);

/* Announces to the client the segments of its pools that it does not know yet, and the end of those that are gone. */
void skv_reply_announce(struct skv_server *, struct skv_conn *);
/* Announces segments to every client that has some pending. */
void skv_reply_announce_all(struct skv_server *);

/* Can the peer that says HELLO be served? If not, it is told why and its connection ends. */
bool skv_reply_can_serve(struct skv_conn *, uint32_t serial, const struct skv_msg_hello *);
/* Sends the reply to HELLO or RECONNECT; ok->client is set by the caller. */
void skv_reply_hello(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, struct skv_msg_hello_ok *ok);

#endif
