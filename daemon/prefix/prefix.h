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
 * Reads the secret, checks the settings of the store, and indexes the prefixes that the previous daemon left.
 * Negative errno, logged. Call it after skv_parking_start().
 */
int skv_prefix_start(struct skv_server *);
void skv_prefix_free(struct skv_server *);

void skv_prefix_request(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, const void *body,
                        int *fds);
/* Runs a turn. True: there is more to do. */
bool skv_prefix_work(struct skv_server *);
/* Once a second: sends WAIT to waiting clients; after prefix-store-wait they are answered with what is there. */
void skv_prefix_tick(struct skv_server *);
/* The user's prefix of this name has been read from disk, or reading failed. */
void skv_prefix_restored(struct skv_server *, uid_t uid, const char *name);
/* The tag of a sealed prefix's file (parked/parking.h). */
void skv_prefix_file_tag(const struct skv_server *, uid_t uid, const struct skv_block_key *keys, uint32_t n,
                         uint8_t ret[]);
/* For status: of all users, or of one, with these counts (sys/counts.h). */
json_t *skv_prefix_status(const struct skv_server *, bool all, uid_t uid, const uint64_t *counts);

#endif
