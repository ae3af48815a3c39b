/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/compress/encode.h - tokens are compressed. */
#ifndef SKV_CLIENT_COMPRESS_ENCODE_H
#define SKV_CLIENT_COMPRESS_ENCODE_H

struct skv_seq;

/* Evict the pages of rows that the commit will name as compressed. */
void compress_evict_rows(struct skv_seq *q);

#endif
