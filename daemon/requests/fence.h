/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/requests/fence.h - fenced clients: those whose connection ended before their process did. See fence.c. */
#ifndef SKV_FENCE_H
#define SKV_FENCE_H

#include "common/wire.h"
#include "daemon/server/server.h"

struct skv_conn;
struct skv_peer;

/*
 * Fences the client of a connection that has ended, and reclaims the client's memory as soon as its process cannot
 * write to it any more.
 */
void skv_fence_begin(struct skv_server *, struct skv_conn *);

/* Fences a client of the previous daemon. `peer`: the client's process (consumed); pidfd -1: the process has ended. */
void skv_fence_resume(struct skv_server *, uint32_t client, struct skv_peer *);

/* Handles the request CLIENT_END: the process has unmapped the memory of a fenced client, which is then reclaimed. */
void skv_fence_client_end(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, const void *body,
                          int *fds);
/* Handles the request RECONNECT: lifts the fence of the client, which then lists its sessions, sequences and pages. */
void skv_fence_reconnect(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, const void *body,
                         int *fds);
/*
 * Handles the request SEQ_ATTACH. If a fenced client holds the sequence, the reply waits for the end of that client;
 * after one second the reply is EBUSY. If the sequence is parked, the reply waits until the sequence has been read.
 */
void skv_fence_attach(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, const void *body,
                      int *fds);
/*
 * Answers the requests that wait for a parked sequence: it has been read (error 0), or reading failed (negative errno).
 */
void skv_fence_restored(struct skv_server *, uid_t uid, const struct skv_model *, const char *name, int error,
                        const char *why);

/* Tries the attaches that wait: a task has ended, and may have freed their sequences. */
void skv_fence_retry(struct skv_server *);
/* Call it when everything of a client of this user has been reclaimed. took_ns: how long reclaiming it took. */
void skv_fence_gone(struct skv_server *, uid_t, uint64_t took_ns);

/* Frees all fences. Call it after skv_loop_drain(). */
void skv_fence_free_all(struct skv_server *);

#endif
