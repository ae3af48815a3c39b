/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/compress/attend.h - attention of layers that compress. */
#ifndef SKV_CLIENT_COMPRESS_ATTEND_H
#define SKV_CLIENT_COMPRESS_ATTEND_H

#include "kernels/compress.h"
#include "kernels/kernels.h"

struct layer;
struct skv_session;

/* Make room for rows of the open step that are decompressed, or exchanged with other ranks. 0, or -ENOMEM. */
int compress_prepare(struct skv_session *s);
void compress_close(struct skv_session *s); /* frees it */
/* Attend with a batch whose sequences compress: decode rows to the listed tokens, or with `list` NULL to all. */
void compress_decode(const struct layer *l, const struct skv_index_list *list);
void compress_prefill(const struct layer *l);

#endif
