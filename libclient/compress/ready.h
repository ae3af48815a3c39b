/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/compress/ready.h - compress and decompress between steps, by maintenance transactions. */
#ifndef SKV_CLIENT_COMPRESS_READY_H
#define SKV_CLIENT_COMPRESS_READY_H

#include <stdbool.h>

struct skv_seq;
struct skv_session;

/*
 * Before a step, and before the sequence's slots are laid out: what is compressed in another way than its policy
 * compresses is decompressed.
 */
int decompress_foreign(struct skv_session *s, struct skv_seq *q);
/* And when slots are as the policy wants them: before a decode step all is compressed that should be. */
int compress_ready(struct skv_session *s, struct skv_seq *q, bool prompt);

#endif
