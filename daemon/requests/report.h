/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/requests/report.h - describes the state of the daemon as JSON. */
#ifndef SKV_DAEMON_REPORT_H
#define SKV_DAEMON_REPORT_H

#include <jansson.h>

#include "daemon/ipc/conn.h"

struct skv_core_account_view;
struct skv_core_client_view;
struct skv_core_held;
struct skv_core_pool_view;
struct skv_core_seq_view;
struct skv_core_session_view;
struct skv_plugin;
struct skv_server;

/* Replies to a request with a JSON value (consumed). */
void skv_report_send(struct skv_conn *, uint16_t type, uint32_t serial, json_t *value);
/* Make a row of a list; the caller owns it. Return NULL if there is no memory. */
json_t *skv_report_account(const struct skv_core_account_view *);
json_t *skv_report_device_account(const struct skv_core_account_view *, uint32_t device);
json_t *skv_report_client(const struct skv_core_client_view *);
json_t *skv_report_session(const struct skv_core_session_view *);
json_t *skv_report_seq(const struct skv_core_seq_view *);
json_t *skv_report_pool(const struct skv_core_pool_view *);
json_t *skv_report_policy(const struct skv_plugin *, uint32_t sessions);
/*
 * Makes the status of the daemon without its lists of accounts and clients: for an operator (`all`), or for the user
 * `uid`. `held`: the host memory of the same users. The caller owns the object. Returns NULL if there is no memory.
 */
json_t *skv_report_status(struct skv_server *, bool all, uid_t uid, const struct skv_core_held *held);
/* Writes the one-line status of the daemon for the service manager. */
void skv_report_status_line(struct skv_server *, char *to, size_t len);

#endif
