/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/operations/requests.h - what a client asks for in a session: sequences, and leases of pages. */
#ifndef SKV_CORE_REQUESTS_H
#define SKV_CORE_REQUESTS_H

#include "daemon/core/core.h"

/* ---- sequences ---- */
/* A sequence belongs to (UID, model name, rank, its own name). Calls on a sequence need the session that holds it. */
/* `name` "" or NULL: anonymous. max_tokens 0: the maximum of the model. E_EXIST, E_INVALID, E_QUOTA, E_NOSPC. */
int skv_core_seq_new(struct skv_core *, uint32_t client, uint32_t session, const char *name,
                     uint32_t max_tokens, struct skv_core_seq_info *ret);
/*
 * The sequence's pages go on lease to the client. Announce segments before the reply. E_NOENT, E_BUSY, E_FENCED,
 * E_LEAVING, E_INVALID (another model shape or device), E_CORRUPT (the sequence was dropped).
 */
int skv_core_seq_attach(struct skv_core *, uint32_t client, uint32_t session, const char *name,
                        struct skv_core_seq_info *ret);
/*
 * Forks a sequence. Not allowed while the parent is in a step. The pages of the parent's committed tokens become
 * SHARED: this call rewrites the parent's table entries, and the client reads them again after the reply. Entries
 * beyond the committed length are left alone, and so are references that the tables no longer name (the client releases
 * them). The child has the parent's first n_tokens (SKV_ALL: all): later pages are not shared, and the child's commit
 * has that length. The client must know whether its policy can continue from there. E_INVALID: the parent has fewer
 * tokens. E_CORRUPT: the parent was dropped; its pages stay on lease.
 */
int skv_core_seq_fork(struct skv_core *, uint32_t client, uint32_t session, uint32_t parent, const char *name,
                      uint32_t n_tokens, struct skv_core_seq_info *ret);
/*
 * A named sequence is validated, gets its pages (SEQ) and has no holder afterwards; references that the tables no
 * longer name are released. Pages of uncommitted entries stay on lease. An anonymous sequence is dropped. E_CORRUPT:
 * the sequence was dropped.
 */
int skv_core_seq_detach(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq);
/* Drops the name and the references; the sequence's own pages stay on lease to the client. */
int skv_core_seq_drop(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq);
/*
 * Drops detached sequences by name (all ranks); for sparsekvctl. No client is told when the work ends. E_NOENT, E_BUSY.
 */
int skv_core_seq_drop_name(struct skv_core *, uid_t uid, const char *model, const char *name);
/*
 * skv_core_seq_held_name(): does the session hold the sequence? If so, returns its model and name (borrowed, until the
 * next call). skv_core_seq_exists(): does the user have such a sequence, held or not?
 */
bool skv_core_seq_held_name(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq,
                            const struct skv_model **ret_model, const char **ret_name);
bool skv_core_seq_exists(const struct skv_core *, uid_t uid, const struct skv_model *, const char *name);
/* Drops references to shared pages, each named once, at most SKV_CALL_PAGES: all of them, or E_INVALID and none. */
int skv_core_seq_release(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq,
                         const struct skv_wire_run *runs, uint32_t n);
/* The same for a client that reconnects: some or all of the references may have been dropped before. */
int skv_core_seq_release_again(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq,
                               const struct skv_wire_run *runs, uint32_t n);

/* ---- leases ---- */
/*
 * Leases between `least` and `most` pages, as ascending runs. Fewer than `least` are returned only if the pool is so
 * fragmented that max_runs runs do not hold them, or if `least` is above SKV_CALL_PAGES: then ask again. least = 0:
 * whatever is free, maybe nothing.
 * The caller announces segments before the reply: skv_core_next_segment(). E_NOSPC, E_QUOTA, E_BACKLOG. E_WAIT while
 * segments needed for `most` are pending, or memory of sequences is coming back.
 */
int skv_core_lease_get(struct skv_core *, uint32_t client, uint32_t session, uint32_t least, uint32_t most,
                       struct skv_wire_run *ret_runs, uint32_t max_runs, uint32_t *ret_n);
/* The same from the live and pending segments alone: requests no further segments. */
int skv_core_lease_rest(struct skv_core *, uint32_t client, uint32_t session, uint32_t least, uint32_t most,
                        struct skv_wire_run *ret_runs, uint32_t max_runs, uint32_t *ret_n);
/*
 * Number of pages that calls of lease_get could get now in total: what the account's quota and the memory allow.
 * Sequences without a holder may free more, but only once a lease needs room.
 */
int skv_core_lease_room(struct skv_core *, uint32_t client, uint32_t session, uint64_t *ret_pages);
/*
 * Frees pages, at most SKV_CALL_PAGES; each must be on lease to this client. All of them are freed, or E_INVALID and
 * none.
 */
int skv_core_lease_put(struct skv_core *, uint32_t client, uint32_t session, const struct skv_wire_run *runs,
                       uint32_t n);

#endif
