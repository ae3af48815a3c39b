/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/layer/attn.h - checks an engine's rows of q, k, v and out, and converts them for the host's kernels. */
#ifndef SKV_CLIENT_LAYER_ATTN_H
#define SKV_CLIENT_LAYER_ATTN_H

#include <stdint.h>

struct skv_attn;
struct skv_session;

/* Are these rows valid for the layer in the open step? 0, or -EINVAL with a text that names the field. */
int attn_check(const struct skv_session *s, uint32_t layer, const struct skv_attn *a);
/*
 * Returns the rows in the form that the session's kernels take. On the host this is contiguous fp32, and rows in
 * another form are copied to scratch memory.
 */
struct skv_attn attn_take(struct skv_session *s, const struct skv_attn *a);
/* Copy the attention output from scratch memory to the engine's `out`, if attn_take() has made them differ. */
void attn_give(struct skv_session *s, const struct skv_attn *a, const struct skv_attn *taken);

#endif
