/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/session/adopt.h - the state that a policy keeps of a sequence, and the adoption of a sequence by a policy.
 */
#ifndef SKV_CLIENT_SESSION_ADOPT_H
#define SKV_CLIENT_SESSION_ADOPT_H

struct policy;
struct skv_seq;
struct skv_session;

/* Ask the policy to adopt the sequence. The caller owns *ret_state. 0, or a negative errno with the last error set. */
int policy_adopt(struct skv_session *s, struct policy *p, struct skv_seq *q, void **ret_state);
/* Make `state` (consumed) the sequence's state under policy p. */
void policy_install(struct skv_seq *q, const struct policy *p, void *state);
/* Put the sequence under its policy: keep its state if that fits, else adopt it. Returns as policy_adopt(). */
int policy_take_over(struct skv_seq *q);
void policy_start(struct skv_seq *q); /* initialises the state of a new, empty sequence */

#endif
