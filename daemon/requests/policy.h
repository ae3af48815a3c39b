/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/requests/policy.h - operators' requests about policies, and the lookup of a spec's policy. */
#ifndef SKV_DAEMON_POLICY_H
#define SKV_DAEMON_POLICY_H

#include "daemon/ipc/conn.h"

struct skv_plugin;
struct skv_registry_ops;
struct skv_server;

/* The plugin that a spec names. NULL: there is none, and the client has been told. */
const struct skv_plugin *skv_policy_find(struct skv_server *, struct skv_conn *, uint32_t serial, const char *spec);
void skv_policy_load_request(struct skv_server *, struct skv_conn *, const struct skv_msg_header *,
                             const void *body, int *fds);
void skv_policy_swap_request(struct skv_server *, struct skv_conn *, const struct skv_msg_header *,
                             const void *body, int *fds);
/* Callbacks for the registry. */
extern const struct skv_registry_ops skv_policy_registry_ops;
/* Gives the sessions of the previous daemon the ids that this daemon's files of the same policies have. */
void skv_policy_replace_all(struct skv_server *);

#endif
