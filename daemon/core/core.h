/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/core.h - the state of the daemon: pools, pages, leases, sequences, accounts.
 *
 * Pure state: no sockets, no ring, no logging, one thread. Everything that must outlive the process
 * is in ONE memfd (the state memfd) as plain tables that refer to each other by index, behind this
 * module; the process keeps beside it only what can be reopened or remade (maps, open fds).
 *
 * Pages. Each page of a pool has one owner word in the state:
 *   FREE · LEASE(client): in a client's stock or in a sequence it holds · SEQ(sequence): of a
 *   detached named sequence alone · SHARED(count): read-only, referred to by `count` sequences.
 * A SHARED page is freed when its last reference goes; which sequence refers to which shared pages
 * is written in the state (a bit each), never believed from a client's page table.
 * What a client's tables say matters only when a sequence is validated (detach, fork, death): each
 * committed entry must be a hole, or name a page that is LEASE(that client), or SHARED with a
 * reference held by this sequence, and no page twice; anything else makes the sequence corrupt and
 * it is dropped.
 * While a client holds a sequence its own pages are LEASE(client) like the client's stock, and the
 * core cannot tell them apart. So a client that drops a held sequence (or detaches an anonymous
 * one) keeps the pages on lease: it takes them into its stock, or gives them back with lease_put.
 * Only references to SHARED pages go with the sequence.
 *
 * Memory. Pages are in host memory or in that of a device; skv_model.device is its number. Host memory
 * exists from the start, devices are added when they are first used. Each has limits of its own.
 *
 * Tenants. A pool belongs to one UID, one memory and one page size. Memory goes from one UID to another
 * only when it was given back to the kernel, which zeroes it; on a device, as a whole segment that was destroyed and made
 * anew, zeroed. Page id p of
 * a pool is at offset p * page_bytes of the range that segments are mapped into: segment_bytes is
 * pages_per_segment * page_bytes exactly. On a device it may be more than one page more (pools.c); then the page is number
 * p % pages_per_segment of those multiples of page_bytes that lie in its segment whole, in a range of segments one after the other.
 *
 * Segments. A segment without a page in use may be withdrawn at any time. Host memory of a pool is one memfd, of which
 * segments are ranges: a client with a session on the pool is told of it once, and a range is used again when its
 * memory has been given back. On a device each such client is told of each segment and of its end; the number is
 * used again only when every client that had been told has acknowledged the end, has closed its last session on the
 * pool, or is gone.
 * A client that closes its last session on a pool has thereby let go of all its segments and leases there.
 * Segments of a device are made outside of the core, and leases wait for them: E_WAIT, skv_core_next_pending.
 *
 * Accounts. Each UID has quotas and counts: clients, sessions, sequences, for each memory the bytes
 * of pages that are not FREE, and of host memory what else it makes the daemon hold: memory of sequences, references,
 * session pages, queues. Every charge is refunded by the object that made it; skv_core_balance() says
 * whether the state balances.
 *
 * Ids of clients, sessions and sequences carry a generation: an id of something gone is SKV_CORE_E_NOENT,
 * not another object. 0 is never an id.
 *
 * Errors. Negative errno: fatal for the daemon (its own memory ran out, a broken state). Positive: enum
 * skv_core_error, the caller's client asked for something that it cannot have; skv_core_why() says what
 * and nothing has changed, SKV_CORE_E_CORRUPT aside. What the system refuses on a client's behalf (memory
 * of a segment or sequence, file descriptors) is SKV_CORE_E_NOSPC. Outputs are written on success only.
 */
#ifndef SKV_CORE_H
#define SKV_CORE_H

#include <stdbool.h>
#include <sys/types.h>
#include "common/seqmem.h"
#include "common/wire.h"
#include "daemon/mem/mem.h"

