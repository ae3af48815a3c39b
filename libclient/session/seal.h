/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/session/seal.h - gives a sequence's first tokens the form of a sealed prefix. */
#ifndef SKV_CLIENT_SESSION_SEAL_H
#define SKV_CLIENT_SESSION_SEAL_H

#include <stdint.h>

struct skv_seq;
struct skv_session;

/*
 * Give the first n tokens, which are whole blocks, the form of a sealed prefix: under a policy that compresses,
 * compress them. Returns 0; -ESTALE if the tokens cannot be sealed (see skv_seq_seal()); or the error of a maintenance
 * transaction.
 */
int seal_ready(struct skv_session *s, struct skv_seq *q, uint32_t n);

#endif
