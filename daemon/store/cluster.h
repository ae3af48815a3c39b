/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/cluster.h - the servers of a store, and which of them has a key.
 *
 * Without cluster there is one. In a cluster a key has a hash slot, and hash slots have nodes: CLUSTER SLOTS says
 * which, at the start and when some of it has proved wrong; MOVED corrects one of them at once. The servers of the
 * configuration stay nodes, and are asked as all others are. What a server says of the cluster is checked, and goes
 * into effect as a whole or not at all.
 */
#ifndef SKV_STORE_CLUSTER_H
#define SKV_STORE_CLUSTER_H

#include "daemon/store/conn.h"

#define SKV_STORE_HASH_SLOTS 16384u
#define SKV_STORE_MAX_NODES 1024u
#define SKV_STORE_NONE UINT32_MAX

/* Keys of a call, by number, linked by their struct key's `next`. */
struct skv_store_list {
	uint32_t first, last; /* SKV_STORE_NONE: it is empty */
};

struct skv_store_node {
	struct skv_store_conn *conn;
	bool configured, in_map;
	/* of the call that runs */
	bool ready;            /* open, and its replies go to the call */
	int write_error;       /* it refuses all writes: what it said, negative errno; 0: no */
	struct skv_store_list unsent, in_flight;
};

struct skv_store_cluster {
	const struct skv_store_config *config;
	struct skv_store_tls *tls;
	struct skv_store_node **nodes;
	uint32_t n_nodes;
	uint16_t *map;    /* [SKV_STORE_HASH_SLOTS]: a node; n_nodes or more: none. NULL: without cluster */
	bool known, stale; /* the map: it was read; some of it is not so any more */
	uint64_t refresh_ns; /* not before that */
};

/* -ENOMEM */
int skv_store_cluster_init(struct skv_store_cluster *, const struct skv_store_config *, struct skv_store_tls *);
void skv_store_cluster_free(struct skv_store_cluster *);

/* Of {hashtag} in the key, if there is one. */
uint32_t skv_store_hash_slot(const void *key, size_t n);

/* The one with this address, new or not. NULL: no memory, or too many. */
struct skv_store_node *skv_store_cluster_node(struct skv_store_cluster *, const struct skv_store_address *);
/* NULL: nobody has it. */
struct skv_store_node *skv_store_cluster_find(const struct skv_store_cluster *, uint32_t hash_slot);
void skv_store_cluster_move(struct skv_store_cluster *, uint32_t hash_slot, const struct skv_store_node *);

/*
 * The map is read if it has to be, before a call, while no command is under way. It is not read more often than five
 * times a second. Negative errno with a text: there is none, since no node gave it.
 */
int skv_store_cluster_refresh(struct skv_store_cluster *, uint64_t deadline_ns, char why[SKV_STORE_TEXT]);

/* "MOVED 3999 127.0.0.1:6381", and ASK. Without a host it is that of the node that said so. */
struct skv_store_redirection {
	bool ask;
	uint32_t hash_slot;
	struct skv_store_address to;
};
/* 1: it is one; 0: it is another error; -EPROTO: it begins like one. */
int skv_store_redirection_parse(const char *text, size_t n, const struct skv_store_address *from,
                                struct skv_store_redirection *ret);

/*
 * The reply to CLUSTER SLOTS, part by part: begin, part for all of them, and end, which puts the map into effect, or
 * gives it up where the reply was not complete.
 */
struct skv_store_map_reader;
/* NULL: no memory. */
struct skv_store_map_reader *skv_store_map_begin(struct skv_store_cluster *, const struct skv_store_address *from);
int skv_store_map_part(void *reader, const struct skv_store_part *, char why[SKV_STORE_TEXT]);
void skv_store_map_end(struct skv_store_map_reader *, bool complete);

#endif
