/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/ops.h - arithmetic on the host that all backends use: tables of the rotary embedding, and functions of logits.
 */
#ifndef ENG_OPS_H
#define ENG_OPS_H

#include <stdint.h>
#include <sparsekv/types.h>

/*
 * Returns a table of the rotary embedding, [positions][cosines of head_dim/2 angles | their sines], with all values
 * multiplied by skv_rope_scale(). The caller frees the table. NULL: no memory.
 */
float *eng_rope_table(const struct skv_rope *rope, uint32_t head_dim, uint32_t positions);

/* Returns the index of the largest element, the lowest one of equal elements. */
uint32_t eng_argmax(const float *x, uint32_t n);

/* Returns −log softmax(x)[i], the negative log-likelihood of element i (natural logarithm). */
double eng_nll(const float *x, uint32_t n, uint32_t i);

#endif
