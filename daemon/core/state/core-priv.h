/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/state/core-priv.h - struct skv_core, which all files of core/ work on.
 *
 * The state is in core->state (the memfd). Beside it are companions, indexed as its tables, for what a process can
 * reopen or remake: fds, maps, scratch. A companion exists exactly while its row is live.
 *
 * Changes: the state is constant except through skv_write_...() (state.h), which save the old bytes. skv_pages_set() is
 * the only writer of owner words and updates every count that follows from them. After pages became FREE, call
 * skv_pool_shrink(): it withdraws segments that are no longer needed, and the pool itself.
 */
#ifndef SKV_CORE_PRIV_H
#define SKV_CORE_PRIV_H

#include "common/queue.h"
#include "daemon/core/state/bitset.h"
#include "daemon/core/state/block-index.h"
#include "daemon/core/state/state.h"
#include "daemon/mem/mem.h"

/* The daemon's view of a sequence's memory. Only the header is mapped (seqfile.h). */
struct skv_seq_local {
	int fd;
	struct skv_seqmem *mem;
	struct skv_seqmem_layout layout;
	enum skv_park_state {
		SKV_PARK_NOT,
		SKV_PARK_WANTED,  /* to be parked: to make room, or idle for long */
		SKV_PARK_STARTED, /* it is being written to a file */
		SKV_PARK_FAILED,  /* parking failed recently */
		SKV_PARK_READ,    /* not parked: a sealed prefix is being read for the prefix store */
	} parking; /* written by skv_park_set() alone */
	bool wanted; /* READ: a request waits for its memory */
	/* Neighbours in its queue (park-queue.h), written by skv_park_set() alone. */
	uint32_t park_prev, park_next;
	struct skv_block_key *blocks; /* of a sealed prefix: [n_blocks], in the index */
	uint32_t n_blocks;
};
struct skv_session_local {
	int fd;
	struct skv_session_page *page;
	uint32_t newest; /* id of the sequence that was made last in it; 0: none */
};
/* Classes of runs of FREE pages: 1, 2, 4 … 32. Longer runs are in the last class. */
#define SKV_RUN_CLASSES 6
struct skv_pool_local {
	int fd; /* of host memory: the memfd of all segments; else -1 */
	struct skv_mem_handle *handles; /* of a device: [max_segments], for LIVE segments; else NULL */
	/* sets of segments, written by skv_segment_file() alone */
	struct skv_bitset runs[SKV_RUN_CLASSES]; /* set i: LIVE segments with a FREE page and perhaps a run of 2^i */
	struct skv_bitset empty;  /* LIVE, all pages FREE */
	struct skv_bitset vacant; /* numbers below `high` that can be used */
	uint32_t sweep_at; /* where the next sweep begins */
};

/* Sequences by name: names.h. */
struct skv_names {
	uint32_t *list; /* [n_lists], a power of two: first sequence of each list */
	uint32_t *next; /* [max_sequences] */
	uint32_t *in;   /* [max_sequences]: the list that has it, or SKV_NO_INDEX */
	uint32_t n_lists;
	uint64_t seed;
};
#define SKV_NAMES_NULL ((struct skv_names){.list = NULL})

/* Sequences that are to be parked or are being parked: park-queue.h. */
enum { SKV_PARK_WAIT, SKV_PARK_RUN, SKV_PARK_READERS, SKV_PARK_LISTS };
struct skv_park_queue {
	struct skv_park_account {
		struct skv_park_list {
			uint32_t first, last, n; /* rows; SKV_NO_INDEX */
		} list[SKV_PARK_LISTS];
	} *of; /* [account] */
	struct skv_bitset ready; /* accounts with a waiting sequence that may start */
	uint32_t turn; /* the first account to try next */
};

/* Host memory or a device. */
struct skv_memory {
	const struct skv_mem_ops *mem; /* NULL: the memory does not exist */
	struct skv_core_memory_limits limits;
};

/* Sequences without a holder: idle.h. */
struct skv_idle {
	struct skv_idle_of {
		uint32_t first, last; /* rows; SKV_NO_INDEX */
	} *of; /* [account] */
	struct skv_idle_at {
		uint32_t account; /* whose list it is in; SKV_NO_INDEX: in none */
		uint32_t prev, next;
	} *at; /* [sequence] */
};

/* Where skv_core_age() continues. */
struct skv_aging {
	/* `begun`: a pass is in progress. `forgets`: the pass retries sequences whose parking failed. */
	bool begun, forgets;
	uint32_t account, seq;
};

struct skv_core {
	struct skv_core_config config;
	struct skv_memory memory[SKV_MEMORY_KINDS];
	struct skv_state state;
	struct skv_seq_local *seqs;
	struct skv_session_local *sessions;
	struct skv_pool_local *pools;
	int control_fd;
	struct skv_control_page *control;
	size_t control_bytes;
	struct skv_core_fdstore fdstore;
	struct skv_fdstore_change *fd_changes; /* of the current change */
	uint32_t n_fd_changes, cap_fd_changes;
	struct skv_reconnect *reconnects; /* clients that are naming what they have: reconnect.c */
	struct skv_block_index prefixes; /* in memory, by row */
	struct skv_names names;
	struct skv_park_queue park_queue;
	struct skv_idle idle;
	struct skv_aging aging;
	struct skv_queue tasks; /* in progress */
	struct skv_pin *pins; /* memory that the daemon holds for users beside rows: pins.h */
	bool parks;              /* sequences make room by being parked (parking.c) */
	uint64_t park_failed_ns; /* when parking failed last; 0: not recently */
	int failed; /* negative errno: why a task could not continue */
	bool given_up; /* uncommitted changes will never be committed */
	void (*corrupt_cb)(void *, uid_t, const char *, const char *, const char *);
	void *corrupt_data;
	void (*dropped_cb)(void *, uid_t, bool);
	void *dropped_data;
	char why[256];
};

#endif
