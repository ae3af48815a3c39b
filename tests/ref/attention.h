/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/ref/attention.h - what the kernels should compute, in double precision and plain loops.
 *
 * Shares no code with the kernels: it knows nothing of pages, chunks or vectors.
 */
#ifndef SKV_REF_ATTENTION_H
#define SKV_REF_ATTENTION_H

#include <stdbool.h>
#include <stdint.h>

/* x as an fp32, fp16 or bf16 (enum skv_dtype) number, rounded to nearest even. */
float ref_round(uint32_t dtype, float x);

/* The number stored as that dtype; of fp8 what it is times its row's unit. */
float ref_load(uint32_t dtype, const void *p);

/*
 * Rows of K and V. Round one as pages of the dtype hold it: fp8 (SKV_FP8) has e4m3 numbers times a unit, the least power of
 * two from 2^-126 on, of which the largest element is at most 448 times as much. It returns the unit's byte in a page.
 */
uint8_t ref_round_row(uint32_t dtype, float *row, uint32_t n);

/* The unit that such a byte stands for. */
float ref_unit(uint8_t scale);

/* Of row number `row` of a page's 2 * kv_heads * 16: all K, then all V. 1 if it is not of fp8. */
float ref_unit_in_page(uint32_t dtype, const uint8_t *page, uint32_t kv_heads, uint32_t dim, uint32_t row);

/* Store it, rounded; as fp8 it must be an e4m3 number. */
void ref_store(uint32_t dtype, void *p, float x);

/* The softmax of a q head. A score is s = scale * q · k, with a softcap c (not 0) c tanh(s / c). */
struct ref_softmax {
	double scale, softcap;
	const float *sink; /* the logit of one more term, which has no value; NULL: there is none */
};

/*
 * One q head over n tokens: out[dim] = Σ α_t v_t, α = softmax over the scores of the tokens with visible[t] and the
 * sink. k and v are [n] rows `stride` floats apart. A score of -infinity weighs nothing, even
 * where there is no other. No token with a weight: zeros.
 * weight[n], if not NULL, receives α (0 where not visible). Returns log Σ exp(score), the sink left out.
 */
double ref_attention(const float *q, const float *k, const float *v, uint32_t n, uint32_t stride,
                     uint32_t dim, struct ref_softmax by, const bool *visible, double *out, double *weight);

/* The score of a product q · k; and what the sink adds to a sum of exp(score - max). */
double ref_score(struct ref_softmax by, double dot);
double ref_sink(struct ref_softmax by, double max);

/*
 * The k largest of score[0, n) as ascending indices, ties to the lower index, never a -INFINITY or NaN.
 * Returns how many.
 */
uint32_t ref_topk(const float *score, uint32_t n, uint32_t k, uint32_t *ret_ids);

/*
 * The most that q · k can be for a k between two bounds: Σ_d max(q_d low_d, q_d high_d), where low and high are the
 * smallest and largest of k[n], rows `stride` floats apart.
 */
double ref_bound(const float *q, const float *k, uint32_t n, uint32_t stride, uint32_t dim);

#endif
