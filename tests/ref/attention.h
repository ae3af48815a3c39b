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

/* The number stored as that dtype. */
float ref_load(uint32_t dtype, const void *p);

/* Store it, rounded. */
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
