/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/state/core-priv.h - struct skv_core, on which all files of core/ work.
 *
 * The state, which outlives the process, is in core->state (the state memfd). Data that a process can open or compute
 * again (fds, mappings, scratch memory) is in companions: arrays with the same indices as the tables of the state. A
 * companion exists exactly while its row is live.
 *
 * The state may be changed only through skv_write_...() (state.h), which save the old bytes to the undo log.
 * skv_pages_set() is the only writer of owner words, and updates every count that depends on them. After pages became
 * FREE, call skv_pool_shrink(), which withdraws segments that are no longer needed, and removes a pool without users.
 */
#ifndef SKV_CORE_PRIV_H
#define SKV_CORE_PRIV_H

#include "common/queue.h"
#include "daemon/core/state/bitset.h"
#include "daemon/core/state/block-index.h"
#include "daemon/core/state/state.h"
#include "daemon/mem/mem.h"

/* Companion of a sequence: the daemon's access to its memory, of which only the header is mapped (sequence-file.h). */
struct skv_seq_local {
	int fd;
	struct skv_seqmem *mem;
	struct skv_seqmem_layout layout;
	enum skv_park_state {
		SKV_PARK_NOT,
		SKV_PARK_WANTED,  /* queued to be parked, to make room or because it is idle for long */
		SKV_PARK_STARTED, /* being written to a file */
		SKV_PARK_FAILED,  /* parking failed recently */
		SKV_PARK_READ,    /* a sealed prefix that is not parked, but read for the prefix store */
	} parking; /* set by skv_park_set() alone */
	bool wanted; /* in state SKV_PARK_READ: a request waits for the prefix's memory */
	/* neighbours of the sequence in its queue (park-queue.h), set by skv_park_set() alone */
	uint32_t park_prev, park_next;
	struct skv_block_key *blocks; /* [n_blocks]: keys of a sealed prefix that is in the index; else NULL */
	uint32_t n_blocks;
};
/* Companion of a session. */
struct skv_session_local {
	int fd;
	struct skv_session_page *page;
	uint32_t newest; /* id of the sequence that was made last in the session; 0: none was made */
};
/* Number of classes of runs of FREE pages by length: 1, 2, 4 … 32. Longer runs are in the last class. */
#define SKV_RUN_CLASSES 6
/* Companion of a pool. */
struct skv_pool_local {
	int fd; /* in host memory: the memfd of all segments; on a device: -1 */
	struct skv_mem_handle *handles; /* on a device: [max_segments], set for LIVE segments; in host memory: NULL */
	/* sets of segment numbers, changed by skv_segment_file() alone: */
	struct skv_bitset runs[SKV_RUN_CLASSES]; /* [i]: LIVE segments that may have a run of 2^i FREE pages */
	struct skv_bitset empty;  /* LIVE segments all of whose pages are FREE */
	struct skv_bitset vacant; /* segment numbers below `high` that can be used */
	uint32_t sweep_at; /* segment number at which the next sweep begins */
	uint32_t least_empty; /* on a device: least number of empty segments since the last skv_core_trim() */
};

/* A hash table of sequences by name: names.h. */
struct skv_names {
	uint32_t *list; /* [n_lists]: first sequence of each list; n_lists is a power of two */
	uint32_t *next; /* [max_sequences]: the next sequence of the same list */
	uint32_t *in;   /* [max_sequences]: number of the sequence's list, or SKV_NO_INDEX */
	uint32_t n_lists;
	uint64_t seed;
};
#define SKV_NAMES_NULL ((struct skv_names){.list = NULL})

/* Queues of the sequences that are to be parked, are being parked, or are being read: park-queue.h. */
enum { SKV_PARK_WAIT, SKV_PARK_RUN, SKV_PARK_READERS, SKV_PARK_LISTS };
struct skv_park_queue {
	struct skv_park_account {
		struct skv_park_list {
			uint32_t first, last, n; /* first and last row, or SKV_NO_INDEX; number of sequences */
		} list[SKV_PARK_LISTS];
	} *of; /* [account] */
	struct skv_bitset ready; /* accounts that have a waiting sequence and are below the limit of running ones */
	uint32_t turn; /* the first account that is tried next */
};

/* Host memory or the memory of a device. */
struct skv_memory {
	const struct skv_mem_ops *mem; /* NULL: the memory does not exist */
	struct skv_core_memory_limits limits;
	/* of a device: the last segment could not be created, and since then no memory was given back, and no time passed */
	bool full;
};

/* Lists of named sequences without a holder: idle.h. */
struct skv_idle {
	struct skv_idle_of {
		uint32_t first, last; /* rows of sequences, or SKV_NO_INDEX */
	} *of; /* [account] */
	struct skv_idle_at {
		uint32_t account; /* account whose list the sequence is in; SKV_NO_INDEX: it is in no list */
		uint32_t prev, next;
	} *at; /* [sequence] */
};

/* Progress of skv_core_age(): the next account and the next sequence of the current pass. */
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
	struct skv_fdstore_change *fd_changes; /* [n_fd_changes]: descriptors added or removed by the current change */
	uint32_t n_fd_changes, cap_fd_changes;
	struct skv_reconnect *reconnects; /* list of the reconnects of clients: reconnect.c */
	struct skv_block_index prefixes; /* index of the sealed prefixes in memory; owners are rows of sequences */
	struct skv_names names;
	struct skv_park_queue park_queue;
	struct skv_idle idle;
	struct skv_aging aging;
	struct skv_queue tasks; /* tasks in progress (task.h) */
	struct skv_pin *pins; /* list of host memory that the daemon takes for users beside the state: pins.h */
	bool parks;              /* sequences are parked to make room (parking.c); false: they are dropped */
	uint64_t park_failed_ns; /* time when parking failed last; 0: not recently */
	int failed; /* negative errno: why a task could not continue */
	bool given_up; /* nothing is committed any more: skv_core_give_up() */
	void (*corrupt_cb)(void *, uid_t, const char *, const char *, const char *);
	void *corrupt_data;
	void (*dropped_cb)(void *, uid_t, bool);
	void *dropped_data;
	char why[256];
};

#endif
