/* SPDX-License-Identifier: Apache-2.0 */
/* common/rope.h - what a model description says of rotary positions: is it to be believed? */
#ifndef SKV_ROPE_H
#define SKV_ROPE_H

#include <sparsekv/types.h>

/* NULL, or which field of a model's `rope` is wrong and what it must be. */
const char *skv_rope_check(const struct skv_rope *rope, uint32_t head_dim);

#endif
