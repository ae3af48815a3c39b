/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/requests/policy.h - requests of operators to load and swap policies, and the lookup of the plugin that a spec
 * names.
 */
#ifndef SKV_DAEMON_POLICY_H
#define SKV_DAEMON_POLICY_H

#include "daemon/ipc/conn.h"

struct skv_plugin;
struct skv_registry_ops;
struct skv_server;

/* Returns the plugin that a spec names. NULL: there is no such plugin, and the client has been sent an error. */
const struct skv_plugin *skv_policy_find(struct skv_server *, struct skv_conn *, uint32_t serial, const char *spec);
void skv_policy_load_request(struct skv_server *, struct skv_conn *, const struct skv_msg_header *,
                             const void *body, int *fds);
void skv_policy_swap_request(struct skv_server *, struct skv_conn *, const struct skv_msg_header *,
                             const void *body, int *fds);
/* Functions that the registry of plugins calls. */
extern const struct skv_registry_ops skv_policy_registry_ops;
/* Gives each session that the previous daemon left the id of this daemon's plugin with the same policy. */
void skv_policy_replace_all(struct skv_server *);

#endif
