/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/operations/requests.h - requests of a client in a session: for sequences, and for leases of pages. */
#ifndef SKV_CORE_REQUESTS_H
#define SKV_CORE_REQUESTS_H

#include "daemon/core/core.h"

/* ---- sequences ---- */
/*
 * A named sequence is identified by UID, model name, rank and its own name. Calls on a sequence take the session that
 * holds the sequence.
 */
/*
 * Creates an empty sequence, held by the session. `name` "" or NULL: an anonymous sequence. max_tokens 0: the maximum
 * of the model. E_EXIST, E_INVALID, E_QUOTA, E_NOSPC.
 */
int skv_core_seq_new(struct skv_core *, uint32_t client, uint32_t session, const char *name,
                     uint32_t max_tokens, struct skv_core_seq_info *ret);
/*
 * Makes the session the holder of a detached sequence; the sequence's pages go on lease to the client. The caller
 * announces segments before the reply. E_NOENT, E_BUSY, E_FENCED, E_LEAVING, E_INVALID (the sequence has another model
 * shape or device), E_CORRUPT (the sequence was dropped).
 */
int skv_core_seq_attach(struct skv_core *, uint32_t client, uint32_t session, const char *name,
                        struct skv_core_seq_info *ret);
/*
 * Forks a sequence. The parent must not be in a step. The pages of the parent's committed tokens become SHARED: this
 * call rewrites the parent's table entries, and the client reads the entries again after the reply. Entries beyond the
 * committed length are not changed. References to pages that the tables no longer name are not dropped either: the
 * client releases them. The child gets the parent's first n_tokens tokens (SKV_ALL: all) as its commit, and shares only
 * the pages of these tokens. The client must know whether its policy can continue after n_tokens tokens. E_INVALID: the
 * parent has fewer tokens. E_CORRUPT: the parent was dropped; its pages stay on lease.
 */
int skv_core_seq_fork(struct skv_core *, uint32_t client, uint32_t session, uint32_t parent, const char *name,
                      uint32_t n_tokens, struct skv_core_seq_info *ret);
/*
 * Detaches a sequence from the session that holds it. A named sequence is validated, becomes the owner of its pages
 * (SEQ) and has no holder afterwards; references to pages that its tables no longer name are released. Pages of
 * uncommitted entries stay on lease to the client. An anonymous sequence is dropped. E_CORRUPT: the sequence was
 * dropped.
 */
int skv_core_seq_detach(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq);
/* Drops a held sequence and its references; the sequence's own pages stay on lease to the client. */
int skv_core_seq_drop(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq);
/*
 * Drops the detached sequences of this name (of all ranks); for sparsekvctl. The work continues after the call, and its
 * end is not reported. E_NOENT, E_BUSY.
 */
int skv_core_seq_drop_name(struct skv_core *, uid_t uid, const char *model, const char *name);
/*
 * skv_core_seq_held_name(): does the session hold the sequence? If so, returns the sequence's model and name (borrowed
 * until the next call). skv_core_seq_exists(): does the user have a sequence of this model and name, held or not?
 */
bool skv_core_seq_held_name(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq,
                            const struct skv_model **ret_model, const char **ret_name);
bool skv_core_seq_exists(const struct skv_core *, uid_t uid, const struct skv_model *, const char *name);
/*
 * Drops the sequence's references to the shared pages of the runs: at most SKV_CALL_PAGES pages, each named once.
 * E_INVALID: the sequence does not refer to one of the pages, and no reference was dropped.
 */
int skv_core_seq_release(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq,
                         const struct skv_wire_run *runs, uint32_t n);
/*
 * skv_core_seq_release() for a client that reconnects and repeats a request: ignores pages to which the sequence does
 * not refer any more.
 */
int skv_core_seq_release_again(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq,
                               const struct skv_wire_run *runs, uint32_t n);

/* ---- leases ---- */
/*
 * Leases between `least` and `most` pages to the client and returns them as ascending runs. Fewer than `least` pages
 * are leased only if the pool is so fragmented that max_runs runs do not hold more, or if `least` is above
 * SKV_CALL_PAGES: then call again for the rest. With `least` 0 the lease may be of no page at all. The caller announces
 * segments before the reply: skv_core_next_segment(). E_NOSPC, E_QUOTA, E_BACKLOG. E_WAIT: segments needed for `most`
 * pages are pending, or memory of sequences that make room is being freed.
 */
int skv_core_lease_get(struct skv_core *, uint32_t client, uint32_t session, uint32_t least, uint32_t most,
                       struct skv_wire_run *ret_runs, uint32_t max_runs, uint32_t *ret_n);
/* skv_core_lease_get() without growing the pool: leases pages of segments that are live or pending already. */
int skv_core_lease_rest(struct skv_core *, uint32_t client, uint32_t session, uint32_t least, uint32_t most,
                        struct skv_wire_run *ret_runs, uint32_t max_runs, uint32_t *ret_n);
/*
 * Number of pages that skv_core_lease_get() could lease now in total, within the account's quota and the memory. A
 * lease may get more, since sequences without a holder make room when a lease needs it.
 */
int skv_core_lease_room(struct skv_core *, uint32_t client, uint32_t session, uint64_t *ret_pages);
/*
 * Frees the pages of the runs: at most SKV_CALL_PAGES, each on lease to this client and named once. E_INVALID: a page
 * is not on lease to the client or is named twice, and no page was freed.
 */
int skv_core_lease_put(struct skv_core *, uint32_t client, uint32_t session, const struct skv_wire_run *runs,
                       uint32_t n);

#endif
