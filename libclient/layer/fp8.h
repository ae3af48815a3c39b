/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/layer/fp8.h - can a model's keys be stored in pages of fp8? */
#ifndef SKV_CLIENT_LAYER_FP8_H
#define SKV_CLIENT_LAYER_FP8_H

#include <stdint.h>

struct skv_attn;
struct skv_session;
struct skv_shape;

/*
 * Check a layer's rows of q and k before they are appended to fp8 pages. Returns 0; -EDOM with an error text if
 * rounding to fp8 would move too much attention; or another negative errno. The device must be entered.
 */
int fp8_check(struct skv_session *s, uint32_t layer, const struct skv_shape *sh, const struct skv_attn *a);

#endif
