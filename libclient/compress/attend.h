/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/compress/attend.h - attention of layers that compress. */
#ifndef SKV_CLIENT_COMPRESS_ATTEND_H
#define SKV_CLIENT_COMPRESS_ATTEND_H

#include "kernels/compress.h"
#include "kernels/kernels.h"

struct layer;
struct skv_session;

/* Make room for the rows that the open step decompresses, or exchanges with other ranks. Returns 0, or -ENOMEM. */
int compress_prepare(struct skv_session *s);
void compress_close(struct skv_session *s); /* frees the room that compress_prepare() has made */
/*
 * Attention of a layer whose sequences compress: decode rows attend to the listed tokens, or to all tokens if `list` is
 * NULL. Rows of prompts attend to all tokens.
 */
void compress_decode(const struct layer *l, const struct skv_index_list *list);
void compress_prefill(const struct layer *l);

#endif
