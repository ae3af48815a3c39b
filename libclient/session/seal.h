/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/session/seal.h - makes the first tokens of a sequence what a sealed prefix has. */
#ifndef SKV_CLIENT_SESSION_SEAL_H
#define SKV_CLIENT_SESSION_SEAL_H

#include <stdint.h>

struct skv_seq;
struct skv_session;

/*
 * Give the first n tokens, whole blocks, the form of a sealed prefix: a policy that compresses compresses them. 0;
 * -ESTALE if they cannot be sealed, as skv_seq_seal() says; or the error of a maintenance transaction.
 */
int seal_ready(struct skv_session *s, struct skv_seq *q, uint32_t n);

#endif
