/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/core.h - the state of the daemon: pools, pages, leases, sequences, accounts.
 *
 * The core is pure state: it has no sockets, no io_uring and no log, and runs in one thread. Everything that must
 * outlive the process is in one memfd (the state memfd), as plain tables whose rows refer to each other by index; only
 * the core accesses them. Outside the state memfd the core keeps only what the next process can open or compute again
 * (mappings, open fds).
 *
 * Rooms are the folders of the core. A room includes headers only of the rooms listed before it. The headers named at
 * the end of a room's line are those that the rest of the daemon may include.
 *   state/       the state memfd and its undo log, struct skv_core; block-index.h
 *   memory/      pools, segments, pages, and the memory that users are charged for; memory.h, pins.h
 *   sequences/   the memory of a sequence, its validation, and the names and lists of sequences
 *   operations/  requests of clients, in turns, and how sequences make room: clients.h, requests.h, policies.h,
 *                turns.h, parking.h, prefix.h, views.h
 *   restart/     creating, verifying, resuming, recounting and ending the core as a whole; life.h
 *
 * Pages. Each page of a pool has one owner word in the state:
 *   FREE             the page is not in use
 *   LEASE(client)    the page is in the client's stock or in a sequence that the client holds
 *   SEQ(sequence)    the page belongs to one detached named sequence
 *   SHARED(count)    the page is read-only, and `count` sequences refer to it
 * A SHARED page is freed when its last reference is dropped. The state has one bit for each pair of a sequence and a
 * page: set if the sequence refers to the page, which is then SHARED. A client's page table is never trusted for
 * references.
 * The core reads a client's page tables only when it validates a sequence (detach, fork, death of the client). Each
 * committed page table entry must be a hole, or name a page that is LEASE(that client), or name a SHARED page to which
 * this sequence has a reference; no page may be named twice. A sequence with any other entry is corrupt and is dropped.
 * While a client holds a sequence, the sequence's own pages are LEASE(client) like the client's stock, and the core
 * cannot tell them apart. So a client that drops a held sequence (or detaches an anonymous one) keeps the sequence's
 * own pages on lease: the client takes the pages into its stock or gives them back with lease_put. Only references to
 * SHARED pages are dropped with the sequence.
 *
 * Memory. Pages are in host memory or in the memory of a device; skv_model.device says in which. Host memory exists
 * from the start; a device is added when it is first used. Host memory and each device have limits of their own.
 *
 * Tenants. A pool belongs to one UID, one memory and one page size. Memory passes from one UID to another only after it
 * was given back to the kernel, which zeroes it. Device memory changes hands only as a whole segment, which is
 * destroyed and created anew, zeroed.
 *
 * Page ids. Page id p of a pool is at offset p * page_bytes of the range into which the pool's segments are mapped,
 * because segment_bytes is exactly pages_per_segment * page_bytes. A device's segment may be one to two pages larger
 * than its pages (pools.c). Device segments, too, are mapped one after the other, and a page that would begin in one
 * segment and end in the next is not used: page p is page number p % pages_per_segment of its segment.
 *
 * Segments. A segment of which no page is in use may be withdrawn at any time. The host memory of a pool is one memfd,
 * and its segments are ranges of the memfd: each client with a session on the pool is told of the memfd once, and a
 * range is reused after its memory was given back. On a device each client with a session on the pool is told of each
 * segment and of each segment's end. The number of a device segment is reused only when every client that was told of
 * the segment has acknowledged its end, has closed its last session on the pool, or is gone.
 * A client that closes its last session on a pool thereby gives up all segments and leases there.
 * Segments of a device are created outside the core, and leases wait for them: E_WAIT, skv_core_next_pending().
 *
 * Accounts. Each UID has quotas and counts: clients, sessions, sequences; for each memory the bytes of pages that are
 * not FREE; and the other host memory that the daemon holds for the UID: sequence memory, references, session pages,
 * queues. A charge ends with the object that it was made for; skv_core_balance() recounts all charges.
 *
 * Ids of clients, sessions and sequences contain a generation: the id of an object that no longer exists yields
 * SKV_CORE_E_NOENT and never names another object. No object has the id 0.
 *
 * Errors. A negative errno is fatal for the daemon (out of memory, or the state is broken). A positive value is an enum
 * skv_core_error: the client asked for something that it cannot have. skv_core_why() explains a positive error. A call
 * that returns a positive error has changed nothing, except for SKV_CORE_E_CORRUPT, which drops a sequence, and
 * SKV_CORE_E_TURNS, after which the work continues. If the system refuses something on a client's behalf (memory of a
 * segment or sequence, file descriptors), the error is SKV_CORE_E_NOSPC. Outputs are written on success only.
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
	SKV_CORE_E_QUOTA,   /* the request would exceed the quota of the user's account */
	SKV_CORE_E_NOENT,   /* there is no session or sequence with this id or name */
	SKV_CORE_E_EXIST,   /* another sequence has the name already */
	SKV_CORE_E_BUSY,    /* the sequence is held by another client, or in use otherwise */
	SKV_CORE_E_INVALID, /* an id, page number or model shape in the request is not valid */
	SKV_CORE_E_CORRUPT, /* a sequence's memory is invalid; the sequence was dropped */
	SKV_CORE_E_BACKLOG, /* segment numbers wait for SEGMENT_ACK or for their memory to be given back; try again */
	SKV_CORE_E_WAIT,    /* segments are pending, or memory is being freed; try again when that has ended */
	SKV_CORE_E_TURNS,   /* the work takes several turns of the loop; skv_core_work() reports its end and result */
	SKV_CORE_E_FENCED,  /* a client whose connection ended holds the sequence; try again when the client is gone */
	/* a dead client held the sequence, and its resources are being reclaimed; try again when that is complete */
	SKV_CORE_E_LEAVING,
};