enum skv_core_error {
	SKV_CORE_OK = 0,
	SKV_CORE_E_NOSPC,   /* the pool or the daemon is full */
	SKV_CORE_E_QUOTA,   /* the account's quota */
	SKV_CORE_E_NOENT,   /* no such session, sequence */
	SKV_CORE_E_EXIST,   /* the name is taken */
	SKV_CORE_E_BUSY,    /* held by another client */
	SKV_CORE_E_INVALID, /* an id, page or shape that does not fit */
	SKV_CORE_E_CORRUPT, /* a sequence's memory is not believable; it was dropped */
	SKV_CORE_E_BACKLOG, /* pool ids are waiting for SEGMENT_ACK; try again */
	SKV_CORE_E_WAIT,    /* segments are pending; the caller asks again when one is made or failed */
	SKV_CORE_E_TURNS,   /* it takes turns: skv_core_work() will say that it is through, and with what result */
	SKV_CORE_E_FENCED,  /* held by a client whose connection ended; the caller asks again when it is gone */
	SKV_CORE_E_LEAVING, /* held by a client that is gone and ends in turns; the caller asks again when it has ended */
};

/* The errno (positive) that a client is told. */
int skv_core_errno(enum skv_core_error e);

#define SKV_CORE_MAX_ROWS 65535u        /* of max_clients, max_sequences, max_sessions, max_pools */
#define SKV_MEMORY_KINDS (SKV_MAX_DEVICES + 1u) /* host memory and the devices */

struct skv_core;
struct skv_core_session_view;

struct skv_core_config {
	/* of host memory: */
	uint64_t pool_bytes;    /* limit of all segments together */
	uint64_t segment_bytes; /* wanted of one segment; rounded down to whole pages and granules of memory, one at least */
	uint64_t account_bytes; /* quota of a UID: pages in use, and what it takes beside them */
	/* of one device, what tables are made for; 0: there will be no devices */
	uint64_t device_bytes, device_segment_bytes;
	uint32_t account_clients, account_sequences;
	uint32_t max_clients, max_sequences, max_sessions, max_pools; /* table sizes */
	/* 0 = default */
	uint32_t account_pools;   /* page sizes, in each memory, that a UID can use at a time (8) */
	uint32_t client_sessions; /* sessions of one client (16) */
};

/*
 * A new core. `mem` is host memory (daemon/mem/mem.h), borrowed. -EINVAL for a table size
 * of 0 or above SKV_CORE_MAX_ROWS, or a pool that does not hold one segment.
 */
int skv_core_new(const struct skv_core_config *, const struct skv_mem_ops *mem, struct skv_core **ret);
/* Of one that was not given up, everything is dropped. NULL is fine; returns NULL. */
struct skv_core *skv_core_free(struct skv_core *);
/*
 * Change limits and quotas on reload. Table sizes and segment_bytes keep their old values, and pool_bytes does
 * not go beyond four times what the core was made with; false if the new configuration says otherwise.
 * What is already in use beyond a lowered limit stays.
 */
bool skv_core_reconfigure(struct skv_core *, const struct skv_core_config *);

/* Sessions measure recall in one step of so many; 0: in none. */
void skv_core_set_recall(struct skv_core *, uint32_t every);

/* As the fields of the configuration; most_bytes: how far pool_bytes can be raised. */
struct skv_core_memory_limits {
	uint64_t pool_bytes, segment_bytes, account_bytes, most_bytes;
};
/*
 * There is such a device (number as in skv_model), and its memory is `mem`, borrowed; or its limits
 * change, then segment_bytes and most_bytes keep their values.
 */
void skv_core_set_device(struct skv_core *, uint32_t device, const struct skv_mem_ops *mem,
                         const struct skv_core_memory_limits *);

/* One line about the last positive error: what was wrong and what was expected. Valid until the next call. */
const char *skv_core_why(const struct skv_core *);

