/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/requests/query.h - long lists as JSON, in several turns. See query.c. */
#ifndef SKV_QUERY_H
#define SKV_QUERY_H

#include <stdbool.h>
#include "daemon/ipc/conn.h"

struct skv_server;

/* Answers SKV_QUERY_SEQS or SKV_QUERY_SESSIONS. */
void skv_query_begin(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, enum skv_query what);
/* The connection's queue has room again, or the connection is gone. */
void skv_query_go_on(struct skv_server *, const struct skv_conn *);
/* Runs a turn. True: there is more to do. */
bool skv_query_work(struct skv_server *);
void skv_query_free_all(struct skv_server *);

#endif
