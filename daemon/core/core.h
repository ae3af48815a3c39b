/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/core.h - the state of the daemon: pools, pages, leases, sequences, accounts.
 *
 * Pure state: no sockets, no io_uring, no logging, one thread. Everything that must outlive the process is in one memfd
 * (the state memfd), as plain tables that refer to each other by index and that only this module accesses. Beside it
 * the process holds only what can be reopened or remade (maps, open fds).
 *
 * Pages. Each page of a pool has one owner word in the state:
 *   FREE             in no use
 *   LEASE(client)    in the client's stock or in a sequence that the client holds
 *   SEQ(sequence)    of one detached named sequence
 *   SHARED(count)    read-only; `count` sequences refer to it
 * A SHARED page is freed when its last reference is dropped. The state has a bit for each sequence and shared page to
 * which the sequence refers; a client's page table is never trusted for that.
 * The core reads a client's page tables only when it validates a sequence (detach, fork, death of the client). Each
 * committed entry must be a hole, or name a page that is LEASE(that client), or name a SHARED page to which this
 * sequence has a reference; no page may be named twice. Anything else makes the sequence corrupt, and it is dropped.
 * While a client holds a sequence, the sequence's own pages are LEASE(client) like the client's stock, and the core
 * cannot tell them apart. So a client that drops a held sequence (or detaches an anonymous one) keeps the pages on
 * lease: it takes them into its stock or gives them back with lease_put. Only references to SHARED pages are dropped
 * with the sequence.
 *
 * Memory. Pages are in host memory or in the memory of a device; skv_model.device is its number. Host memory exists
 * from the start; devices are added when they are first used. Each has its own limits.
 *
 * Tenants. A pool belongs to one UID, one memory and one page size. Memory passes from one UID to another only after it
 * was given back to the kernel, which zeroes it; on a device, only as a whole segment that was destroyed and created
 * anew, zeroed.
 * Page id p of a pool is at offset p * page_bytes of the range that its segments are mapped into, because segment_bytes
 * is exactly pages_per_segment * page_bytes. On a device segment_bytes may exceed that by one to two pages (pools.c).
 * Segments are then still mapped one after the other, and only those multiples of page_bytes that lie in a segment as a
 * whole are pages: page p is page number p % pages_per_segment of its segment.
 *
 * Segments. A segment of which no page is in use may be withdrawn at any time. Host memory of a pool is one memfd, and
 * segments are ranges of it: each client with a session on the pool is told of the memfd once, and a range is reused
 * after its memory was given back. On a device each such client is told of each segment and of its end. The segment's
 * number is reused only when every client that was told of it has acknowledged the end, has closed its last session on
 * the pool, or is gone.
 * A client that closes its last session on a pool thereby gives up all segments and leases there.
 * Segments of a device are created outside the core, and leases wait for them: E_WAIT, skv_core_next_pending().
 *
 * Accounts. Each UID has quotas and counts: clients, sessions, sequences; for each memory the bytes of pages that are
 * not FREE; and other host memory that the daemon holds for it: sequence memory, references, session pages, queues.
 * Every charge is refunded by the object that made it; skv_core_balance() checks that the state balances.
 *
 * Ids of clients, sessions and sequences contain a generation: the id of an object that no longer exists yields
 * SKV_CORE_E_NOENT and never names another object. 0 is never an id.
 *
 * Errors. A negative errno is fatal for the daemon (it is out of memory, or the state is broken). A positive value is
 * an enum skv_core_error: the client asked for something that it cannot have. skv_core_why() explains it, and nothing
 * has changed, except for SKV_CORE_E_CORRUPT. If the system refuses something on a client's behalf (memory of a segment
 * or sequence, file descriptors), the error is SKV_CORE_E_NOSPC. Outputs are written on success only.
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
	SKV_CORE_E_QUOTA,   /* the quota of the account */
	SKV_CORE_E_NOENT,   /* no such session, sequence */
	SKV_CORE_E_EXIST,   /* the name is taken */
	SKV_CORE_E_BUSY,    /* held by another client, or in use otherwise */
	SKV_CORE_E_INVALID, /* an id, page or shape that does not fit */
	SKV_CORE_E_CORRUPT, /* a sequence's memory is invalid; the sequence was dropped */
	SKV_CORE_E_BACKLOG, /* segment numbers wait for SEGMENT_ACK or for their memory to be given back; try again */
	SKV_CORE_E_WAIT,    /* segments are pending, or memory is being freed; ask again when that has ended */
	SKV_CORE_E_TURNS,   /* the work takes several turns; skv_core_work() reports its end and result */
	SKV_CORE_E_FENCED,  /* held by a client whose connection ended; ask again when the client is gone */
	/* held by a client that is gone and whose end is in progress; ask again when it has ended */
	SKV_CORE_E_LEAVING,
};

