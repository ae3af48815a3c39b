/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/request.h - the functions that ipc/conn.h calls: for a request, for the end of a connection, for room in its
 * queue of output.
 */
#ifndef SKV_DAEMON_REQUEST_H
#define SKV_DAEMON_REQUEST_H

#include <stdbool.h>

struct skv_conn;
struct skv_msg_header;

void skv_request(void *server, struct skv_conn *, const struct skv_msg_header *, const void *body, int *fds);
void skv_request_gone(void *server, struct skv_conn *);
void skv_request_drained(void *server, struct skv_conn *);
bool skv_request_used_up(void *server);

#endif
