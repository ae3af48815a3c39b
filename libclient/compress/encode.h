/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/compress/encode.h - compression of a sequence's tokens at the end of a step. */
#ifndef SKV_CLIENT_COMPRESS_ENCODE_H
#define SKV_CLIENT_COMPRESS_ENCODE_H

struct skv_seq;

/* Evict the pages with the K and V rows of tokens that the open step's commit will record as compressed. */
void compress_evict_rows(struct skv_seq *q);

#endif