/* The (positive) errno for the reply to the client. */
int skv_core_errno(enum skv_core_error e);

#define SKV_CORE_MAX_ROWS 65535u        /* limit of max_clients, max_sequences, max_sessions, max_pools */
#define SKV_MEMORY_KINDS (SKV_MAX_DEVICES + 1u) /* host memory and the devices */

struct skv_core;
struct skv_core_session_view;

struct skv_core_config {
	/* host memory */
	uint64_t pool_bytes;    /* limit of all segments together */
	/* desired size of a segment; rounded down to whole pages and granules of memory, at least one */
	uint64_t segment_bytes;
	uint64_t account_bytes; /* quota of a UID: pages in use and other host memory */
	/* one device: sizes for which tables are made; 0: there will be no devices */
	uint64_t device_bytes, device_segment_bytes;
	uint32_t account_clients, account_sequences;
	uint32_t max_clients, max_sequences, max_sessions, max_pools; /* table sizes */
	/* 0 = default */
	uint32_t account_pools;   /* page sizes that a UID can use at a time in each memory (8) */
	uint32_t client_sessions; /* sessions of one client (16) */
};

/*
 * Creates a core. `mem` is host memory (daemon/mem/mem.h), borrowed. -EINVAL if a table size is 0 or above
 * SKV_CORE_MAX_ROWS, or if the pool does not hold one segment.
 */
int skv_core_new(const struct skv_core_config *, const struct skv_mem_ops *mem, struct skv_core **ret);
/* Frees the core. Drops everything unless the core was given up. NULL is fine; returns NULL. */
struct skv_core *skv_core_free(struct skv_core *);
/*
 * Changes limits and quotas on reload. Table sizes and segment_bytes keep their old values, and pool_bytes stays within
 * four times its value at creation; returns false if the new configuration asks for more. What is already in use beyond
 * a lowered limit stays.
 */
bool skv_core_reconfigure(struct skv_core *, const struct skv_core_config *);

/* Sessions measure recall in one of `every` steps; 0: in none. */
void skv_core_set_recall(struct skv_core *, uint32_t every);

/* The fields are those of struct skv_core_config. most_bytes: limit up to which pool_bytes can be raised. */
struct skv_core_memory_limits {
	uint64_t pool_bytes, segment_bytes, account_bytes, most_bytes;
};
/*
 * Adds a device (number as in skv_model) with the memory `mem`, borrowed. For a device that exists, changes its limits;
 * segment_bytes and most_bytes then keep their values.
 */
void skv_core_set_device(struct skv_core *, uint32_t device, const struct skv_mem_ops *mem,
                         const struct skv_core_memory_limits *);

/* One line about the last positive error: what was wrong and what was expected. Valid until the next call. */
const char *skv_core_why(const struct skv_core *);

/*
 * Units of one piece of work in a turn of the daemon's loop. A turn makes up to five pieces (a task, a list, parking, keys, a tick), and
 * serves requests: together they stay below 2 ms of processor time.
 */
#define SKV_TURN_UNITS 16000u

