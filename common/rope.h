/* SPDX-License-Identifier: Apache-2.0 */
/* common/rope.h - checks the RoPE parameters (rotary position embedding) of a model description. */
#ifndef SKV_ROPE_H
#define SKV_ROPE_H

#include <sparsekv/types.h>

/*
 * Checks the parameters of a model's RoPE. Returns NULL, or a text that names the invalid field of struct skv_rope and
 * its limits.
 */
const char *skv_rope_check(const struct skv_rope *rope, uint32_t head_dim);

#endif
