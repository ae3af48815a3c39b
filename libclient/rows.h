/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/rows.h - the rows of q, k, v and out that an engine hands over: checked, and on the host made what kernels take. */
#ifndef SKV_CLIENT_ROWS_H
#define SKV_CLIENT_ROWS_H

#include <stdint.h>

struct skv_attn;
struct skv_session;
struct step;

/* Are these the rows of a layer of the open step? 0, or -EINVAL with a text that names the field. */
int rows_check(const struct skv_session *s, uint32_t layer, const struct skv_attn *a);

#endif
