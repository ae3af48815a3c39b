/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/layer/hooks.h - run a policy's hooks. */
#ifndef SKV_CLIENT_LAYER_HOOKS_H
#define SKV_CLIENT_LAYER_HOOKS_H

#include "libclient/session.h"

/* Run a hook for the decoding sequences of a batch. */
void policy_hook(struct skv_session *s, struct policy_batch *pb, enum phase phase, uint32_t layer);

#endif
