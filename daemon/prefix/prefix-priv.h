/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/prefix/prefix-priv.h - what prefix.c (requests) and store-transfer.c (jobs with the store) share. */
#ifndef SKV_PREFIX_PRIV_H
#define SKV_PREFIX_PRIV_H

#include "daemon/prefix/prefix-keys.h"
#include "daemon/prefix/prefix.h"
#include "daemon/requests/deferred.h"
#include "daemon/requests/reply.h"
#include "daemon/server/server-priv.h"

/* A request, until everything that follows from it is done. */
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
		SKV_PREFIX_HASHES,  /* its keys are computed, in turns */
		SKV_PREFIX_RESTORES, /* NEW: a prefix is being read from disk */
		SKV_PREFIX_FETCHES, /* NEW: the store is queried */
		SKV_PREFIX_SEALS,   /* SEAL: the core seals the blocks */
		SKV_PREFIX_SENDS,   /* SEAL: the blocks are sent to the store */
	} state;
	uint32_t n_blocks, at;
	uint32_t n_local; /* NEW: blocks in memory */
	uint32_t told;    /* NEW, FETCHES: blocks whose token ids the worker has been given */
	char awaits[SKV_NAME_MAX]; /* NEW, RESTORES: name of the prefix it waits for */
	uint8_t tenant[SKV_PREFIX_KEY], origin[SKV_PREFIX_KEY];
	uint8_t last[SKV_PREFIX_KEY];     /* name of the block before `at`; first the origin */
	uint8_t (*names)[SKV_PREFIX_KEY]; /* [n_blocks], for the store; NULL without one */
	struct skv_block_key *keys;       /* [n_blocks] */
	uint64_t begun_ns, deadline_ns;   /* NEW */
	struct skv_queued queued;         /* HASHES, and SENDS until it begins */
	uint32_t seq;                     /* SENDS: id of the sealed prefix */
	uint64_t pinned;                  /* bytes charged to the user for keys and names */
};

struct skv_prefix {
	uint8_t secret[SKV_PREFIX_KEY];
	struct skv_prefix_ask *asks;
	struct skv_queue hashes, sends; /* requests whose keys are being computed; requests that are to be sent ... */
	bool sending;                   /* ... one at a time */
};

/*
 * Asks the store for the blocks of a NEW, and calls skv_prefix_fetched() at the end. Negative errno: it was not
 * begun.
 */
int skv_fetch_begin(struct skv_prefix_ask *);
/*
 * Queues what a SEAL has sealed for sending; the request ends after that. Until its turn the prefix may leave memory,
 * and is then not sent. Negative errno: the prefix is gone.
 */
int skv_fetch_send(struct skv_prefix_ask *);
/* A turn: begins to send the next one. True: there is more to do. */
bool skv_fetch_work(struct skv_server *);
/* Ends fetches that have waited for memory for too long, and a transfer whose memory is wanted. */
void skv_fetch_tick(struct skv_server *);
/* Everything that the store could deliver is in memory. */
void skv_prefix_fetched(struct skv_prefix_ask *);
void skv_prefix_ask_end(struct skv_prefix_ask *);

#endif
