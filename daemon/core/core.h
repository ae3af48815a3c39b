/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/core.h - the state of the daemon: pools, pages, leases, sequences, accounts.
 *
 * Pure state: no sockets, no io_uring, no logging, one thread. Everything that must outlive the process is in one memfd
 * (the state memfd), as plain tables that refer to each other by index and that only this module accesses. Beside it
 * the process holds only what can be reopened or remade (maps, open fds).
 *
 * Rooms. Each includes only those before it; behind each are its headers for the rest of the daemon.
 *   state/       the state memfd and its undo log, struct skv_core; block-index.h
 *   memory/      pools, segments, pages, and what users are charged; memory.h, pins.h
 *   sequences/   a sequence's memory, how it is checked, names and lists of sequences
 *   operations/  what clients ask for, in turns, and what makes room: clients.h, requests.h, policies.h, turns.h,
 *                parking.h, prefix.h, views.h
 *   restart/     the core as a whole: made, verified, resumed, recounted, ended; life.h
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

/* The fields are those of struct skv_core_config. most_bytes: limit up to which pool_bytes can be raised. */
struct skv_core_memory_limits {
	uint64_t pool_bytes, segment_bytes, account_bytes, most_bytes;
};

/* One line about the last positive error: what was wrong and what was expected. Valid until the next call. */
const char *skv_core_why(const struct skv_core *);
/* Is all memory used that the cgroup allows the daemon, less its reserve? Then nothing new is created. */
bool skv_core_room_is_used_up(const struct skv_core *);

/* What a client gets of a sequence. */
struct skv_core_seq_info {
	uint32_t seq, max_tokens;
	uint64_t bytes;
	int fd; /* borrowed: the sequence's memory */
};

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

#endif
