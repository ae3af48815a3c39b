/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/compress/encode.h - compression at the end of a step. */
#ifndef SKV_CLIENT_COMPRESS_ENCODE_H
#define SKV_CLIENT_COMPRESS_ENCODE_H

struct skv_seq;
struct skv_session;

/* Compress what the commits of decoding sequences will name as compressed: run kernels, and evict pages of rows. */
void compress_step_end(struct skv_session *s);
/* Only evict the pages of the rows. */
void compress_evict_rows(struct skv_seq *q);

#endif