/* ---- clients and sessions ---- */
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
struct skv_core_seq_info {
	uint32_t seq, max_tokens;
	uint64_t bytes;
	int fd; /* borrowed: the sequence's memory */
};
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
int skv_core_reconnect_pages(struct skv_core *, uint32_t client, uint32_t session, const struct skv_wire_run *runs, uint32_t n);
/* E_TURNS as for calls on sequences. E_INVALID: the client does not reconnect. */
int skv_core_reconnect_done(struct skv_core *, uint32_t client);
struct skv_core_done {
	const char *work; /* kind of the work (static); "nothing" */
	bool more;       /* more work can be done now */
	/*
	 * `through`: a task finished, so memory may have come back. `waits`: a task began to wait for a client, perhaps
	 * for long.
	 */
	bool through, waits;
	uint32_t client; /* client whose task finished; 0: none */
	int failed;      /* negative errno: out of memory for the task, fatal for the daemon */
	uid_t uid;       /* user of the finished task */
	bool gone;       /* the task was the end of its client */
	uint64_t since_ns; /* of a client that ended: as given to skv_core_client_gone() */
	int result;      /* of the finished task: 0, or an error explained by `why` */
	char why[256];
	struct skv_core_seq_info info; /* the sequence that was attached or forked; else its fd is -1 */
};
/* Does one turn of work, about `units` work units of some ten nanoseconds each. */
void skv_core_work(struct skv_core *, uint32_t units, struct skv_core_done *ret);
/*
 * Call periodically. Named sequences without a holder are parked after park_ns (skv_core_next_park()) and dropped after
 * ttl_ns, in turns; 0 disables either. A call does at most `units` of work; returns true if the pass over all sequences
 * continues with the next call. now_ns is never 0 and does not go back.
 */
bool skv_core_age(struct skv_core *, uint64_t now_ns, uint64_t park_ns, uint64_t ttl_ns, uint32_t units);
/* Sequences dropped so far: because of age, and to make room for users that have less than their share of a memory. */
void skv_core_dropped(const struct skv_core *, uint64_t *ret_age, uint64_t *ret_room);
/* Calls `cb` with the user of each dropped sequence. `cb` must not call into the core. */
void skv_core_on_dropped(struct skv_core *, void (*cb)(void *, uid_t, bool for_room), void *userdata);
/*
 * Measures the host memory that clients take beside their pages, and charges it: sequences from *at on (0 at first), as
 * far as `units` go. Call again and again.
 */
void skv_core_measure(struct skv_core *, uint32_t *at, uint32_t units);
/* Charges `bytes` for the client's connection, in place of the previous charge; 0: nothing. */
void skv_core_client_holds(struct skv_core *, uint32_t client, uint64_t bytes);
/* Is all memory used that the cgroup allows the daemon, less its reserve? Then nothing new is created. */
bool skv_core_room_is_used_up(const struct skv_core *);
/* Bytes of host memory that the core's files hold now: in all, or for one user (then `state` is 0). */
struct skv_core_held {
	uint64_t pools, sequences, sessions, state;
};
void skv_core_held(const struct skv_core *, bool all, uid_t uid, struct skv_core_held *ret);
/* Makes turns until no task can continue. */
void skv_core_work_all(struct skv_core *);

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
bool skv_core_seq_held_name(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq, const struct skv_model **ret_model,
                            const char **ret_name);
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

/*
 * Returns the next memory that this client must be told of, until it returns false: a pool of host memory, as its
 * segment 0 with all bytes; or a segment of a device. It is to be announced (with the handle, borrowed until the next
 * call into the core) or withdrawn (gone). Marks it as told.
 * Any call may withdraw segments from any client, so after each call the caller serves all waiting clients:
 * skv_core_next_waiting().
 */
struct skv_core_segment {
	uint32_t pool, segment;
	uint64_t bytes;
	bool gone;
	uint32_t kind;      /* of the handle: enum skv_handle_kind */
	int fd;             /* -1: gone, or a kind without fd */
	const uint8_t *ipc; /* SKV_HANDLE_CUDA_IPC */
};
bool skv_core_next_segment(struct skv_core *, uint32_t client, struct skv_core_segment *ret);
/* The next client for which skv_core_next_segment() has something; *cursor starts at 0. False after the last one. */
bool skv_core_next_waiting(const struct skv_core *, uint32_t *cursor, uint32_t *ret_client);
/* Does skv_core_next_segment() have anything for the client? */
bool skv_core_is_untold(const struct skv_core *, uint32_t client);
/* E_INVALID: no such pool or segment number. An unexpected acknowledgement is ignored. */
int skv_core_segment_ack(struct skv_core *, uint32_t client, uint32_t pool, uint32_t segment);
/* A range of host memory was discarded: it reads as zeros and can be used again. */
void skv_core_segment_discarded(struct skv_core *, const struct skv_mem_range *);

