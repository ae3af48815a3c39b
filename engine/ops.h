/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/ops.h - arithmetic that is the host's wherever the model is: rotary angles, and what logits say.
 */
#ifndef ENG_OPS_H
#define ENG_OPS_H

#include <stdint.h>
#include <sparsekv/types.h>

/* [positions][cos head_dim/2 | sin head_dim/2], times skv_rope_scale(), to be freed; NULL without memory. */
float *eng_rope_table(const struct skv_rope *rope, uint32_t head_dim, uint32_t positions);

/* Index of the largest; the lower one of equals. */
uint32_t eng_argmax(const float *x, uint32_t n);

/* −log softmax(x)[i]. */
double eng_nll(const float *x, uint32_t n, uint32_t i);

#endif
