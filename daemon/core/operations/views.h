/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/operations/views.h - the tables, for status, lists and metrics. */
#ifndef SKV_CORE_VIEWS_H
#define SKV_CORE_VIEWS_H

#include "daemon/core/core.h"

/* Walk the tables; `cb` gets each live row. */
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

#endif
