/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/core-peer.h - a client of the books as the tests play it: leases, sequences, steps, deaths.
 *
 * It does what the client library does, with the same memory and in the same order, so that it can
 * also stop half-way or do it wrong. No daemon, no socket, no attention.
 */
#ifndef SKV_TESTS_CORE_PEER_H
#define SKV_TESTS_CORE_PEER_H

#include "daemon/core/core.h"
#include "daemon/mem/mem.h"

/* Host memory that can be told to fail, and counts. */
struct test_mem {
	struct skv_mem_ops ops;
	int fail_after; /* creates until one fails with ENOMEM; -1 = never */
	uint64_t bytes; /* that live */
	uint32_t made, destroyed;
};
void test_mem_init(struct test_mem *);

struct peer {
	struct skv_core *core;
	uint32_t client;
	struct skv_core_session_info session;
	struct skv_model model;
	uint32_t *stock; /* pages on lease and in no table; ascending is not kept */
	uint32_t n_stock, room;
};

/* A sequence that a peer holds: all of its memory, mapped. */
struct held {
	uint32_t seq;
	struct skv_seqmem *mem;
	struct skv_seqmem_layout layout;
};

struct skv_model test_model(const char *name, uint32_t n_layers, uint32_t head_dim);

/* Fails the test when the books refuse. */
void peer_join(struct peer *, struct skv_core *, uid_t uid, const struct skv_model *);
void peer_forget(struct peer *); /* frees the stock's list; says nothing to the books */
void peer_hear(struct peer *);   /* hears of segments, acknowledges their ends */
/* The error of the books; pages go to the stock. */
int peer_lease(struct peer *, uint32_t least, uint32_t most);
uint32_t peer_take(struct peer *);           /* a page of the stock, leasing when it is empty */
void peer_stock(struct peer *, uint32_t page); /* a page to the stock */

void held_open(struct held *, const struct peer *, const struct skv_core_seq_info *);
void held_close(struct held *);
void held_new(struct held *, struct peer *, const char *name, uint32_t max_tokens);
uint32_t held_len(const struct held *);
skv_pte held_entry(const struct held *, uint32_t layer, uint32_t index);
/* Table entries for n more tokens; a shared last page is replaced. Returns shared pages replaced into ret_cow (per layer). */
uint32_t held_append(struct held *, struct peer *, uint32_t n_tokens, uint32_t *ret_cow);
void held_commit(struct held *, uint32_t n_tokens);

/* Open fds of this process. */
uint32_t count_fds(void);

#endif
