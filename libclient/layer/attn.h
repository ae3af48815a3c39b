/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/layer/attn.h - an engine's rows of q, k, v and out: checked, and converted for the host's kernels. */
#ifndef SKV_CLIENT_LAYER_ATTN_H
#define SKV_CLIENT_LAYER_ATTN_H

#include <stdint.h>

struct skv_attn;
struct skv_session;

/* Are these rows valid for the layer in the open step? 0, or -EINVAL with a text that names the field. */
int attn_check(const struct skv_session *s, uint32_t layer, const struct skv_attn *a);
/* The rows as the session's kernels take them: on the host contiguous fp32, copied to scratch memory if necessary. */
struct skv_attn attn_take(struct skv_session *s, const struct skv_attn *a);
/* Copy the output to where the engine wants it. */
void attn_give(struct skv_session *s, const struct skv_attn *a, const struct skv_attn *taken);

#endif