/* ---- pending segments: created outside the core ---- */
struct skv_core_pending {
	uid_t uid; /* of the pool's user */
	uint32_t device, pool, segment;
	uint64_t serial, bytes;
};
/* The next segment to be created, one a call, until it returns false. Marks it as being created. */
bool skv_core_next_pending(struct skv_core *, struct skv_core_pending *ret);
/*
 * The segment was created and zeroed (the handle is consumed), or it cannot be had. A segment that is no longer pending
 * is destroyed.
 */
void skv_core_segment_made(struct skv_core *, const struct skv_core_pending *, struct skv_mem_handle *);
void skv_core_segment_failed(struct skv_core *, const struct skv_core_pending *);
/* The leases that waited for the pool's segments have been served: withdraws spare segments. */
void skv_core_segments_served(struct skv_core *, uint32_t pool);
/* Does the client have a session on the device? */
bool skv_core_client_uses(const struct skv_core *, uint32_t client, uint32_t device);
/* The device's memory is lost: drops all sequences there, and what fenced clients have there. */
void skv_core_device_lost(struct skv_core *, uint32_t device);
/* The pool of a client's session. E_NOENT. */
int skv_core_session_pool(struct skv_core *, uint32_t client, uint32_t session, uint32_t *ret_pool);
/* The session's model (borrowed). E_NOENT. */
int skv_core_session_model(struct skv_core *, uint32_t client, uint32_t session, const struct skv_model **ret);

/* ---- policy of a session (what the operator wants it to run) ---- */
/*
 * Returns the policy to run, with the current generation. A session outside the scope of the last swap gets what it
 * had: same plugin, same spec.
 */
int skv_core_session_policy(struct skv_core *, uint32_t client, uint32_t session, struct skv_msg_policy *ret);
/* Sessions that match all of these. */
struct skv_core_scope {
	uint32_t session, client; /* 0: any */
	uint32_t uid;             /* -1: any */
	const char *model;        /* its name; "": any */
};
bool skv_core_in_scope(const struct skv_core_scope *, const struct skv_core_session_view *);
/* Sets the policy of the sessions in the scope; returns their number. */
uint32_t skv_core_swap(struct skv_core *, const struct skv_core_scope *, const char *spec, uint32_t plugin);
/*
 * The client's answer to what session_policy gave it. error 0: the session runs it. A positive errno and a text: the
 * session stays with its previous policy. Only the answer to the latest policy counts.
 */
int skv_core_policy_ack(struct skv_core *, uint32_t client, uint32_t session, uint64_t generation, int error,
                        const char *text);
uint64_t skv_core_policy_generation(const struct skv_core *);
/* A new id for a policy's file, which no daemon with this state has used before. */
uint32_t skv_core_next_plugin(struct skv_core *);
/*
 * The plugin files of the previous daemon no longer exist. `id_of` returns the new id of a spec's policy; 0: none, and
 * the session keeps the old id.
 */
void skv_core_replace_plugins(struct skv_core *, uint32_t (*id_of)(void *, const char *spec), void *);
/* The control page: borrowed. It can no longer be mapped writable. */
int skv_core_control_fd(const struct skv_core *, uint64_t *ret_bytes);
/* The state's file: borrowed. The next process has the same one if it has the memory that the state refers to. */
int skv_core_state_fd(const struct skv_core *);

/* Calls `cb` for a sequence found corrupt, before it is dropped; for the log. `cb` must not call into the core. */
void skv_core_on_corrupt(struct skv_core *,
                         void (*cb)(void *, uid_t uid, const char *model, const char *name, const char *why),
                         void *userdata);

