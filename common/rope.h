/* SPDX-License-Identifier: Apache-2.0 */
/* common/rope.h - validates the rotary positions (RoPE) of a model description. */
#ifndef SKV_ROPE_H
#define SKV_ROPE_H

#include <sparsekv/types.h>

/* Returns NULL, or a text that names the invalid field of a model's `rope` and its limits. */
const char *skv_rope_check(const struct skv_rope *rope, uint32_t head_dim);

#endif
