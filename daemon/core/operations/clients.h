/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/operations/clients.h - clients and their sessions. */
#ifndef SKV_CORE_CLIENTS_H
#define SKV_CORE_CLIENTS_H

#include "daemon/core/core.h"

/* ---- clients ---- */
/*
 * Adds a client. `program` is a name for display; it may contain any bytes. E_QUOTA: the account has reached its quota
 * of clients. E_NOSPC: no row of the daemon's table is left for the account.
 */
int skv_core_client_add(struct skv_core *, uid_t uid, pid_t pid, const char *program, uint32_t *ret_client);
/*
 * Fences a client whose connection has ended and whose process may still live. The client's word in the control page is
 * cleared, so that the process begins and commits no further step. The client's sequences and pages stay as they are,
 * and the client is told of no changes. Returns true if the client has sessions; the fence must then last until
 * skv_core_client_gone().
 */
bool skv_core_client_fence(struct skv_core *, uint32_t client);
/*
 * Ends a client whose process can no longer write to its memory, in turns of skv_core_work(): anonymous sequences are
 * dropped, named sequences are validated, pages are freed, sessions are closed. Until the end of this work the client
 * is fenced. `since_ns` is returned in struct skv_core_done.
 */
int skv_core_client_gone(struct skv_core *, uint32_t client, uint64_t since_ns);
/* Stores a descriptor of the client's process for as long as the client exists (fd: borrowed until the commit). */
void skv_core_client_store(struct skv_core *, uint32_t client, int pidfd);
/* Does the client have a session on the device? */
bool skv_core_client_uses(const struct skv_core *, uint32_t client, uint32_t device);
/*
 * Lets a fenced client continue on another connection: the fence is lifted, and the client is told of all segments
 * again. The client names the sessions, sequences and pages that it has, and then asks for skv_core_reconnect_done(),
 * which releases all sessions, sequences and pages on lease that the client did not name: the client never learned of
 * them. A new sequence that the client did not name is dropped, even if the sequence has a name. E_NOENT: there is no
 * such fenced client.
 */
int skv_core_reconnect(struct skv_core *, uint32_t client);
bool skv_core_is_reconnecting(const struct skv_core *, uint32_t client);
/*
 * The client names a session, a sequence, or pages that it has. E_NOENT: the client has no such session, or the session
 * holds no such sequence. E_INVALID: a page is neither on lease to the client nor shared, or the session of the pages
 * was not named before.
 */
int skv_core_reconnect_session(struct skv_core *, uint32_t client, uint32_t session);
int skv_core_reconnect_seq(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq);
int skv_core_reconnect_pages(struct skv_core *, uint32_t client, uint32_t session, const struct skv_wire_run *runs,
                             uint32_t n);
/*
 * Ends the naming of a reconnect, and releases everything that the client did not name. E_TURNS: the work continues.
 * E_INVALID: the client does not reconnect.
 */
int skv_core_reconnect_done(struct skv_core *, uint32_t client);

/* ---- sessions ---- */
struct skv_core_session_info {
	uint32_t session, pool;
	uint64_t page_bytes, segment_bytes;
	uint32_t pages_per_segment, max_segments;
	int page_fd; /* descriptor of the session page, writable; borrowed */
	uint64_t page_fd_bytes;
};
/*
 * Opens a session; `spec` and `plugin` are its policy. E_INVALID: the model is outside the limits of types.h or on a
 * device that does not exist, or the spec is too long. E_QUOTA: the client's number of sessions, or the user's number
 * of pools or host memory is at its limit. E_NOSPC: the daemon has no session or pool left for the user.
 */
int skv_core_session_open(struct skv_core *, uint32_t client, const struct skv_model *, const char *spec,
                          uint32_t plugin, struct skv_core_session_info *ret);
/*
 * Closes a session: detaches its named sequences and drops its anonymous sequences. Closing a client's last session on
 * a pool frees all pages on lease to the client there. After E_TURNS the caller makes no other call for the client
 * until the work has ended, except skv_core_client_gone(). The caller also has to wait after a call on a sequence that
 * returns E_TURNS; skv_core_seq_new() and the release calls never return E_TURNS.
 */
int skv_core_session_close(struct skv_core *, uint32_t client, uint32_t session);
/* Returns the pool of a client's session. E_NOENT. */
int skv_core_session_pool(struct skv_core *, uint32_t client, uint32_t session, uint32_t *ret_pool);
/* Returns the session's model (borrowed). E_NOENT. */
int skv_core_session_model(struct skv_core *, uint32_t client, uint32_t session, const struct skv_model **ret);

#endif
