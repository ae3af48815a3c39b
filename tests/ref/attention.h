/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/ref/attention.h - reference for attention and selection kernels, in double precision and plain loops.
 *
 * Shares no code with the kernels and does not know pages, chunks or vectors.
 */
#ifndef SKV_REF_ATTENTION_H
#define SKV_REF_ATTENTION_H

#include <stdbool.h>
#include <stdint.h>

/* Rounds x to an fp32, fp16 or bf16 (enum skv_dtype) number, to nearest even. */
float ref_round(uint32_t dtype, float x);

/* Returns a stored number of that dtype; for fp8, without the unit of its row. */
float ref_load(uint32_t dtype, const void *p);

/*
 * Rounds a row of K or V to values that pages of the dtype can hold. With fp8 (SKV_FP8) these are e4m3 numbers times a
 * unit: the smallest power of two, from 2^-126 on, for which the largest element is at most 448 units. Returns the
 * unit's byte in a page.
 */
uint8_t ref_round_row(uint32_t dtype, float *row, uint32_t n);

/* Returns the unit that such a byte stands for. */
float ref_unit(uint8_t scale);

/*
 * Returns the unit of row `row` of the 2 * kv_heads * 16 rows of a page (all K, then all V); 1 if the dtype is not fp8.
 */
float ref_unit_in_page(uint32_t dtype, const uint8_t *page, uint32_t kv_heads, uint32_t dim, uint32_t row);

/* Stores x, rounded; with fp8, x must be an e4m3 number. */
void ref_store(uint32_t dtype, void *p, float x);

/* The softmax of a q head. A score is s = scale * q · k, with a softcap c (not 0) c tanh(s / c). */
struct ref_softmax {
	double scale, softcap;
	const float *sink; /* the logit of one more term, which has no value; NULL: none */
};

/*
 * Attention of one q head over n tokens: out[dim] = Σ α_t v_t, α = softmax over the scores of the tokens with
 * visible[t] and the sink. k and v are [n] rows, `stride` floats apart. A score of -infinity weighs nothing, even if
 * there is no other score. If no token has a weight, the output is zeros. weight[n], if not NULL, receives α (0 where
 * not visible). Returns log Σ exp(score), without the sink.
 */
double ref_attention(const float *q, const float *k, const float *v, uint32_t n, uint32_t stride,
                     uint32_t dim, struct ref_softmax by, const bool *visible, double *out, double *weight);

/* Returns the score of a product q · k, and the term that the sink adds to a sum of exp(score - max). */
double ref_score(struct ref_softmax by, double dot);
double ref_sink(struct ref_softmax by, double max);

/*
 * Writes the indices of the k largest of score[0, n), ascending; ties go to the lower index, and -INFINITY and NaN are
 * never chosen. Returns their number.
 */
uint32_t ref_topk(const float *score, uint32_t n, uint32_t k, uint32_t *ret_ids);

/*
 * Returns the upper bound of q · k for any k between two bounds: Σ_d max(q_d low_d, q_d high_d), where low and high are
 * the minimum and maximum of k[n], rows `stride` floats apart.
 */
double ref_bound(const float *q, const float *k, uint32_t n, uint32_t stride, uint32_t dim);

#endif