/* ---- clients and sessions ---- */
/* E_QUOTA: the account's quota of clients. E_NOSPC: the daemon's. `program` is for display, any bytes. */
int skv_core_client_add(struct skv_core *, uid_t uid, pid_t pid, const char *program, uint32_t *ret_client);
/*
 * Its connection has ended, and its process may live: it begins and commits no step any more (the control page's fence),
 * its sequences and pages stay as they are, and it is told nothing. Does it have any, so that this has to last until
 * skv_core_client_gone()?
 */
bool skv_core_client_fence(struct skv_core *, uint32_t client);
/*
 * It can write no more: everything of the client goes, in turns that skv_core_work() makes. Anonymous sequences are
 * dropped, named ones validated, pages freed, sessions closed. Until then it is fenced.
 */
int skv_core_client_gone(struct skv_core *, uint32_t client, uint64_t since_ns);
struct skv_core_seq_info {
	uint32_t seq, max_tokens;
	uint64_t bytes;
	int fd; /* borrowed: the sequence memory */
};
/*
 * A fenced client goes on, on another connection: it is fenced no more, and is told of all segments anew. It says what it has, and
 * then that this is all: sessions, sequences and pages on lease that it did not name are let go, as of a client that was never
 * told of them. A sequence that it made and did not name is dropped, also with a name. E_NOENT: there is no such fenced client.
 */
int skv_core_reconnect(struct skv_core *, uint32_t client);
bool skv_core_is_reconnecting(const struct skv_core *, uint32_t client);
/* E_NOENT: it has no such session; the session has no such sequence. E_INVALID: a page is neither on lease to it nor shared; the session was not named. */
int skv_core_reconnect_session(struct skv_core *, uint32_t client, uint32_t session);
int skv_core_reconnect_seq(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq);
int skv_core_reconnect_pages(struct skv_core *, uint32_t client, uint32_t session, const struct skv_wire_run *runs, uint32_t n);
/* E_TURNS, as calls on sequences. E_INVALID: it does not reconnect. */
int skv_core_reconnect_done(struct skv_core *, uint32_t client);
struct skv_core_done {
	const char *work; /* what was done, in a word (static); "nothing" */
	bool more;       /* there is more to do */
	bool through, waits; /* a task is, memory may have come back; one waits for a client from now on, and may for long */
	uint32_t client; /* of its works one is through; 0: none is */
	int failed;      /* negative errno: there is no memory to go on with, fatal for the daemon */
	uid_t uid;       /* of this user */
	bool gone;       /* it was the end of the client ... */
	uint64_t since_ns; /* ... as it was given to skv_core_client_gone() */
	int result;      /* of what was asked for: 0, or an error and why */
	char why[256];
	struct skv_core_seq_info info; /* of a sequence that was attached or forked; else its fd is -1 */
};
/* A turn of so many units, of some ten nanoseconds. */
void skv_core_work(struct skv_core *, uint32_t units, struct skv_core_done *ret);
/*
 * Once in a while: named sequences that have had no holder for so long are to be parked (skv_core_next_park), or dropped, in turns;
 * 0: none are. Of so many units: true, and it goes on with the next call, of which all sequences take some. now_ns is never 0, and does not
 * go back.
 */
bool skv_core_age(struct skv_core *, uint64_t now_ns, uint64_t park_ns, uint64_t ttl_ns, uint32_t units);
/* Sequences that were dropped so far: with age, and to make room for users below their part of a memory. */
void skv_core_dropped(const struct skv_core *, uint64_t *ret_age, uint64_t *ret_room);
/* `cb` is called for each, with its user. It must not call here. */
void skv_core_on_dropped(struct skv_core *, void (*cb)(void *, uid_t, bool for_room), void *userdata);
/*
 * What clients have of host memory beside their pages is measured, and charged to them: sequences from *at on, first 0, as
 * far as units go. To be called again and again.
 */
