/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/requests/fence.h - clients whose connection ended before their process did. See fence.c. */
#ifndef SKV_FENCE_H
#define SKV_FENCE_H

#include "common/wire.h"
#include "daemon/server/server.h"

struct skv_conn;
struct skv_peer;

/*
 * Fences the client of this connection, which is gone, and reclaims what it has as soon as its process cannot write
 * any more.
 */
void skv_fence_begin(struct skv_server *, struct skv_conn *);

/* The same for a client of the previous daemon. `peer`: its process (consumed); pidfd -1: the process has ended. */
void skv_fence_resume(struct skv_server *, uint32_t client, struct skv_peer *);

/* Handlers of requests (request.c). */
void skv_fence_client_end(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, const void *body,
                          int *fds);
/* RECONNECT: lifts the fence and gives the client back what it has. */
void skv_fence_reconnect(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, const void *body,
                         int *fds);
/*
 * SEQ_ATTACH. If a fenced client holds the sequence, the reply waits until that client is gone; after a second it is
 * EBUSY. If the sequence is parked, the reply waits until it has been read.
 */
void skv_fence_attach(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, const void *body,
                      int *fds);
/* A parked sequence has been read, or reading failed (error: negative errno): answer the requests that wait for it. */
void skv_fence_restored(struct skv_server *, uid_t uid, const struct skv_model *, const char *name, int error,
                        const char *why);

/* Everything that a client of this user had has been reclaimed; took_ns: how long that took. */
void skv_fence_gone(struct skv_server *, uid_t, uint64_t took_ns);

/* After skv_loop_drain(). */
void skv_fence_free_all(struct skv_server *);

#endif
