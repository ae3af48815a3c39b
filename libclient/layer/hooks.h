/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/layer/hooks.h - run a policy's hooks, and the primitives that they call. */
#ifndef SKV_CLIENT_LAYER_HOOKS_H
#define SKV_CLIENT_LAYER_HOOKS_H

#include "libclient/session.h"

/* The context that the policy's hooks are called with, for n_seqs sequences. */
struct skv_policy_ctx policy_ctx(struct skv_session *s, const struct policy *p, uint32_t n_seqs);
/* Run one hook of the policy, which `phase` names, for the decoding sequences of a batch. */
void policy_hook(struct skv_session *s, struct policy_batch *pb, enum phase phase, uint32_t layer);
/* Record that a hook misused a primitive. skv_step_end fails then, with the text of the first misuse. */
void policy_misuse(struct skv_session *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
