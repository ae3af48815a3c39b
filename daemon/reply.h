/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/reply.h - answers to clients, and the end of a daemon that cannot go on. */
#ifndef SKV_DAEMON_REPLY_H
#define SKV_DAEMON_REPLY_H

#include "daemon/ipc/conn.h"

struct skv_server;

/* The daemon cannot go on: log why and stop. `error`: negative errno. */
void skv_server_fail(struct skv_server *, const char *what, int error);

/* Answer a request: announce segments, then send the reply of the header's type. fds are borrowed. */
void skv_reply(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, const void *body, size_t bytes,
               const int *fds, unsigned n_fds);
/* Is the core's answer a failure? Then the client has been told, or the daemon stops. */
bool skv_reply_failed(struct skv_server *, struct skv_conn *, uint32_t serial, const char *what, int r);

/* The request with this serial goes on; a client that is gone (NULL) need not know. */
void skv_reply_wait(struct skv_conn *, uint32_t serial);

/* Announce to the client the segments of its pools that it does not know yet, and those that are gone. */
void skv_reply_announce(struct skv_server *, struct skv_conn *);
/* Announce to every client that has segments to be told of. */
void skv_reply_announce_all(struct skv_server *);

/* Can this peer be served, which says hello? If not it is told why, and its connection ends. */
bool skv_reply_can_serve(struct skv_conn *, uint32_t serial, const struct skv_msg_hello *);
/* The answer to its hello; *ok has the client. */
void skv_reply_hello(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, struct skv_msg_hello_ok *ok);

#endif
