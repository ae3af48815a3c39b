/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/requests/query.h - replies to queries as JSON, made over several turns of the loop. See query.c. */
#ifndef SKV_QUERY_H
#define SKV_QUERY_H

#include <stdbool.h>
#include "daemon/ipc/conn.h"

struct skv_server;

/* Handles QUERY: begins to answer it. */
void skv_query_begin(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, const void *body, int *fds);
/*
 * Continues the query of this connection. Call it when the connection's queue has room again, or the connection has
 * ended.
 */
void skv_query_go_on(struct skv_server *, const struct skv_conn *);
/* Makes more of the next query's reply: the work of a turn. Returns true if there is more to do. */
bool skv_query_work(struct skv_server *);
void skv_query_free_all(struct skv_server *);

#endif
