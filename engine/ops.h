/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/ops.h - the arithmetic between two attentions, fp32, on rows.
 *
 * Every function treats its rows alike and independently: what a row gives does not depend on the
 * rows beside it. They use the OpenMP pool when there are rows enough for it to pay.
 */
#ifndef ENG_OPS_H
#define ENG_OPS_H

#include <stdint.h>
#include "engine/config.h"

/* y [rows][n_out] = x [rows][n_in] · w [n_out][n_in] transposed. */
void eng_matmul(float *y, const float *x, const float *w, uint32_t rows, uint32_t n_in, uint32_t n_out);

/* y = x / rms(x) · w, over rows of n. y may be x. */
void eng_rmsnorm(float *y, const float *x, const float *w, float eps, uint32_t rows, uint32_t n);

/* x += y, n floats. */
void eng_add(float *x, const float *y, uint64_t n);

/* y [rows][n] = silu(gate) · up, of rows [gate n | up n]. */
void eng_swiglu(float *y, const float *gate_up, uint32_t rows, uint32_t n);

/*
 * Take rows [q heads | k heads | v heads] apart, turning q and k by their positions: the halves of a
 * head are the two coordinates of head_dim/2 pairs. `table` is [position][cos head_dim/2 | sin head_dim/2].
 */
struct eng_heads {
	uint32_t n_heads, n_kv_heads, head_dim;
};
void eng_rope_split(float *q, float *k, float *v, const float *qkv, const struct eng_heads *heads,
                    const float *table, const uint32_t *position, uint32_t rows);

/* A table for eng_rope_split of `positions` rows, to be freed; NULL without memory. */
float *eng_rope_table(const struct eng_rope *rope, uint32_t head_dim, uint32_t positions);

/* Index of the largest; the lower one of equals. */
uint32_t eng_argmax(const float *x, uint32_t n);

/* −log softmax(x)[i]. */
double eng_nll(const float *x, uint32_t n, uint32_t i);

#endif
