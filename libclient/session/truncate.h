/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/session/truncate.h - back to a sequence's first tokens. */
#ifndef SKV_CLIENT_SESSION_TRUNCATE_H
#define SKV_CLIENT_SESSION_TRUNCATE_H

#include <stdint.h>

struct skv_seq;

/* Can a sequence go on from its first n tokens? 0, or -EINVAL or -ESTALE with the last error set. */
int truncate_check(struct skv_seq *q, uint32_t n);
/* Truncate it to them. Nothing of the sequence may be queued. On failure nothing has changed. */
int truncate_run(struct skv_seq *q, uint32_t n, int32_t next);

#endif