/* Converts an error of the core to the (positive) errno for the reply to the client. */
int skv_core_errno(enum skv_core_error e);

#define SKV_CORE_MAX_ROWS 65535u        /* limit of max_clients, max_sequences, max_sessions, max_pools */
#define SKV_MEMORY_KINDS (SKV_MAX_DEVICES + 1u) /* host memory and the devices */

struct skv_core;

struct skv_core_config {
	/* host memory: */
	uint64_t pool_bytes;    /* limit on the bytes of all segments together */
	/* desired bytes of a segment; rounded down to whole pages and granules of memory, but at least one of each */
	uint64_t segment_bytes;
	uint64_t account_bytes; /* quota of a UID in bytes: pages in use and other host memory */
	/* memory and segment size of one device, for which the tables are dimensioned; 0: there will be no devices */
	uint64_t device_bytes, device_segment_bytes;
	uint32_t account_clients, account_sequences; /* quotas of a UID: number of clients, number of sequences */
	uint32_t max_clients, max_sequences, max_sessions, max_pools; /* numbers of rows of the state's tables */
	/* limits for which 0 means the default: */
	uint32_t account_pools;   /* number of pools that a UID may have (default 8) */
	uint32_t client_sessions; /* number of sessions that a client may have (default 16) */
};

/* Fields as in struct skv_core_config, for one memory. most_bytes: limit up to which pool_bytes can be raised later. */
struct skv_core_memory_limits {
	uint64_t pool_bytes, segment_bytes, account_bytes, most_bytes;
};

/* One line of text on the last positive error, valid until the next call: what was wrong and what was expected. */
const char *skv_core_why(const struct skv_core *);
/* Has the daemon used up its cgroup's memory, less a reserve? While it has, the core creates nothing new. */
bool skv_core_room_is_used_up(const struct skv_core *);

/* What a client is told of a sequence that it gets. */
struct skv_core_seq_info {
	uint32_t seq, max_tokens;
	uint64_t bytes;
	int fd; /* descriptor of the sequence's memory; borrowed */
};

/*
 * The fd store outlives the process. The store has the descriptors of everything that the state refers to, and of the
 * state memfd itself. The store is given each descriptor (borrowed) before the commit of the change that refers to it,
 * and is told the names of descriptors that are no longer needed. Set the store once, before any other call into the
 * core.
 */
/*
 * Bytes of a descriptor's name with its final 0. A name is "state", or a letter and four digits. The letter is p for a
 * pool, g for a segment, s for a sequence, o for a session, c for a client.
 */
#define SKV_FDSTORE_NAME 6u
/*
 * With more stored descriptors than this, no client, session or sequence is created. The next process gets all names in
 * one environment variable, which the kernel limits to 128 KiB; the room that remains is for segments of devices.
 */
#define SKV_MAX_STORED 20000u
#define SKV_FDSTORE_STATE "state"
struct skv_core_fdstore {
	/*
	 * Return false if the store cannot be reached now: the call is repeated at the next commit. Only the descriptor
	 * of a client's process is not offered again, since the state has the pid.
	 */
	bool (*add)(void *ctx, const char *name, int fd);
	bool (*remove)(void *ctx, const char *name);
	void *ctx;
};
void skv_core_set_fdstore(struct skv_core *, const struct skv_core_fdstore *);

#endif
