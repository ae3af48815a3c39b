/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/ops.h - arithmetic that is done on the host for every backend: rotary tables, and functions of logits.
 */
#ifndef ENG_OPS_H
#define ENG_OPS_H

#include <stdint.h>
#include <sparsekv/types.h>

/*
 * Returns a table [positions][cos head_dim/2 | sin head_dim/2], multiplied by skv_rope_scale(). The caller frees it.
 * NULL: no memory.
 */
float *eng_rope_table(const struct skv_rope *rope, uint32_t head_dim, uint32_t positions);

/* Index of the largest element; of equals the lowest. */
uint32_t eng_argmax(const float *x, uint32_t n);

/* −log softmax(x)[i]. */
double eng_nll(const float *x, uint32_t n, uint32_t i);

#endif
