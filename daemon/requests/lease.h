/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/requests/lease.h - requests for pages, which may wait for memory. */
#ifndef SKV_DAEMON_LEASE_H
#define SKV_DAEMON_LEASE_H

#include "daemon/ipc/conn.h"

struct skv_server;

void skv_lease_get(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, const void *body, int *fds);
/* Work has ended and may have freed memory: try the waiting requests again. */
void skv_lease_retry(struct skv_server *);
/*
 * A segment of the pool has been created, or its creation failed (error: positive errno): serve the requests that
 * wait for it.
 */
void skv_lease_arrived(struct skv_server *, uint32_t pool);
void skv_lease_failed(struct skv_server *, uint32_t pool, int error, const char *device, const char *why);
/* At shutdown: free all waiting requests. */
void skv_lease_free_all(struct skv_server *);

#endif
