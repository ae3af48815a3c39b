/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/prefix-priv.h - what prefix.c (requests) and fetch.c (the store) share. */
#ifndef SKV_PREFIX_PRIV_H
#define SKV_PREFIX_PRIV_H

#include "daemon/core/pins.h"
#include "daemon/parking-priv.h"
#include "daemon/prefix-keys.h"
#include "daemon/prefix.h"
#include "daemon/reply.h"

/* A request, until all that follows from it is done. */
struct skv_prefix_ask {
	struct skv_prefix_ask *next;
	struct skv_server *server;
	uint64_t conn; /* its number; 0: nobody waits any more */
	struct skv_msg_header header;
	struct skv_msg_seq_name m; /* PREFIX_NEW; of PREFIX_SEAL session and seq alone */
	uint32_t client;
	uid_t uid;
	struct skv_model model;
	struct skv_made made;
	enum {
		SKV_PREFIX_HASHES,  /* its keys are made, in turns */
		SKV_PREFIX_RESTORES, /* NEW: what the disk has is read */
		SKV_PREFIX_FETCHES, /* NEW: the store is asked */
		SKV_PREFIX_SEALS,   /* SEAL: the core works on it */
		SKV_PREFIX_SENDS,   /* SEAL: the store is told */
	} state;
	uint32_t n_blocks, at;
	uint32_t n_local; /* NEW: that are in memory */
	uint32_t told;    /* NEW, FETCHES: blocks whose token ids the worker is told of */
	char awaits[SKV_NAME_MAX]; /* NEW, RESTORES: the prefix */
	uint8_t tenant[SKV_PREFIX_KEY], origin[SKV_PREFIX_KEY];
	uint8_t last[SKV_PREFIX_KEY];     /* the name of the block before `at`, first the origin */
	uint8_t (*names)[SKV_PREFIX_KEY]; /* [n_blocks], for the store; without one NULL */
	struct skv_block_key *keys;       /* [n_blocks] */
	uint64_t begun_ns, deadline_ns;   /* NEW */
	struct skv_queued queued;         /* HASHES, and SENDS until it begins */
	uint32_t seq;                     /* SENDS: the sealed prefix */
	uint64_t pinned;                  /* bytes that its user is charged for keys and names */
};

struct skv_prefix {
	uint8_t secret[SKV_PREFIX_KEY];
	struct skv_prefix_ask *asks;
	struct skv_queue hashes, sends; /* those whose keys are made; and that are to be sent ... */
	bool sending;                   /* ... one at a time */
};

/* Ask the store for the blocks of a NEW. When that is through, skv_prefix_fetched(). Negative errno: it was not begun. */
int skv_fetch_begin(struct skv_prefix_ask *);
/*
 * Send what a SEAL has sealed, when it is its turn; the ask ends with that. Until then the prefix may leave memory, and is not sent then.
 * Negative errno: it is not there.
 */
int skv_fetch_send(struct skv_prefix_ask *);
/* A turn: the next one is sent. True: there is more to do. */
bool skv_fetch_work(struct skv_server *);
/* What has waited for memory for too long is given up, and what is sent when somebody waits for its memory. */
void skv_fetch_tick(struct skv_server *);
/* What could be had from the store is in memory. */
void skv_prefix_fetched(struct skv_prefix_ask *);
void skv_prefix_ask_end(struct skv_prefix_ask *);

#endif
