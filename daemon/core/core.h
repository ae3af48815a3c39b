/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/core.h - the books of the daemon: pools, pages, leases, sequences, accounts.
 *
 * Pure state: no sockets, no ring, no logging, one thread. Everything that must outlive the process
 * is in ONE memfd (the state memfd) as plain tables that refer to each other by index, behind this
 * module; the process keeps beside it only what can be reopened or rebuilt (maps, open fds).
 *
 * Pages. Each page of a pool has one owner word in the state:
 *   FREE · LEASE(client): in a client's stock or in a sequence it holds · SEQ(sequence): of a
 *   detached named sequence alone · SHARED(count): read-only, referred to by `count` sequences.
 * A SHARED page is freed when its last reference goes; which sequence refers to which shared pages
 * is written in the state (chains of reference blocks), never believed from a client's page table.
 * What a client's tables say matters only when a sequence is settled (detach, fork, death): each
 * committed entry must name a page that is LEASE(that client), or SHARED with a reference held by
 * this sequence; anything else makes the sequence corrupt and it is dropped.
 *
 * Tenants. A pool belongs to one UID and one page size. Memory goes from one UID to another only as
 * a whole segment that was destroyed (hole punched, so that a stale mapping sees zeros and holds no
 * memory) and made anew by the kernel, zeroed.
 *
 * Accounts. Each UID has ceilings and counts: clients, sessions, sequences, bytes of pages that are
 * not FREE. Every charge is refunded by the object that made it; skv_core_balance() says whether the books are even.
 *
 * Errors. Negative errno: fatal for the daemon (out of memory, a broken state). Positive: enum
 * skv_core_error, the caller's client asked for something that it cannot have.
 */
#ifndef SKV_CORE_H
#define SKV_CORE_H

#include <stdbool.h>
#include <sys/types.h>
#include "common/seqmem.h"
#include "common/wire.h"

enum skv_core_error {
	SKV_CORE_OK = 0,
	SKV_CORE_E_NOSPC,   /* the pool or the daemon is full */
	SKV_CORE_E_QUOTA,   /* the account's ceiling */
	SKV_CORE_E_NOENT,   /* no such session, sequence */
	SKV_CORE_E_EXIST,   /* the name is taken */
	SKV_CORE_E_BUSY,    /* held by another client */
	SKV_CORE_E_INVALID, /* an id, page or shape that does not fit */
	SKV_CORE_E_CORRUPT, /* a sequence's memory is not believable; it was dropped */
	SKV_CORE_E_BACKLOG, /* pool ids are waiting for SEGMENT_ACK; try again */
};

/* The errno (positive) that a client is told. */
int skv_core_errno(enum skv_core_error e);

struct skv_core;

struct skv_core_config {
	uint64_t pool_bytes;    /* ceiling of all segments together */
	uint64_t segment_bytes; /* wanted size of a segment; rounded up to whole pages and the memory's granularity */
	uint64_t account_bytes; /* ceiling of non-free pages a UID */
	uint32_t account_clients, account_sequences;
	uint32_t max_clients, max_sequences, max_sessions, max_pools; /* table sizes */
};

/* Make new books. `mem` is the memory backend (daemon/mem/mem.h), borrowed. */
struct skv_mem_ops;
int skv_core_new(const struct skv_core_config *, const struct skv_mem_ops *mem, struct skv_core **ret);
struct skv_core *skv_core_free(struct skv_core *); /* NULL is fine; returns NULL */
/* Change ceilings on reload; table sizes and segment_bytes keep their old values (returns false if they differ). */
bool skv_core_reconfigure(struct skv_core *, const struct skv_core_config *);

/* ---- clients and sessions ---- */
int skv_core_client_add(struct skv_core *, uid_t uid, pid_t pid, const char *program, uint32_t *ret_client);
/* Everything of the client: sessions closed, anonymous sequences dropped, named ones settled, pages freed. */
int skv_core_client_gone(struct skv_core *, uint32_t client);

struct skv_core_session_info {
	uint32_t session, pool;
	uint64_t page_bytes, segment_bytes;
	uint32_t pages_per_segment, max_segments;
	int page_fd; /* borrowed: the session page */
};
int skv_core_session_open(struct skv_core *, uint32_t client, const struct skv_model *, const char *spec, uint32_t plugin,
                          struct skv_core_session_info *ret);
int skv_core_session_close(struct skv_core *, uint32_t client, uint32_t session);

/* ---- sequences ---- */
struct skv_core_seq_info {
	uint32_t seq, max_tokens;
	uint64_t bytes;
	int fd; /* borrowed: the sequence memory */
};
int skv_core_seq_new(struct skv_core *, uint32_t client, uint32_t session, const char *name, uint32_t max_tokens,
                     struct skv_core_seq_info *ret);
