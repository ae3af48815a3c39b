/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/cluster.h - the servers of a prefix store, and which of them has a key.
 *
 * Without cluster mode there is one server. In Redis Cluster mode, each key belongs to a hash slot, and each hash slot
 * to a node. The map of hash slots to nodes is read with CLUSTER SLOTS before the first call, and again when part of
 * the map has proved wrong; a MOVED reply corrects its hash slot at once. The configured servers stay nodes even if the
 * map does not contain them, and are asked for the map like all other nodes. A reply to CLUSTER SLOTS is checked; if
 * any of it is invalid, the old map stays.
 */
#ifndef SKV_STORE_CLUSTER_H
#define SKV_STORE_CLUSTER_H

#include "daemon/store/conn.h"

#define SKV_STORE_HASH_SLOTS 16384u
#define SKV_STORE_MAX_NODES 1024u
#define SKV_STORE_NONE UINT32_MAX

/* A list of keys of a call, by their index in the call, linked by `next` of struct key (multi-key.c). */
struct skv_store_list {
	uint32_t first, last; /* SKV_STORE_NONE: the list is empty */
};

struct skv_store_node {
	struct skv_store_conn *conn;
	bool configured, in_map;
	/* state of the running call */
	bool ready;            /* the node is connected, and its replies are passed to the call */
	struct skv_store_list unsent, in_flight;
};

struct skv_store_cluster {
	const struct skv_store_config *config;
	struct skv_store_tls *tls;
	struct skv_store_node **nodes;
	uint32_t n_nodes;
	uint16_t *map;    /* [SKV_STORE_HASH_SLOTS]: index of a node; n_nodes or more: none. NULL: not a cluster */
	bool known, stale; /* known: the map has been read; stale: part of it may be outdated */
	uint64_t refresh_ns; /* a known map is not read again before this time */
};

/* Creates the configured nodes, without connecting. Returns 0 or -ENOMEM. */
int skv_store_cluster_init(struct skv_store_cluster *, const struct skv_store_config *, struct skv_store_tls *);
void skv_store_cluster_free(struct skv_store_cluster *);

/* Returns the hash slot of a key: the hash of the key's {hashtag} if there is one, otherwise of the whole key. */
uint32_t skv_store_hash_slot(const void *key, size_t n);

/* Returns the node with this address, adding it if needed. NULL: out of memory, or too many nodes. */
struct skv_store_node *skv_store_cluster_node(struct skv_store_cluster *, const struct skv_store_address *);
/* Returns the node that has this hash slot, or the server if this is not a cluster. NULL: no node has the hash slot. */
struct skv_store_node *skv_store_cluster_find(const struct skv_store_cluster *, uint32_t hash_slot);
/* Enters into the map that the hash slot has moved to the node. */
void skv_store_cluster_move(struct skv_store_cluster *, uint32_t hash_slot, const struct skv_store_node *);

/*
 * Reads the map of hash slots if it is not known or stale. A stale map is read again at most five times a second. Must
 * be called before a call, while no command is outstanding. Returns 0 if there is a map, even an old one; a negative
 * errno with a text if there is none and no node returned one.
 */
int skv_store_cluster_refresh(struct skv_store_cluster *, uint64_t deadline_ns, char why[SKV_STORE_TEXT]);

/*
 * Contents of a redirection: "MOVED 3999 127.0.0.1:6381", or the same with ASK. An empty host in the text means the
 * host of the node that sent it.
 */
struct skv_store_redirection {
	bool ask;
	uint32_t hash_slot;
	struct skv_store_address to;
};
/* Returns 1 for a redirection, 0 for another error, -EPROTO for a malformed redirection. */
int skv_store_redirection_parse(const char *text, size_t n, const struct skv_store_address *from,
                                struct skv_store_redirection *ret);

/*
 * Parser of the reply to CLUSTER SLOTS: skv_store_map_begin() creates it, skv_store_map_part() takes each part of the
 * reply, and skv_store_map_end() frees it. With `complete`, the map that was read replaces the old one; otherwise it is
 * discarded.
 */
struct skv_store_map_reader;
/* `from` is the node that replies. Returns NULL if out of memory. */
struct skv_store_map_reader *skv_store_map_begin(struct skv_store_cluster *, const struct skv_store_address *from);
int skv_store_map_part(void *reader, const struct skv_store_part *, char why[SKV_STORE_TEXT]);
void skv_store_map_end(struct skv_store_map_reader *, bool complete);

#endif
