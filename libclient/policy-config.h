/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/policy-config.h - policies by name and parameters. */
#ifndef SKV_CLIENT_POLICY_CONFIG_H
#define SKV_CLIENT_POLICY_CONFIG_H

#include "libclient/session.h"

/*
 * The policy that the daemon names, for one more user: loaded, or one that the session has. fd is borrowed. *ret is
 * to be put also after a failure.
 */
int policy_get(struct skv_session *s, const struct skv_msg_policy *m, int fd, struct policy **ret);
struct policy *policy_put(struct skv_client *c, struct policy *p); /* NULL is fine; returns NULL */
/* Is it the policy that the daemon names? */
bool policy_is(const struct policy *p, const struct skv_msg_policy *m);

#endif