void skv_core_measure(struct skv_core *, uint32_t *at, uint32_t units);
/* A client's connection takes so many bytes; 0: charged no more. */
void skv_core_client_holds(struct skv_core *, uint32_t client, uint64_t bytes);
/* Is all memory used that the daemon's cgroup allows it, less what is held back? Then nothing new is made. */
bool skv_core_room_is_used_up(const struct skv_core *);
/* Bytes of host memory that the core's files have now: all; or a user's, of which the state is none. */
struct skv_core_held {
	uint64_t pools, sequences, sessions, state;
};
void skv_core_held(const struct skv_core *, bool all, uid_t uid, struct skv_core_held *ret);
/* All turns that there are. */
void skv_core_work_all(struct skv_core *);

struct skv_core_session_info {
	uint32_t session, pool;
	uint64_t page_bytes, segment_bytes;
	uint32_t pages_per_segment, max_segments;
	int page_fd; /* borrowed: the session page, writable */
	uint64_t page_fd_bytes;
};
/*
 * `spec` and `plugin` are its policy. E_INVALID: a model outside of types.h or on a device that is not
 * there, a spec too long. E_QUOTA:
 * sessions of a client, pools of a UID. E_NOSPC: sessions or pools of the daemon.
 */
int skv_core_session_open(struct skv_core *, uint32_t client, const struct skv_model *, const char *spec,
                          uint32_t plugin, struct skv_core_session_info *ret);
/*
 * Its sequences are detached or, anonymous, dropped. The last one on a pool gives back every lease there. E_TURNS: no other
 * call for the client until that is through, but skv_core_client_gone(). So with calls on sequences, but SEQ_NEW's and
 * release.
 */
int skv_core_session_close(struct skv_core *, uint32_t client, uint32_t session);

/* ---- sequences ---- */
/*
 * A sequence belongs to (UID, model name, rank, its own name). Calls on one need the session that holds it.
 */
/* `name` "" or NULL: anonymous. max_tokens 0: the model's. E_EXIST, E_INVALID, E_QUOTA, E_NOSPC. */
int skv_core_seq_new(struct skv_core *, uint32_t client, uint32_t session, const char *name,
                     uint32_t max_tokens, struct skv_core_seq_info *ret);
/*
 * Its pages go on lease to the client; announce segments before the reply. E_NOENT, E_BUSY, E_FENCED, E_LEAVING,
 * E_INVALID (another shape of model, another device), E_CORRUPT (it was dropped).
 */
int skv_core_seq_attach(struct skv_core *, uint32_t client, uint32_t session, const char *name,
                        struct skv_core_seq_info *ret);
/*
 * Not while the parent is in a step. The pages of the parent's committed tokens become SHARED: its
 * table entries are rewritten by this call, and the client reads them again after the reply. Entries
 * beyond the committed length are left alone, and so are references that the tables no longer name
 * (their release is the client's). The child has the first n_tokens of them (SKV_ALL: all): pages beyond are not
 * shared, and its commit says so; whether its policy can go on from there is for the client to know. E_INVALID: the
 * parent has fewer. E_CORRUPT: the parent was dropped; its pages stay on lease.
 */
int skv_core_seq_fork(struct skv_core *, uint32_t client, uint32_t session, uint32_t parent, const char *name,
                      uint32_t n_tokens, struct skv_core_seq_info *ret);
/*
 * Named: validated, its pages are the sequence's, it has no holder; references that the tables no longer name are released. Pages of
 * uncommitted entries stay on lease. Anonymous: as drop. E_CORRUPT: it was dropped.
 */
int skv_core_seq_detach(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq);
/* The name and the references go; the sequence's own pages stay on lease to the client. */
int skv_core_seq_drop(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq);
/* By name, detached only (of all ranks); for sparsekvctl. Nobody waits for what takes turns of it. E_NOENT, E_BUSY. */
int skv_core_seq_drop_name(struct skv_core *, uid_t uid, const char *model, const char *name);
/* Does the session hold it? Then what it is (borrowed, until the next call). And has the user such a sequence, whatever holds it? */
bool skv_core_seq_held_name(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq, const struct skv_model **ret_model,
                            const char **ret_name);
