/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/core-peer.h - a client of the core as the tests play it: leases, sequences, steps, deaths.
 *
 * It does what the client library does, on the same memory and in the same order, but can also stop half-way or break
 * the rules. No daemon, no socket, no attention.
 */
#ifndef SKV_TESTS_CORE_PEER_H
#define SKV_TESTS_CORE_PEER_H

#include "daemon/core/memory/memory.h"
#include "daemon/core/restart/life.h"
#include "daemon/core/operations/clients.h"
#include "daemon/core/operations/requests.h"
#include "daemon/core/operations/turns.h"
#include "daemon/core/operations/views.h"
#include "daemon/mem/mem.h"

/* Host memory whose operations can fail or be slow. */
struct test_mem {
	struct skv_mem_ops ops;
	int fail_after; /* pools until one fails with ENOMEM; -1: never */
	uint64_t left;  /* bytes that the cgroup allows; UINT64_MAX: no limit */
	bool slow;      /* discards complete only in mem_discarded() */
	uint32_t n_discards;
	struct {
		int fd;
		struct skv_mem_range range;
	} discards[1024];
};
/*
 * Adds a device (number as in skv_model) with the limits of host memory. devices_make() creates its segments, as
 * memfds.
 */
void device_add(uint32_t device, const struct skv_core_config *);
void devices_make(void);
void mem_discarded(uint32_t which); /* completes pending discard number `which` */
uint64_t mem_bytes(uint32_t device); /* bytes of all segments of the device */
void test_mem_init(struct test_mem *);

/* The core under test, one per process. books_close() checks that its state balances and that no fd is left open. */
extern struct test_mem mem;
extern struct skv_core *core;
struct skv_core_config books_config(void); /* small limits: 8 MiB, segments of 64 KiB, a few of everything */
void books_open(const struct skv_core_config *);
void books_watch(void); /* counts corrupt sequences of a core that books_open() did not open */
void books_close(void);
void books_trim(void); /* lets the time pass after which empty segments of devices are withdrawn */
void books_even(void); /* checks that the state balances, and commits */
/* Figures of one pool; zeros if there is no such pool. */
struct skv_core_pool_view books_pool(uint32_t pool);
struct skv_core_account_view books_account(uid_t uid);
void ck_same_pool(const struct skv_core_pool_view *a, const struct skv_core_pool_view *b);
/* A whole walk of the core's, over the rows of all users, in many small turns. */
#define books_walk(some, cb, data)                                                                          \
	do {                                                                                                \
		struct skv_core_walk walk_ = {.all = true};                                                 \
                                                                                                            \
		for (uint32_t units_ = 100; !some(core, &walk_, &units_, cb, data);)                        \
			units_ = 100;                                                                       \
	} while (0)
struct skv_core_held books_held(void); /* of all users */
void books_seqs(void (*cb)(void *, const struct skv_core_seq_view *), void *data); /* of all users */
struct skv_core_seq_view books_seq(const char *name); /* of any user */
bool books_has_seq(const char *name);
/* Number of corrupt sequences reported since books_open(), and the reason of the last report. */
extern uint32_t n_corrupt;
extern char corrupt_why[256];
/* The call is refused with this error, and the core gives a reason. */
#define ck_refused(call, error)                                                                             \
	do {                                                                                                \
		ck_assert_int_eq(call, error);                                                              \
		ck_assert_str_ne(skv_core_why(core), "");                                                   \
		books_even();                                                                               \
	} while (0)

struct peer {
	uint32_t client;
	struct skv_core_session_info session;
	struct skv_model model;
	uint32_t *stock; /* leased pages that are in no table, in any order */
	uint32_t n_stock, room;
};

/* A sequence that a peer holds; its memory is mapped. */
struct held {
	uint32_t seq;
	struct skv_seqmem *mem;
	struct skv_seqmem_layout layout;
};

/*
 * Checks how many pages of the peer's pool are leased, owned and shared, that the others are free, and that the state
 * balances.
 */
void pool_is(const struct peer *, uint64_t lease, uint64_t seq, uint64_t shared);

struct skv_model test_model(const char *name, uint32_t n_layers, uint32_t head_dim);

/* Fails the test if the core refuses. */
void peer_join(struct peer *, uid_t uid, const struct skv_model *);
void peer_die(struct peer *);
void client_gone(uint32_t client); /* and everything that it had */
int drop_name(uid_t uid, const char *name_of_model, const char *name); /* and its pages */
/* Calls skv_core_age() until all sequences are checked; returns how many were dropped. */
unsigned age_all(uint64_t now_ns, uint64_t park_ns, uint64_t ttl_ns);
/*
 * Returns the error of a call; if the call takes turns, runs them and returns the result. *info, if not NULL, gets the
 * resulting sequence.
 */
int in_turns(int error, struct skv_core_seq_info *info);
void peer_hear(struct peer *);   /* receives announced segments, acknowledges those that are gone */
/* Returns the core's error; leased pages go to the stock. */
int peer_lease(struct peer *, uint32_t least, uint32_t most);
uint32_t peer_take(struct peer *);           /* takes a page from the stock; leases more if it is empty */
void peer_stock(struct peer *, uint32_t page); /* puts a page into the stock */

void held_open(struct held *, const struct peer *, const struct skv_core_seq_info *);
void held_close(struct held *);
void held_new(struct held *, struct peer *, const char *name, uint32_t max_tokens);
int held_attach(struct held *, struct peer *, const char *name); /* returns the core's error */
int held_fork(struct held *child, struct held *parent, struct peer *, const char *name);
/* Forks at the parent's first n_tokens tokens. */
int held_fork_at(struct held *child, struct held *parent, struct peer *p, const char *name, uint32_t n_tokens);
int held_detach(struct held *, struct peer *); /* also closes it */
void held_drop(struct held *, struct peer *);  /* pages that it owns go to the stock */
uint32_t held_len(const struct held *);
skv_pte held_entry(const struct held *, uint32_t table, uint32_t index);
/*
 * A step without its commit: adds entries for n more tokens. Shared last pages are replaced; their ids, *ret_n of them,
 * go to ret_cow[layers] and must be released after the commit.
 */
void held_write(struct held *, struct peer *, uint32_t n_tokens, uint32_t *ret_cow, uint32_t *ret_n);
void held_commit(struct held *, uint32_t n_tokens);
/* A whole step: write, commit and release. */
void held_append(struct held *, struct peer *, uint32_t n_tokens);

/* Evicts the first n pages of a layer through the journal, and stops at the given point. */
enum journal_point { JOURNAL_WRITTEN, JOURNAL_COMMITTED, JOURNAL_HALF_DONE, JOURNAL_DONE, JOURNAL_POINTS };
void held_evict(struct held *, uint32_t layer, uint32_t n, enum journal_point stop);

/* Returns the number of open fds of this process, plus a constant. */
uint32_t count_fds(void);

#endif
