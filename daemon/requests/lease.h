/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/requests/lease.h - requests for leases of pages, which may wait for memory. */
#ifndef SKV_DAEMON_LEASE_H
#define SKV_DAEMON_LEASE_H

#include "daemon/ipc/conn.h"

struct skv_server;

void skv_lease_get(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, const void *body, int *fds);
/* Tries all waiting requests again. Call it when work has ended that may have freed memory. */
void skv_lease_retry(struct skv_server *);
/*
 * Serve the requests that wait for a segment of this pool: the segment has been created, or its creation has failed
 * (error: positive errno).
 */
void skv_lease_arrived(struct skv_server *, uint32_t pool);
void skv_lease_failed(struct skv_server *, uint32_t pool, int error, const char *device, const char *why);
/* Frees all waiting requests, when the daemon stops. */
void skv_lease_free_all(struct skv_server *);

#endif
