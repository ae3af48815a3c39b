/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/fence.h - clients whose connection ended before their process did. See fence.c. */
#ifndef SKV_FENCE_H
#define SKV_FENCE_H

#include "daemon/server.h"
#include "common/wire.h"

struct skv_conn;
struct skv_peer;

/* The client of this connection is gone: fence it, and take back what it has as soon as it cannot write any more. */
void skv_fence_begin(struct skv_server *, struct skv_conn *);

/* The same of a client of the daemon before, whose process this is (consumed); pidfd -1: there is none any more. */
void skv_fence_resume(struct skv_server *, uint32_t client, struct skv_peer *);

/* Handlers of requests (request.c). */
void skv_fence_client_end(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, const void *body,
                          int *fds);
/* RECONNECT: it is fenced no more, and what it has is its own. */
void skv_fence_reconnect(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, const void *body,
                         int *fds);
/* SEQ_ATTACH of a sequence that a fenced client holds: answered when it is gone, or after a while with EBUSY; of one that is parked, when it was read. */
void skv_fence_attach(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, const void *body,
                      int *fds);
/* A parked sequence has been read, or could not be: what waits for it is answered. */
void skv_fence_restored(struct skv_server *, uid_t uid, const struct skv_model *, const char *name, int error, const char *why);
/* The connection is gone: nothing waits for it. */
void skv_fence_forget(struct skv_server *, const struct skv_conn *);

/* All that a client of this user had has been taken back, in such a time. */
void skv_fence_gone(struct skv_server *, uid_t, uint64_t took_ns);

/* Their processes go to the next daemon (skv_handover_client); before skv_loop_drain(), which ends watching them. */
void skv_fence_hand_over(struct skv_server *);

/* After skv_loop_drain(). */
void skv_fence_free_all(struct skv_server *);

#endif
