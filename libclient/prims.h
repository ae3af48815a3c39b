/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/prims.h - the primitives that hooks call. */
#ifndef SKV_CLIENT_PRIMS_H
#define SKV_CLIENT_PRIMS_H

#include <sparsekv/policy.h>

struct skv_session;

extern const struct skv_prims policy_prims;
/* A hook has misused a primitive: skv_step_end will say so. The first misuse counts. */
void policy_misuse(struct skv_session *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
