/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/prefix/prefix.h - requests about sealed prefixes: PREFIX_SEAL and PREFIX_NEW. See prefix.c. */
#ifndef SKV_DAEMON_PREFIX_H
#define SKV_DAEMON_PREFIX_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct skv_conn;
struct skv_msg_header;
struct skv_block_key;
struct skv_server;

/*
 * Reads the secret, checks the settings of the prefix store, and indexes the sealed prefixes that the previous daemon
 * has left in memory and on disk. Negative errno, logged. Call it after skv_parking_start().
 */
int skv_prefix_start(struct skv_server *);
void skv_prefix_free(struct skv_server *);

/* Handles a PREFIX_SEAL or PREFIX_NEW request; the reply is sent later. */
void skv_prefix_request(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, const void *body,
                        int *fds);
/* Runs a turn of one request. True: there is more to do. */
bool skv_prefix_work(struct skv_server *);
/* Call it once a second: a request that has waited for prefix-store-wait is answered with the blocks in memory. */
void skv_prefix_tick(struct skv_server *);
/* Called when the user's sealed prefix of this name has been read from disk, or reading it has failed. */
void skv_prefix_restored(struct skv_server *, uid_t uid, const char *name);
/* Computes the tag of n block keys in a sealed prefix's file (`tag` of parked/parking.h). */
void skv_prefix_file_tag(const struct skv_server *, uid_t uid, const struct skv_block_key *keys, uint32_t n,
                         uint8_t ret[]);
/* Returns statistics of sealed prefixes of a user, or of `all` users, with these counts (sys/counts.h), as JSON. */
json_t *skv_prefix_status(const struct skv_server *, bool all, uid_t uid, const uint64_t *counts);

#endif
