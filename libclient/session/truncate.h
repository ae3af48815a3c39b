/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/session/truncate.h - truncates a sequence to its first tokens. */
#ifndef SKV_CLIENT_SESSION_TRUNCATE_H
#define SKV_CLIENT_SESSION_TRUNCATE_H

#include <stdint.h>

struct skv_seq;

/* Can the sequence be truncated to its first n tokens? 0, or -EINVAL or -ESTALE with the last error set. */
int truncate_check(struct skv_seq *q, uint32_t n);
/* Truncate the sequence to its first n tokens. Nothing of the sequence may be queued. A failure changes nothing. */
int truncate_run(struct skv_seq *q, uint32_t n, int32_t next);

#endif
