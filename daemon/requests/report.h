/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/requests/report.h - describes the state of the daemon as JSON. */
#ifndef SKV_DAEMON_REPORT_H
#define SKV_DAEMON_REPORT_H

#include <jansson.h>

#include "daemon/ipc/conn.h"

struct skv_core_seq_view;
struct skv_core_session_view;
struct skv_server;

void skv_report_query(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, const void *body,
                      int *fds);
/* Replies to a request with a JSON value (consumed). */
void skv_report_send(struct skv_conn *, uint16_t type, uint32_t serial, json_t *value);
/* Make the row of a session or of a sequence in a list. The caller owns the row. */
json_t *skv_report_session(const struct skv_core_session_view *);
json_t *skv_report_seq(const struct skv_core_seq_view *);
/* Writes the one-line status of the daemon for the service manager. */
void skv_report_status_line(struct skv_server *, char *to, size_t len);

#endif