bool skv_core_seq_exists(const struct skv_core *, uid_t uid, const struct skv_model *, const char *name);
/* Give up references to shared pages, each once, at most SKV_CALL_PAGES: all of them, or E_INVALID and none. */
int skv_core_seq_release(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq,
                         const struct skv_wire_run *runs, uint32_t n);
/* The same of a client that reconnects: some, or all, may have been given up before. */
int skv_core_seq_release_again(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq,
                               const struct skv_wire_run *runs, uint32_t n);

/* ---- leases ---- */
/*
 * Between least and most pages as ascending runs. Fewer than least are had only where the pool is so
 * fragmented that max_runs runs do not hold them, or least is above SKV_CALL_PAGES: ask again. least = 0: whatever there
 * is, maybe nothing.
 * The caller announces segments before the reply: skv_core_next_segment. E_NOSPC, E_QUOTA, E_BACKLOG.
 * E_WAIT while segments that `most` takes are pending, or memory is coming back that others have too much of.
 */
int skv_core_lease_get(struct skv_core *, uint32_t client, uint32_t session, uint32_t least, uint32_t most,
                       struct skv_wire_run *ret_runs, uint32_t max_runs, uint32_t *ret_n);
/* The same of the live and pending segments: no more are requested. */
int skv_core_lease_rest(struct skv_core *, uint32_t client, uint32_t session, uint32_t least, uint32_t most,
                        struct skv_wire_run *ret_runs, uint32_t max_runs, uint32_t *ret_n);
/*
 * Pages that calls of lease_get could get now in all: what the account's quota and the memory allow. More may come of
 * sequences that nobody holds, which make room when somebody asks for it.
 */
int skv_core_lease_room(struct skv_core *, uint32_t client, uint32_t session, uint64_t *ret_pages);
/* Each page, SKV_CALL_PAGES at most, must be on lease to this client: all of them are freed, or E_INVALID and none. */
int skv_core_lease_put(struct skv_core *, uint32_t client, uint32_t session, const struct skv_wire_run *runs,
                       uint32_t n);

/*
 * Memory that this client must be told of, one call each, until it returns false: a pool of host memory, as its segment
 * 0 of all its bytes; or a device's segment. Announce (with the handle, borrowed until the next call into the core) or
 * withdraw (gone). Marks it as told.
 * Any call may withdraw segments from any client, so after each one the caller serves all that
 * wait: skv_core_next_waiting.
 */
struct skv_core_segment {
	uint32_t pool, segment;
	uint64_t bytes;
	bool gone;
	uint32_t kind;      /* of the handle: enum skv_handle_kind */
	int fd;             /* -1: gone, or a kind without */
	const uint8_t *ipc; /* SKV_HANDLE_CUDA_IPC */
};
bool skv_core_next_segment(struct skv_core *, uint32_t client, struct skv_core_segment *ret);
/* The next client that skv_core_next_segment has something for; *cursor starts at 0. False after the last. */
bool skv_core_next_waiting(const struct skv_core *, uint32_t *cursor, uint32_t *ret_client);
/* Is there anything for skv_core_next_segment()? */
bool skv_core_is_untold(const struct skv_core *, uint32_t client);
/* E_INVALID: no such pool or segment number. An unexpected acknowledgement is ignored. */
int skv_core_segment_ack(struct skv_core *, uint32_t client, uint32_t pool, uint32_t segment);
/* A range of host memory that was discarded reads as zeros, and can be used again. */
void skv_core_segment_discarded(struct skv_core *, const struct skv_mem_range *);

