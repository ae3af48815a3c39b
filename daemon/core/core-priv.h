/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/core-priv.h - struct skv_core, which all files of core/ work on.
 *
 * State is in core->state (the memfd). Beside it are companions, indexed as its tables, of what a
 * process can reopen or remake: fds, maps, scratch. A companion is there exactly while its row is.
 *
 * Ways of a change: the state is constant but for skv_write_...() (state.h), which save what was there. skv_pages_set() is the
 * only writer of owner words, and keeps every count that follows from them. After pages became FREE call skv_pool_shrink(), which withdraws segments that are no
 * longer needed, and the pool itself.
 */
#ifndef SKV_CORE_PRIV_H
#define SKV_CORE_PRIV_H

#include "common/queue.h"
#include "daemon/core/bitset.h"
#include "daemon/core/block-index.h"
#include "daemon/core/core.h"
#include "daemon/core/state.h"
#include "daemon/mem/mem.h"

/* The daemon's view of a sequence's memory: everything but the policy's state area. */
struct skv_seq_local {
	int fd;
	struct skv_seqmem *mem;
	struct skv_seqmem_layout layout;
	enum skv_parking {
		SKV_PARK_NOT,
		SKV_PARK_WANTED,  /* it is to make room, or has been idle for long */
		SKV_PARK_STARTED, /* it is being written to a file */
		SKV_PARK_FAILED,  /* it could not be, not long ago */
		SKV_PARK_READ,    /* no parking: a sealed prefix is being read for the store */
	} parking; /* skv_park_set() alone writes it ... */
	bool wanted; /* READ: somebody waits for its memory */
	uint32_t park_prev, park_next; /* ... and these: rows beside it in its queue (park-queue.h) */
	struct skv_block_key *blocks; /* a sealed prefix': [n_blocks], in the index */
	uint32_t n_blocks;
};
struct skv_session_local {
	int fd;
	struct skv_session_page *page;
};
/* Classes of runs of FREE pages: 1, 2, 4 … 32. What is longer is as good. */
#define SKV_RUN_CLASSES 6
struct skv_pool_local {
	int fd; /* of host memory: all segments; else -1 */
	struct skv_mem_handle *handles; /* of a device: [max_segments], of LIVE segments; else NULL */
	/* segments by what they have; skv_segment_file() alone puts them there */
	struct skv_bitset runs[SKV_RUN_CLASSES]; /* number i: LIVE, a page FREE, and perhaps a run of 2^i */
	struct skv_bitset empty;  /* LIVE, all pages FREE */
	struct skv_bitset vacant; /* below `high`, and can be used */
	uint32_t sweep_at; /* where the next sweep begins */
};

/* Sequences by name: names.h. */
struct skv_names {
	uint32_t *list; /* [n_lists], a power of two: the first of each */
	uint32_t *next; /* [max_sequences] */
	uint32_t *in;   /* [max_sequences]: the list that it is in, or SKV_NO_INDEX */
	uint32_t n_lists;
	uint64_t seed;
};
#define SKV_NAMES_NULL ((struct skv_names){.list = NULL})

/* Sequences that are to be parked, and those that are: park-queue.h. */
enum { SKV_PARK_WAIT, SKV_PARK_RUN, SKV_PARK_READERS, SKV_PARK_LISTS };
struct skv_park_queue {
	struct skv_park_account {
		struct skv_park_list {
			uint32_t first, last, n; /* rows; SKV_NO_INDEX */
		} list[SKV_PARK_LISTS];
	} *of; /* [account] */
	struct skv_bitset ready; /* accounts of which one waits that may start */
	uint32_t turn; /* the first account that is to be asked next */
};

/* Host memory or a device. */
struct skv_memory {
	const struct skv_mem_ops *mem; /* NULL: not there */
	struct skv_core_memory_limits limits;
};

/* Sequences that nobody holds: idle.h. */
struct skv_idle {
	struct skv_idle_of {
		uint32_t first, last; /* rows; SKV_NO_INDEX */
	} *of; /* [account] */
	struct skv_idle_at {
		uint32_t account; /* whose list it is in; SKV_NO_INDEX: none */
		uint32_t prev, next;
	} *at; /* [sequence] */
};

/* Where skv_core_age() goes on. */
struct skv_aging {
	bool begun, forgets; /* which sequences could not be parked */
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
	struct skv_fdstore_change *fd_changes; /* of this change */
	uint32_t n_fd_changes, cap_fd_changes;
	struct skv_reconnect *reconnects; /* clients that say what they have; reconnect.c */
	struct skv_block_index prefixes; /* that are in memory, by their rows */
	struct skv_names names;
	struct skv_park_queue park_queue;
	struct skv_idle idle;
	struct skv_aging aging;
	struct skv_queue tasks; /* that are under way */
	struct skv_pin *pins; /* memory that the daemon holds for users, beside rows */
	bool parks;              /* sequences make room by being parked (parking.c) ... */
	uint64_t park_failed_ns; /* ... and it did not work, last at this time */
	int failed; /* negative errno: why one of them could not go on */
	bool given_up; /* what was not committed is not going to be */
	void (*corrupt_cb)(void *, uid_t, const char *, const char *, const char *);
	void *corrupt_data;
	void (*dropped_cb)(void *, uid_t, bool);
	void *dropped_data;
	char why[256];
};

#endif
