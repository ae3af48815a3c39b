/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/policy.h - operators' requests about policies, and the policy that a spec names. */
#ifndef SKV_DAEMON_POLICY_H
#define SKV_DAEMON_POLICY_H

#include "daemon/ipc/conn.h"

struct skv_plugin;
struct skv_server;

/* The plugin that a spec names; NULL after telling the client that there is none. */
const struct skv_plugin *skv_policy_find(struct skv_server *, struct skv_conn *, uint32_t serial, const char *spec);
void skv_policy_load_request(struct skv_server *, struct skv_conn *, const struct skv_msg_header *,
                             const void *body, int *fds);
void skv_policy_swap_request(struct skv_server *, struct skv_conn *, const struct skv_msg_header *,
                             const void *body, int *fds);
bool skv_policy_in_use(void *server, uint32_t plugin);

#endif
