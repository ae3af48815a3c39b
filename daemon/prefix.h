/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/prefix.h - requests about sealed prefixes: PREFIX_SEAL and PREFIX_NEW. See prefix.c. */
#ifndef SKV_DAEMON_PREFIX_H
#define SKV_DAEMON_PREFIX_H

#include <jansson.h>
#include "daemon/ipc/conn.h"

struct skv_server;

/* The secret; prefixes that the daemon before has left are found again. Negative errno, logged. After parking. */
int skv_prefix_start(struct skv_server *);
void skv_prefix_free(struct skv_server *);

void skv_prefix_request(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, const void *body, int *fds);
/* A turn. True: there is more to do. */
bool skv_prefix_work(struct skv_server *);
/* Once a second: who waits is told so, and not longer than prefix-store-wait. */
void skv_prefix_tick(struct skv_server *);
/* The user's prefix of this name has come from disk, or could not. */
void skv_prefix_restored(struct skv_server *, uid_t uid, const char *name);
/* The connection has ended. */
void skv_prefix_forget(struct skv_server *, const struct skv_conn *);
/* For status, of all or of a user, whose counts these are (sys/counts.h). */
json_t *skv_prefix_status(const struct skv_server *, bool all, uid_t uid, const uint64_t *counts);

#endif
