/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/prefix/prefix-priv.h - shared by prefix.c (requests) and store-transfer.c (jobs for the prefix store). */
#ifndef SKV_PREFIX_PRIV_H
#define SKV_PREFIX_PRIV_H

#include "daemon/prefix/prefix-keys.h"
#include "daemon/prefix/prefix.h"
#include "daemon/requests/deferred.h"
#include "daemon/requests/reply.h"
#include "daemon/server/server-priv.h"

/* A PREFIX_NEW or PREFIX_SEAL request. It may outlive its reply: a transfer that it has begun goes on. */
struct skv_prefix_ask {
	struct skv_prefix_ask *next;
	struct skv_server *server;
	struct skv_deferred request;
	struct skv_msg_seq_name m; /* PREFIX_NEW: all fields; PREFIX_SEAL: session and seq only */
	uint32_t client;
	uid_t uid;
	struct skv_model model;
	struct skv_made made;
	enum {
		SKV_PREFIX_HASHES,  /* the block keys are computed, in turns */
		SKV_PREFIX_RESTORES, /* NEW: a sealed prefix is being read from disk */
		SKV_PREFIX_FETCHES, /* NEW: the store is asked for blocks, which are then read into memory */
		SKV_PREFIX_SEALS,   /* SEAL: the core seals the blocks */
		SKV_PREFIX_SENDS,   /* SEAL: the blocks are sent to the store, or wait for that */
	} state;
	uint32_t n_blocks, at; /* number of whole blocks; index of the next block whose key is computed */
	uint32_t n_local; /* NEW: number of blocks that a prefix in memory has */
	uint32_t told;    /* NEW, FETCHES: number of blocks whose token ids are in the job's memfd */
	char awaits[SKV_NAME_MAX]; /* NEW, RESTORES: name of the prefix that is being read from disk */
	uint8_t tenant[SKV_PREFIX_KEY], origin[SKV_PREFIX_KEY];
	uint8_t last[SKV_PREFIX_KEY];     /* key of the block before `at`; of block 0: the origin */
	uint8_t (*names)[SKV_PREFIX_KEY]; /* [n_blocks]: full keys, the blocks' names in the store; NULL: no store */
	struct skv_block_key *keys;       /* [n_blocks]: short keys, for the core */
	uint64_t begun_ns, deadline_ns;   /* NEW: time when the keys were computed; time to answer at the latest */
	struct skv_queued queued;         /* in `hashes` while HASHES; in `sends` while SENDS has not begun */
	uint32_t seq;                     /* SENDS: id of the sealed prefix */
	uint64_t pinned;                  /* bytes of host memory charged to the user for keys and names */
};

struct skv_prefix {
	uint8_t secret[SKV_PREFIX_KEY];
	struct skv_prefix_ask *asks;
	struct skv_queue hashes, sends; /* requests whose keys are computed; requests whose blocks wait to be sent */
	bool sending;                   /* blocks of a request are being sent to the store, of one at a time */
};

/*
 * Begins to ask the store for the blocks of a NEW and to read them into memory; skv_prefix_fetched() is called at the
 * end. Negative errno: nothing was begun.
 */
int skv_fetch_begin(struct skv_prefix_ask *);
/*
 * Queues the prefix that a SEAL has sealed for being sent to the store; the request ends when it is sent. While it
 * waits in the queue the prefix may be dropped or parked; then it is not sent. Negative errno: the prefix is gone
 * already.
 */
int skv_fetch_send(struct skv_prefix_ask *);
/* Runs a turn: begins to send the next prefix in the queue, unless one is being sent. True: there may be more to do. */
bool skv_fetch_work(struct skv_server *);
/*
 * Ends fetches that have waited for memory until their deadline, and a transfer to the store that keeps memory from
 * being freed that another request needs.
 */
void skv_fetch_tick(struct skv_server *);
/* Called when all blocks that the store could deliver are in memory: answers the request and frees it. */
void skv_prefix_fetched(struct skv_prefix_ask *);
/* Frees a request. A request that is not answered yet then gets no reply. */
void skv_prefix_ask_end(struct skv_prefix_ask *);

#endif
