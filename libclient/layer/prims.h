/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/layer/prims.h - the primitives that hooks call. */
#ifndef SKV_CLIENT_LAYER_PRIMS_H
#define SKV_CLIENT_LAYER_PRIMS_H

#include <sparsekv/policy.h>

struct skv_session;

extern const struct skv_prims policy_prims;
/* Record that a hook misused a primitive: skv_step_end fails with it. The first misuse counts. */
void policy_misuse(struct skv_session *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