/* ---- views ---- */
/* Walk the tables; `cb` gets each live row. For status, lists and metrics. */
struct skv_core_account_view {
	uid_t uid;
	uint32_t clients, sessions, sequences;
	uint64_t page_bytes[SKV_MEMORY_KINDS];    /* of pages in use */
	uint64_t segment_bytes[SKV_MEMORY_KINDS]; /* of the segments that hold them, including pending ones */
	/* host memory beside pages; together with page_bytes of host memory it is limited by the quota */
	uint64_t other_bytes;
	uint32_t pools;
};
struct skv_core_client_view {
	uint32_t client;
	uid_t uid;
	pid_t pid;
	const char *program;
	uint32_t sessions;
	bool fenced; /* its connection ended, its process lives */
	uint64_t lease_pages; /* in its stock or in sequences that it holds */
};
struct skv_core_session_view {
	uint32_t session, client, pool;
	uid_t uid;
	const struct skv_model *model;
	const char *spec;            /* that the session runs, as the client last said */
	const char *error;           /* of its last swap; "": none */
	uint64_t generation;         /* in which its policy was set */
	uint64_t running_generation; /* of the policy that it runs; smaller than `generation`: a swap is pending */
	/*
	 * Plugins of the policy that is set, of the one last given to the client, and of `spec`. A session may return
	 * to any of the three.
	 */
	uint32_t plugin;
	uint32_t given_plugin;
	uint32_t running_plugin;
	const struct skv_session_page *page; /* the client's figures, untrusted */
	uint32_t sequences;
};
struct skv_core_seq_view {
	uint32_t seq;
	uid_t uid;
	const char *name; /* "": anonymous */
	const char *model;
	uint32_t client, session; /* that hold it; 0: detached */
	uint32_t tokens, max_tokens;
	bool counted;               /* its tables were read: the two fields below are known */
	uint64_t pages[SKV_PAGE_KINDS]; /* named by its tables, including shared pages */
	uint64_t pages_shared;      /* of all kinds */
	uint64_t pages_total;       /* of K and V, for its length without eviction */
	uint64_t page_bytes;
};
struct skv_core_pool_view {
	uint32_t pool;
	uid_t uid;
	uint32_t device;
	uint64_t page_bytes, segment_bytes; /* size of a page, of a segment */
	uint32_t segments, pending;
	uint64_t pages, free, lease, seq, shared;
};
void skv_core_accounts(const struct skv_core *, void (*cb)(void *, const struct skv_core_account_view *), void *);
void skv_core_clients(const struct skv_core *, void (*cb)(void *, const struct skv_core_client_view *), void *);
void skv_core_sessions(const struct skv_core *, void (*cb)(void *, const struct skv_core_session_view *), void *);
/*
 * Walks over the sessions or sequences of one UID or of all, `units` of work at a time. Returns true at the end.
 * Objects that come and go between two calls may be missed. Clients determine the length of page tables, so a walk
 * reads at most some millions of entries; the remaining sequences are not counted.
 */
struct skv_core_walk {
	bool all;
	uid_t uid;
	/* the core's, zeroed by the caller: the next row, and the sequence that is being counted */
	uint32_t row, seq, len, table, index;
	bool counted;
	uint64_t read, shared, pages[SKV_PAGE_KINDS];
};
#define SKV_ROW_UNITS 1000u /* cost of a row, including the callback */
bool skv_core_sessions_some(const struct skv_core *, struct skv_core_walk *, uint32_t *units,
                            void (*cb)(void *, const struct skv_core_session_view *), void *);
bool skv_core_seqs_some(const struct skv_core *, struct skv_core_walk *, uint32_t *units,
                        void (*cb)(void *, const struct skv_core_seq_view *), void *);
void skv_core_pools(const struct skv_core *, void (*cb)(void *, const struct skv_core_pool_view *), void *);

/*
 * Commits the changes since the last commit, so that they survive the death of the process: call it before anything
 * outside can learn of them. If the process dies, the state is as it was at the last commit (undo.h). False: the core
 * was given up, and nothing may be told.
 */
bool skv_core_commit(struct skv_core *);

/*
 * The daemon cannot continue, perhaps in the middle of a change: nothing is committed any more, and the next process
 * finds the state as of the last commit.
 */
void skv_core_give_up(struct skv_core *);

/*
 * A store that outlives the process, for the descriptors of everything that the state refers to, the state's own
 * included. It is given each descriptor before the commit that refers to it (fd: borrowed), and is told the names of
 * those that are no longer needed. Set it once, before anything else is done.
 */