/* ---- pending segments: made outside of the core ---- */
struct skv_core_pending {
	uid_t uid; /* of the pool's user */
	uint32_t device, pool, segment;
	uint64_t serial, bytes;
};
/* The next segment to be made, one call each, until it returns false. Marks it as being made. */
bool skv_core_next_pending(struct skv_core *, struct skv_core_pending *ret);
/*
 * It is made, and zeroed (consumes the handle); or it cannot be had. A segment that is not pending any more is
 * destroyed.
 */
void skv_core_segment_made(struct skv_core *, const struct skv_core_pending *, struct skv_mem_handle *);
void skv_core_segment_failed(struct skv_core *, const struct skv_core_pending *);
/* The leases that waited for a pool's segments have been served: what is left over is withdrawn. */
void skv_core_segments_served(struct skv_core *, uint32_t pool);
/* Has the client a session on the device? */
bool skv_core_client_uses(const struct skv_core *, uint32_t client, uint32_t device);
/* What was in the device's memory is gone: all sequences there are dropped, and what fenced clients have there. */
void skv_core_device_lost(struct skv_core *, uint32_t device);
/* The pool of a client's session. E_NOENT. */
int skv_core_session_pool(struct skv_core *, uint32_t client, uint32_t session, uint32_t *ret_pool);
/* Its model (borrowed). E_NOENT. */
int skv_core_session_model(struct skv_core *, uint32_t client, uint32_t session, const struct skv_model **ret);

/* ---- policy of a session (what the operator wants it to run) ---- */
/*
 * The policy to run, stamped with the current generation. A session that the last swap was not about
 * gets what it had: same plugin, same spec.
 */
int skv_core_session_policy(struct skv_core *, uint32_t client, uint32_t session, struct skv_msg_policy *ret);
/* Sessions that fit all of these. */
struct skv_core_scope {
	uint32_t session, client; /* 0: any */
	uint32_t uid;             /* -1: any */
	const char *model;        /* its name; "": any */
};
bool skv_core_in_scope(const struct skv_core_scope *, const struct skv_core_session_view *);
/* Set for the sessions of the scope; returns how many. */
uint32_t skv_core_swap(struct skv_core *, const struct skv_core_scope *, const char *spec, uint32_t plugin);
/*
 * The client's word on what session_policy gave it: 0, it runs; error (positive errno) and text, it
 * stays with the policy that it had. Only the word on what was given last counts.
 */
int skv_core_policy_ack(struct skv_core *, uint32_t client, uint32_t session, uint64_t generation, int error,
                        const char *text);
uint64_t skv_core_policy_generation(const struct skv_core *);
/* Another id for a policy's file, which no daemon with this state has given before. */
uint32_t skv_core_next_plugin(struct skv_core *);
/* Files of the daemon before are there no more: `id_of` says which has a spec's policy now, 0: none, and the session keeps the old id. */
void skv_core_replace_plugins(struct skv_core *, uint32_t (*id_of)(void *, const char *spec), void *);
/* The control page: borrowed, and no one can map it writable any more. */
int skv_core_control_fd(const struct skv_core *, uint64_t *ret_bytes);

/* `cb` is called for a sequence found corrupt, before it is dropped: for the log. It must not call here. */
void skv_core_on_corrupt(struct skv_core *,
                         void (*cb)(void *, uid_t uid, const char *model, const char *name, const char *why),
                         void *userdata);

