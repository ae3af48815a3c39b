/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/session/policy-config.h - policies by name and parameters. */
#ifndef SKV_CLIENT_SESSION_POLICY_CONFIG_H
#define SKV_CLIENT_SESSION_POLICY_CONFIG_H

#include "libclient/session.h"

/*
 * Get the policy that the daemon names, for one more user: one that the session has, or loaded. fd is borrowed. *ret
 * must go to policy_put() even after a failure.
 */
int policy_get(struct skv_session *s, const struct skv_msg_policy *m, int fd, struct policy **ret);
struct policy *policy_put(struct skv_client *c, struct policy *p); /* NULL is fine; returns NULL */
/* Tell the daemon that the session runs the policy of this generation, or why not. */
void policy_ack(struct skv_session *s, uint64_t generation, int error, const char *text);
/* Is this the policy that the daemon names? */
bool policy_is(const struct policy *p, const struct skv_msg_policy *m);

void plugins_free(struct skv_client *c); /* those of a connection that ends */

#endif
