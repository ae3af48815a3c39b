/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/compress/ready.h - compress and decompress between steps, by maintenance transactions. */
#ifndef SKV_CLIENT_COMPRESS_READY_H
#define SKV_CLIENT_COMPRESS_READY_H

#include <stdbool.h>

struct skv_seq;
struct skv_session;

/*
 * Before a step, and before the sequence's slots are laid out: decompress tokens that are compressed in another way
 * than its policy compresses. 0, or a negative errno with the last error set.
 */
int decompress_foreign(struct skv_session *s, struct skv_seq *q);
/* When slots are as the policy wants them: before a decode step, compress all that it expects to be compressed. */
int compress_ready(struct skv_session *s, struct skv_seq *q, bool prompt);

#endif
