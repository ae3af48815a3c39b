/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/session/policy-swap.h - a session follows the daemon to another policy. */
#ifndef SKV_CLIENT_SESSION_POLICY_SWAP_H
#define SKV_CLIENT_SESSION_POLICY_SWAP_H

#include "libclient/session.h"

void policy_ack(struct skv_session *s, uint64_t generation, int error, const char *text);

#endif
