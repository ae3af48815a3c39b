/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/policy.h - operators' requests about policies, and the policy that a spec names. */
#ifndef SKV_DAEMON_POLICY_H
#define SKV_DAEMON_POLICY_H

#include "daemon/ipc/conn.h"

struct skv_plugin;
struct skv_registry_ops;
struct skv_server;

/* The plugin that a spec names; NULL after telling the client that there is none. */
const struct skv_plugin *skv_policy_find(struct skv_server *, struct skv_conn *, uint32_t serial, const char *spec);
void skv_policy_load_request(struct skv_server *, struct skv_conn *, const struct skv_msg_header *,
                             const void *body, int *fds);
void skv_policy_swap_request(struct skv_server *, struct skv_conn *, const struct skv_msg_header *,
                             const void *body, int *fds);
/* What the registry asks. */
extern const struct skv_registry_ops skv_policy_registry_ops;
/* Sessions of the daemon before: the files that they know are there no more, others of the same policies are. */
void skv_policy_replace_all(struct skv_server *);

#endif