/* bytes of a name: a letter (pool, segment g, sequence, session o, client) and four digits; or "state" */
#define SKV_FDSTORE_NAME 6u
/*
 * The next process gets all names in one environment variable, which the kernel limits to 128 KiB: with this many
 * descriptors no client, session or sequence is created any more. The rest is for segments of devices.
 */
#define SKV_MAX_STORED 20000u
#define SKV_FDSTORE_STATE "state"
struct skv_core_fdstore {
	/*
	 * False: the store cannot be told now. It is told at the next commit, except of clients' processes, whose pids
	 * are in the state.
	 */
	bool (*add)(void *ctx, const char *name, int fd);
	bool (*remove)(void *ctx, const char *name);
	void *ctx;
};
void skv_core_set_fdstore(struct skv_core *, const struct skv_core_fdstore *);

/* ---- resuming the state of a previous process ---- */
/* What a store has of a core whose process is gone. */
struct skv_core_found {
	const char *name;
	int fd;       /* -1: taken by the core. Else left to the caller: the state does not refer to this file */
	/* the state refers to the name, and the core has made sure that the store has no other file of that name */
	bool claimed;
};
struct skv_core_past_client {
	uint32_t client;
	uid_t uid;
	pid_t pid;
	int pidfd;
};
struct skv_core_past {
	struct skv_core_found *found; /* the core sorts it */
	size_t n;
	struct skv_core_fdstore fdstore; /* add NULL: there is no store */
	bool whole; /* fail, before anything is changed, if something cannot be recovered */
	/*
	 * Makes a device with memory in use known (skv_core_set_device()). 1: the device is gone, and everything in its
	 * memory is lost. Negative errno: a shortage.
	 */
	int (*device)(void *ctx, struct skv_core *, uint32_t device);
	/*
	 * Called for each client: how it was added, and the stored descriptor of its process (skv_core_client_store()),
	 * owned by the callee, or -1. Negative errno.
	 */
	int (*client)(void *ctx, const struct skv_core_past_client *);
	/* Something of this name cannot be recovered; for the log. */
	void (*lost)(void *ctx, const char *name, const char *why);
	void *ctx;
};
/*
 * Restores the core as of its last commit: ids of clients, sessions and sequences stay valid, and pages keep their
 * owners. Sizes are those of the state. Clients are restored, too: call skv_core_client_gone() for each that does not
 * come back. If a sequence's row or memory is wrong, only that sequence is lost.
 * *ret_why is a static text. -ENOENT: there is no state. -EBADMSG: it is not a state, or of another version. -EUCLEAN:
 * a row is damaged, or the state does not balance. -ENODATA: parts are missing. If the system lacks something
 * (skv_is_shortage()), the state is unchanged and can be resumed later.
 */
int skv_core_resume(const struct skv_core_config *, const struct skv_mem_ops *, const struct skv_core_past *, struct skv_core **ret,
                    const char **ret_why);
/*
 * Frees the core but leaves the state, and everything that it refers to, as of the last commit, for the process that
 * gets the descriptors. Returns NULL.
 */
struct skv_core *skv_core_abandon(struct skv_core *);
/*
 * skv_core_leave(): the same without a store: gives away all descriptors that the state refers to, by their store names
 * (fd: owned by the callee), except those of clients' processes. skv_core_descriptors(): their number, including those
 * of clients' processes.
 */
void skv_core_leave(struct skv_core *, void (*give)(void *ctx, const char *name, int fd), void *ctx);
size_t skv_core_descriptors(const struct skv_core *);
void skv_core_client_name(uint32_t client, char ret[SKV_FDSTORE_NAME]);
/* Stores a descriptor of the client's process for as long as the client exists (fd: borrowed until the commit). */
void skv_core_client_store(struct skv_core *, uint32_t client, int pidfd);
uint32_t skv_core_sequences(const struct skv_core *);

/*
 * Recounts everything from the page owners up and compares it with the state, unless the core was given up. NULL if the
 * state balances, else a text that says what is wrong (static, overwritten by the next call). With `empty` everything
 * must also be zero: for shutdown, after skv_core_drop_all().
 */
const char *skv_core_balance(struct skv_core *, bool empty);
void skv_core_drop_all(struct skv_core *);

#endif