/* ---- looking ---- */
/* Walk the tables; `cb` gets each live row. Used for status, lists and metrics. */
struct skv_core_account_view {
	uid_t uid;
	uint32_t clients, sessions, sequences;
	uint64_t page_bytes[SKV_MEMORY_KINDS];    /* of pages in use */
	uint64_t segment_bytes[SKV_MEMORY_KINDS]; /* of the segments that hold them, pending ones included */
	uint64_t other_bytes; /* of host memory beside pages; with page_bytes of host memory it is below the quota */
	uint32_t pools;
};
struct skv_core_client_view {
	uint32_t client;
	uid_t uid;
	pid_t pid;
	const char *program;
	uint32_t sessions;
	bool fenced; /* its connection ended, its process has not */
	uint64_t lease_pages; /* in stock or in sequences that it holds */
};
struct skv_core_session_view {
	uint32_t session, client, pool;
	uid_t uid;
	const struct skv_model *model;
	const char *spec;            /* that it runs, by the client's last word */
	const char *error;           /* of its last swap, "" = none */
	uint64_t generation;         /* in which its policy was set ... */
	uint64_t running_generation; /* ... and that it said it runs; smaller: a swap is pending */
	uint32_t plugin;             /* of that policy; next, the one last given to the client; ... */
	uint32_t given_plugin;
	uint32_t running_plugin; /* ... and of `spec`. A session may yet come back to each of the three */
	const struct skv_session_page *page; /* the client's figures, not to be believed */
	uint32_t sequences;
};
struct skv_core_seq_view {
	uint32_t seq;
	uid_t uid;
	const char *name; /* "" = anonymous */
	const char *model;
	uint32_t client, session; /* that hold it; 0: detached */
	uint32_t tokens, max_tokens;
	bool counted;               /* its tables were looked at: the two below are known */
	uint64_t pages[SKV_PAGE_KINDS]; /* by its tables, the shared ones included */
	uint64_t pages_shared;      /* of all groups */
	uint64_t pages_total;       /* of K and V, that its length would take */
	uint64_t page_bytes;
};
struct skv_core_pool_view {
	uint32_t pool;
	uid_t uid;
	uint32_t device;
	uint64_t page_bytes, segment_bytes; /* of one page, of one segment */
	uint32_t segments, pending;
	uint64_t pages, free, lease, seq, shared;
};
void skv_core_accounts(const struct skv_core *, void (*cb)(void *, const struct skv_core_account_view *), void *);
void skv_core_clients(const struct skv_core *, void (*cb)(void *, const struct skv_core_client_view *), void *);
void skv_core_sessions(const struct skv_core *, void (*cb)(void *, const struct skv_core_session_view *), void *);
/*
 * A walk over the sessions or sequences of one UID, or of all, in turns of so many units. True when it is through. What
 * comes and goes between two turns may be missed. Tables are as long as clients say: a walk reads some millions of
 * entries, the rest is not counted.
 */
struct skv_core_walk {
	bool all;
	uid_t uid;
	/* the core's, zeroed by the caller: the next row; and the sequence that is being counted */
	uint32_t row, seq, len, table, index;
	bool counted;
	uint64_t read, shared, pages[SKV_PAGE_KINDS];
};
#define SKV_ROW_UNITS 1000u /* of a row, what the callback makes of it included */
bool skv_core_sessions_some(const struct skv_core *, struct skv_core_walk *, uint32_t *units,
                            void (*cb)(void *, const struct skv_core_session_view *), void *);
bool skv_core_seqs_some(const struct skv_core *, struct skv_core_walk *, uint32_t *units,
                        void (*cb)(void *, const struct skv_core_seq_view *), void *);
void skv_core_pools(const struct skv_core *, void (*cb)(void *, const struct skv_core_pool_view *), void *);

/*
 * What was done since the last commit stays, also if the process dies: call it before anybody can know of it. Before the
 * first one, and after each, a process that dies leaves the state as it was then (undo.h). False: it was given up, and nobody must know.
 */
bool skv_core_commit(struct skv_core *);

/*
 * The daemon cannot go on, maybe in the middle of a change: nothing is committed any more, and what there is is left to the next one as it
 * was at the last commit.
 */
void skv_core_give_up(struct skv_core *);

/*
 * A store of the descriptors of all that the state refers to, its own among them, which outlives the process: it is given each
 * before the commit that refers to it (fd: borrowed), and told by name of those that are needed no more. Set once, before anything
 * else is done.
 */
