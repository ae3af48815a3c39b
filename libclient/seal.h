/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/seal.h - what of a sequence can be sealed, for others to begin with. */
#ifndef SKV_CLIENT_SEAL_H
#define SKV_CLIENT_SEAL_H

#include <stdint.h>

struct skv_seq;
struct skv_session;

/*
 * Make the first n tokens, whole blocks, what a sealed prefix has: under a policy that compresses they are compressed. 0; -ESTALE they
 * cannot be, as of skv_seq_seal(); else what a maintenance transaction fails with.
 */
int seal_ready(struct skv_session *s, struct skv_seq *q, uint32_t n);

#endif
