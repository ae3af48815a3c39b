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
/* SEQ_ATTACH of a sequence that a fenced client holds: answered when it is gone, or after a while with EBUSY. */
void skv_fence_attach(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, const void *body,
                      int *fds);
/* The connection is gone: nothing waits for it. */
void skv_fence_forget(struct skv_server *, const struct skv_conn *);

/* All that a client had has been taken back, in such a time. */
void skv_fence_gone(struct skv_server *, uint64_t took_ns);

/* After skv_loop_drain(). */
void skv_fence_free_all(struct skv_server *);

#endif