int skv_core_seq_attach(struct skv_core *, uint32_t client, uint32_t session, const char *name,
                        struct skv_core_seq_info *ret);
int skv_core_seq_fork(struct skv_core *, uint32_t client, uint32_t session, uint32_t parent, const char *name,
                      struct skv_core_seq_info *ret);
int skv_core_seq_detach(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq);
int skv_core_seq_drop(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq);
/* By name, detached only; for sparsekvctl. */
int skv_core_seq_drop_name(struct skv_core *, uid_t uid, const char *model, const char *name);
/* Give up references to shared pages. */
int skv_core_seq_release(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq,
                         const struct skv_wire_run *runs, uint32_t n);

/* ---- leases ---- */
/* Between least and most pages as runs (at most max_runs). The caller announces segments first: skv_core_next_segment. */
int skv_core_lease_get(struct skv_core *, uint32_t client, uint32_t session, uint32_t least, uint32_t most,
                       struct skv_wire_run *ret_runs, uint32_t max_runs, uint32_t *ret_n);
int skv_core_lease_put(struct skv_core *, uint32_t client, uint32_t session, const struct skv_wire_run *runs, uint32_t n);

/*
 * Segments that this client must be told of, one call each, until it returns false: announce
 * (fd >= 0, borrowed) or withdraw (fd = -1). Marks it as told.
 */
struct skv_core_segment {
	uint32_t pool, segment;
	uint64_t bytes;
	int fd;
};
bool skv_core_next_segment(struct skv_core *, uint32_t client, struct skv_core_segment *ret);
int skv_core_segment_ack(struct skv_core *, uint32_t client, uint32_t pool, uint32_t segment);

/* ---- policy of a session (what the operator wants it to run) ---- */
int skv_core_session_policy(struct skv_core *, uint32_t client, uint32_t session, struct skv_msg_policy *ret);
/* Set for one session (uid and 0 ignored otherwise), a UID's, or all; returns how many. */
uint32_t skv_core_swap(struct skv_core *, uint32_t session, uint32_t uid, const char *spec, uint32_t plugin);
/* The client's word on it: kept for display. */
int skv_core_policy_ack(struct skv_core *, uint32_t client, uint32_t session, uint64_t generation, int error,
                        const char *text);
uint64_t skv_core_policy_generation(const struct skv_core *);
int skv_core_control_fd(const struct skv_core *); /* borrowed; clients cannot map it writable */
void skv_core_tick(struct skv_core *, uint64_t now_ns); /* sign of life into the control page */

/* ---- looking ---- */
/* Walk the tables; `cb` gets each live row. Used for status, lists and metrics. */
struct skv_core_account_view { uid_t uid; uint32_t clients, sessions, sequences; uint64_t page_bytes, segment_bytes; };
struct skv_core_client_view { uint32_t client; uid_t uid; pid_t pid; const char *program; uint32_t sessions; uint64_t lease_pages; };
struct skv_core_session_view {
	uint32_t session, client, pool; uid_t uid; const struct skv_model *model; const char *spec; const char *error;
	uint64_t generation, running_generation; const struct skv_session_page *page; uint32_t sequences;
};
struct skv_core_seq_view {
	uint32_t seq; uid_t uid; const char *name, *model; uint32_t client /* 0: detached */; uint32_t tokens, max_tokens;
	uint64_t pages_resident, pages_shared, pages_total;
};
struct skv_core_pool_view {
	uint32_t pool; uid_t uid; uint64_t page_bytes, segment_bytes; uint32_t segments;
	uint64_t pages, free, lease, seq, shared;
};
void skv_core_accounts(const struct skv_core *, void (*cb)(void *, const struct skv_core_account_view *), void *);
void skv_core_clients(const struct skv_core *, void (*cb)(void *, const struct skv_core_client_view *), void *);
void skv_core_sessions(const struct skv_core *, void (*cb)(void *, const struct skv_core_session_view *), void *);
void skv_core_seqs(const struct skv_core *, void (*cb)(void *, const struct skv_core_seq_view *), void *);
void skv_core_pools(const struct skv_core *, void (*cb)(void *, const struct skv_core_pool_view *), void *);

/*
 * Recount everything from the page owners up and compare with the books. NULL when even, else a text
 * (static, overwritten by the next call) that says what is off. With `empty`, everything must be zero too:
 * for shutdown, after skv_core_drop_all().
 */
const char *skv_core_balance(struct skv_core *, bool empty);
void skv_core_drop_all(struct skv_core *);

#endif
