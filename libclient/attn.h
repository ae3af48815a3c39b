/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/attn.h - the rows of q, k, v and out that an engine hands over: checked, and on the host made what kernels take. */
#ifndef SKV_CLIENT_ATTN_H
#define SKV_CLIENT_ATTN_H

#include <stdint.h>

struct skv_attn;
struct skv_session;

/* Are these the rows of a layer of the open step? 0, or -EINVAL with a text that names the field. */
int attn_check(const struct skv_session *s, uint32_t layer, const struct skv_attn *a);
/* The rows as the session's kernels take them: on the host fp32 without gaps, in scratch memory where they are not. */
struct skv_attn attn_take(struct skv_session *s, const struct skv_attn *a);
/* And what came out, where the engine wants it. */
void attn_give(struct skv_session *s, const struct skv_attn *a, const struct skv_attn *taken);
/* Room for that in the open step. */
int attn_prepare(struct skv_session *s);

#endif
