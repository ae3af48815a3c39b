/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/operations/views.h - read-only views of the core's tables, for status, lists and metrics. */
#ifndef SKV_CORE_VIEWS_H
#define SKV_CORE_VIEWS_H

#include "daemon/core/core.h"

/* What a walk passes to its callback: a view of a live row. */
struct skv_core_account_view {
	uid_t uid;
	uint32_t clients, sessions, sequences;
	uint64_t page_bytes[SKV_MEMORY_KINDS];    /* bytes of pages in use */
	uint64_t segment_bytes[SKV_MEMORY_KINDS]; /* bytes of the segments of the user's pools, pending ones included */
	/* bytes of other host memory; the quota limits the sum of these and the page_bytes of host memory */
	uint64_t other_bytes;
	uint32_t pools;
};
struct skv_core_client_view {
	uint32_t client;
	uid_t uid;
	pid_t pid;
	const char *program;
	uint32_t sessions;
	bool fenced; /* the client's connection has ended, and its process may still live */
	uint64_t lease_pages; /* number of pages in the client's stock and in the sequences that it holds */
};
struct skv_core_session_view {
	uint32_t session, client, pool;
	uid_t uid;
	const struct skv_model *model;
	const char *spec;            /* spec of the policy that the session runs, as the client last reported */
	const char *error;           /* error text of the session's last policy swap; "": the swap did not fail */
	uint64_t generation;         /* policy generation in which the session's policy was set */
	uint64_t running_generation; /* generation of the policy that runs; below `generation`: a swap is pending */
	/*
	 * Plugin ids of three policies: the one set for the session, the one last given to the client, and the one that
	 * the session runs. A session may return to any of the three.
	 */
	uint32_t plugin;
	uint32_t given_plugin;
	uint32_t running_plugin;
	const struct skv_session_page *page; /* figures that the client writes; untrusted */
	uint32_t sequences;
};
struct skv_core_seq_view {
	uint32_t seq;
	uid_t uid;
	const char *name; /* "": an anonymous sequence */
	const char *model;
	uint32_t client, session; /* ids of the client and session that hold the sequence; 0: it is detached */
	uint32_t tokens, max_tokens;
	bool counted;               /* pages[] and pages_shared are valid: the sequence's tables were read */
	uint64_t pages[SKV_PAGE_KINDS]; /* number of pages of each kind that the tables name, including shared pages */
	uint64_t pages_shared;      /* number of shared pages, of all kinds, that the tables name */
	uint64_t pages_total;       /* number of pages of K and V that the sequence would have without eviction */
	uint64_t page_bytes;
};
struct skv_core_pool_view {
	uint32_t pool;
	uid_t uid;
	uint32_t device;
	uint64_t page_bytes, segment_bytes; /* bytes of one page, bytes of one segment */
	uint32_t segments, pending;
	uint64_t pages, free, lease, seq, shared;
};
void skv_core_sessions(const struct skv_core *, void (*cb)(void *, const struct skv_core_session_view *), void *);
/* Calls `cb` with the UID of each account. */
void skv_core_users(const struct skv_core *, void (*cb)(void *, uid_t), void *);

/* Sums over the rows of one UID or of all. */
struct skv_core_totals {
	uint64_t clients, sessions, sequences, other_bytes;
	uint64_t page_bytes[SKV_MEMORY_KINDS], segment_bytes[SKV_MEMORY_KINDS];
};
void skv_core_totals(const struct skv_core *, bool all, uid_t uid, struct skv_core_totals *ret);

/*
 * A walk over one of the core's tables, in several calls: over the rows of one UID or of all. Each call goes on as far
 * as *units of work go, and returns true at the end of the walk. Rows that come and go between two calls may be missed.
 * `cb` takes from *units what it costs itself.
 */
struct skv_core_walk {
	bool all;
	uid_t uid;
	/* progress, zeroed by the caller before the first call: the next row, and the sequence being counted */
	uint32_t row, seq, len, table, index;
	bool counted;
	uint64_t read, shared, pages[SKV_PAGE_KINDS];
};
bool skv_core_accounts_some(const struct skv_core *, struct skv_core_walk *, uint32_t *units,
                            void (*cb)(void *, const struct skv_core_account_view *), void *);
bool skv_core_clients_some(const struct skv_core *, struct skv_core_walk *, uint32_t *units,
                           void (*cb)(void *, const struct skv_core_client_view *), void *);
bool skv_core_sessions_some(const struct skv_core *, struct skv_core_walk *, uint32_t *units,
                            void (*cb)(void *, const struct skv_core_session_view *), void *);
/*
 * Clients determine the length of page tables, so a walk over sequences reads at most some millions of entries; the
 * pages of the remaining sequences are not counted.
 */
bool skv_core_seqs_some(const struct skv_core *, struct skv_core_walk *, uint32_t *units,
                        void (*cb)(void *, const struct skv_core_seq_view *), void *);
bool skv_core_pools_some(const struct skv_core *, struct skv_core_walk *, uint32_t *units,
                         void (*cb)(void *, const struct skv_core_pool_view *), void *);

/* Bytes of host memory that memfds take, in `state` those of the state file and the control page. */
struct skv_core_held {
	uint64_t pools, sequences, sessions, state;
};
/* Adds to *sum, which the caller zeroed before the first call, the memory of all memfds. */
bool skv_core_held_some(const struct skv_core *, struct skv_core_walk *, uint32_t *units, struct skv_core_held *sum);

#endif
