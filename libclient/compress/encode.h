/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/compress/encode.h - what a step compresses at its end. */
#ifndef SKV_CLIENT_COMPRESS_ENCODE_H
#define SKV_CLIENT_COMPRESS_ENCODE_H

struct skv_seq;
struct skv_session;

/* Compress what the decoding sequences' commits will say is compressed: kernels, and evictions of the rows' pages. */
void compress_step_end(struct skv_session *s);
/* The evictions alone. */
void compress_evict_rows(struct skv_seq *q);

#endif
