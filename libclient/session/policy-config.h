/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/session/policy-config.h - finds or makes policies, which are plugins with parameters. */
#ifndef SKV_CLIENT_SESSION_POLICY_CONFIG_H
#define SKV_CLIENT_SESSION_POLICY_CONFIG_H

#include "libclient/session.h"

/*
 * Get the policy that the daemon names, and count one more user of it: a policy that the session has already, or a
 * newly loaded one. fd is borrowed. Even after a failure the caller must give *ret to policy_put().
 */
int policy_get(struct skv_session *s, const struct skv_msg_policy *m, int fd, struct policy **ret);
/* counts one user less; NULL is ignored; returns NULL */
struct policy *policy_put(struct skv_client *c, struct policy *p);
/*
 * A sequence gives up its policy, or NULL. The session keeps the last few of these, so that the next sequence need not
 * configure such a policy anew, and recordings of steps under it stay valid.
 */
void policy_leave(struct skv_session *s, struct policy *p);
/* Tell the daemon that the session runs the policy of this generation, or why it does not. */
void policy_ack(struct skv_session *s, uint64_t generation, int error, const char *text);
/* Is `p` the policy that the daemon names? */
bool policy_is(const struct policy *p, const struct skv_msg_policy *m);

void plugins_free(struct skv_client *c); /* frees all plugins of a connection that ends */

#endif
