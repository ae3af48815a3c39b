/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/operations/clients.h - clients and their sessions. */
#ifndef SKV_CORE_CLIENTS_H
#define SKV_CORE_CLIENTS_H

#include "daemon/core/core.h"

/* ---- clients ---- */
/*
 * E_QUOTA: the account has its quota of clients. E_NOSPC: the daemon has no more rows for it. `program` is for display,
 * any bytes.
 */
int skv_core_client_add(struct skv_core *, uid_t uid, pid_t pid, const char *program, uint32_t *ret_client);
/*
 * Fences a client whose connection has ended and whose process may live: the process begins and commits no further step
 * (its fence in the control page is cleared), its sequences and pages stay as they are, and it is told nothing. Returns
 * true if the client has sessions; the fence must then last until skv_core_client_gone().
 */
bool skv_core_client_fence(struct skv_core *, uint32_t client);
/*
 * Ends a client that can write no more, in turns that skv_core_work() makes: anonymous sequences are dropped, named
 * ones validated, pages freed, sessions closed. Until the end the client is fenced. `since_ns` is returned in
 * skv_core_done.
 */
int skv_core_client_gone(struct skv_core *, uint32_t client, uint64_t since_ns);
/* Stores a descriptor of the client's process for as long as the client exists (fd: borrowed until the commit). */
void skv_core_client_store(struct skv_core *, uint32_t client, int pidfd);
/* Does the client have a session on the device? */
bool skv_core_client_uses(const struct skv_core *, uint32_t client, uint32_t device);
/*
 * A fenced client continues on another connection: the fence is lifted, and the client is told of all segments again.
 * The client names what it has and then calls done. Sessions, sequences and pages on lease that it did not name are
 * released, as if it was never told of them. A sequence that the client made and did not name is dropped, even if it
 * has a name. E_NOENT: there is no such fenced client.
 */
int skv_core_reconnect(struct skv_core *, uint32_t client);
bool skv_core_is_reconnecting(const struct skv_core *, uint32_t client);
/*
 * E_NOENT: the client has no such session, or the session no such sequence. E_INVALID: a page is neither on lease to
 * the client nor shared, or the session was not named.
 */
int skv_core_reconnect_session(struct skv_core *, uint32_t client, uint32_t session);
int skv_core_reconnect_seq(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq);
int skv_core_reconnect_pages(struct skv_core *, uint32_t client, uint32_t session, const struct skv_wire_run *runs,
                             uint32_t n);
/* E_TURNS as for calls on sequences. E_INVALID: the client does not reconnect. */
int skv_core_reconnect_done(struct skv_core *, uint32_t client);

/* ---- sessions ---- */
struct skv_core_session_info {
	uint32_t session, pool;
	uint64_t page_bytes, segment_bytes;
	uint32_t pages_per_segment, max_segments;
	int page_fd; /* borrowed: the session page, writable */
	uint64_t page_fd_bytes;
};
/*
 * `spec` and `plugin` are the session's policy. E_INVALID: the model is outside the limits of types.h or on a device
 * that does not exist, or the spec is too long. E_QUOTA: sessions per client, pools per UID, or host memory. E_NOSPC:
 * the daemon's sessions or pools.
 */
int skv_core_session_open(struct skv_core *, uint32_t client, const struct skv_model *, const char *spec,
                          uint32_t plugin, struct skv_core_session_info *ret);
/*
 * Detaches the session's sequences; anonymous ones are dropped. Closing the last session on a pool gives back all
 * leases there. After E_TURNS the caller makes no other call for the client until the work has ended, except
 * skv_core_client_gone(). The same holds for calls on sequences; skv_core_seq_new() and the release calls never take
 * turns.
 */
int skv_core_session_close(struct skv_core *, uint32_t client, uint32_t session);
/* The pool of a client's session. E_NOENT. */
int skv_core_session_pool(struct skv_core *, uint32_t client, uint32_t session, uint32_t *ret_pool);
/* The session's model (borrowed). E_NOENT. */
int skv_core_session_model(struct skv_core *, uint32_t client, uint32_t session, const struct skv_model **ret);

#endif
