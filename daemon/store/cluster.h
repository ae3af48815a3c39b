/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/cluster.h - the servers of a store, and which of them has a key.
 *
 * Without cluster mode there is one server. In a cluster, a key has a hash slot, and each hash slot has a node. The map
 * of hash slots is read with CLUSTER SLOTS at the start and after part of it has proved wrong; MOVED corrects a single
 * hash slot immediately. The configured servers remain nodes and are asked like all others. The reply of a server is
 * checked, and takes effect as a whole or not at all.
 */
#ifndef SKV_STORE_CLUSTER_H
#define SKV_STORE_CLUSTER_H

#include "daemon/store/conn.h"

#define SKV_STORE_HASH_SLOTS 16384u
#define SKV_STORE_MAX_NODES 1024u
#define SKV_STORE_NONE UINT32_MAX

/* Keys of a call, by index, linked by `next` of their struct key. */
struct skv_store_list {
	uint32_t first, last; /* SKV_STORE_NONE: empty */
};

struct skv_store_node {
	struct skv_store_conn *conn;
	bool configured, in_map;
	/* of the running call */
	bool ready;            /* connected, and its replies go to the call */
	struct skv_store_list unsent, in_flight;
};

struct skv_store_cluster {
	const struct skv_store_config *config;
	struct skv_store_tls *tls;
	struct skv_store_node **nodes;
	uint32_t n_nodes;
	uint16_t *map;    /* [SKV_STORE_HASH_SLOTS]: index of a node; n_nodes or more: none. NULL: not a cluster */
	bool known, stale; /* of the map: it was read; part of it is outdated */
	uint64_t refresh_ns; /* a known map is not read again before this time */
};

/* -ENOMEM */
int skv_store_cluster_init(struct skv_store_cluster *, const struct skv_store_config *, struct skv_store_tls *);
void skv_store_cluster_free(struct skv_store_cluster *);

/* Hashes the {hashtag} of the key if there is one, otherwise the whole key. */
uint32_t skv_store_hash_slot(const void *key, size_t n);

/* Returns the node with this address, adding it if needed. NULL: out of memory, or too many nodes. */
struct skv_store_node *skv_store_cluster_node(struct skv_store_cluster *, const struct skv_store_address *);
/* Returns NULL if no node has it. */
struct skv_store_node *skv_store_cluster_find(const struct skv_store_cluster *, uint32_t hash_slot);
void skv_store_cluster_move(struct skv_store_cluster *, uint32_t hash_slot, const struct skv_store_node *);

/*
 * Reads the map if necessary; called before a call, while no command is outstanding. An outdated map is read again at
 * most five times a second. Negative errno with a text: there is no map, and no node returned one.
 */
int skv_store_cluster_refresh(struct skv_store_cluster *, uint64_t deadline_ns, char why[SKV_STORE_TEXT]);

/* "MOVED 3999 127.0.0.1:6381", or the same with ASK. An empty host means that of the node which sent it. */
struct skv_store_redirection {
	bool ask;
	uint32_t hash_slot;
	struct skv_store_address to;
};
/* Returns 1 for a redirection, 0 for another error, -EPROTO for a malformed redirection. */
int skv_store_redirection_parse(const char *text, size_t n, const struct skv_store_address *from,
                                struct skv_store_redirection *ret);

/*
 * Parses the reply to CLUSTER SLOTS: begin, then skv_store_map_part() for each part, then end. End activates the map if
 * the reply was complete, discards it otherwise, and frees the reader.
 */
struct skv_store_map_reader;
/* Returns NULL if out of memory. */
struct skv_store_map_reader *skv_store_map_begin(struct skv_store_cluster *, const struct skv_store_address *from);
int skv_store_map_part(void *reader, const struct skv_store_part *, char why[SKV_STORE_TEXT]);
void skv_store_map_end(struct skv_store_map_reader *, bool complete);

#endif