#define SKV_FDSTORE_NAME 6u /* bytes of a name: a letter (pool, segment g, sequence, session o, client) and four digits; or "state" */
/*
 * The next process is told all names in one environment variable, of which the kernel takes 128 KiB: with so many descriptors no client,
 * session or sequence is made any more. The rest is for segments of devices.
 */
#define SKV_MAX_STORED 20000u
#define SKV_FDSTORE_STATE "state"
struct skv_core_fdstore {
	/* False: it cannot be told now. It is at the next commit, but for clients' processes, of which the state has the numbers. */
	bool (*add)(void *ctx, const char *name, int fd);
	bool (*remove)(void *ctx, const char *name);
	void *ctx;
};
void skv_core_set_fdstore(struct skv_core *, const struct skv_core_fdstore *);

/* ---- a past ---- */
/* What a store has, of a core whose process is gone. */
struct skv_core_found {
	const char *name;
	int fd;       /* -1: it is the core's now. Else left to the caller: the state does not refer to this file */
	bool claimed; /* the state refers to the name, and the core has seen to it that the store has no other file by it */
};
struct skv_core_past_client {
	uint32_t client;
	uid_t uid;
	pid_t pid;
	int pidfd;
};
struct skv_core_past {
	struct skv_core_found *found; /* sorted by this */
	size_t n;
	struct skv_core_fdstore fdstore; /* add NULL: there is none */
	bool whole; /* fail, before anything is changed, where something cannot be had back */
	/* A device with memory in use: make it known (skv_core_set_device()). 1: it is gone, and all in it lost; negative errno: a shortage. */
	int (*device)(void *ctx, struct skv_core *, uint32_t device);
	/* For each client: what it was added with, and the descriptor that was stored (skv_core_client_store), the callee's, or -1. Negative errno. */
	int (*client)(void *ctx, const struct skv_core_past_client *);
	/* Something cannot be had back, whose name was this; for the log. */
	void (*lost)(void *ctx, const char *name, const char *why);
	void *ctx;
};
/*
 * The core as it was at its last commit: ids of clients, sessions and sequences stand, and pages are with whom they were. Sizes
 * are those of the state. Clients are as they were, too: for each that does not come back call skv_core_client_gone().
 * A sequence whose row or memory is wrong is lost alone.
 * *ret_why, a static text: -ENOENT: there is no state. -EBADMSG: it is not one, or one of another version. -EUCLEAN: a row is damaged, or
 * it does not balance. -ENODATA: it is not there as a whole. Where the system lacks something (skv_is_shortage()), the state is as it was,
 * and another time it can be had.
 */
int skv_core_resume(const struct skv_core_config *, const struct skv_mem_ops *, const struct skv_core_past *, struct skv_core **ret,
                    const char **ret_why);
/* Leaves the state, and all that it refers to, as they were at the last commit: for the process that gets the descriptors. NULL. */
struct skv_core *skv_core_abandon(struct skv_core *);
/*
 * The same without a store: all descriptors that the state refers to are given away (fd: the callee's), by the names that a store would
 * have them by, but for those of clients' processes; and how many that are, with those.
 */
void skv_core_leave(struct skv_core *, void (*give)(void *ctx, const char *name, int fd), void *ctx);
size_t skv_core_descriptors(const struct skv_core *);
void skv_core_client_name(uint32_t client, char ret[SKV_FDSTORE_NAME]);
/* A descriptor of the client's process is stored as long as the client is there (fd: borrowed until the commit). */
void skv_core_client_store(struct skv_core *, uint32_t client, int pidfd);
uint32_t skv_core_sequences(const struct skv_core *);

/*
 * Recount everything from the page owners up and compare with the state, unless it was given up. NULL when it balances, else a text
 * (static, overwritten by the next call) that says what is off. With `empty`, everything must be zero too:
 * for shutdown, after skv_core_drop_all().
 */
const char *skv_core_balance(struct skv_core *, bool empty);
void skv_core_drop_all(struct skv_core *);

#endif
