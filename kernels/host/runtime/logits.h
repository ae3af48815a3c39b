/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/runtime/logits.h - softcap and sinks in the softmax of the host kernels (struct skv_shape). A sink is
 * one more term in the softmax of each q head. Scores are in units of log2.
 */
#ifndef SKV_HOST_LOGITS_H
#define SKV_HOST_LOGITS_H

#include <math.h>
#include "kernels/host/runtime/host.h"
#include "kernels/host/runtime/simd.h"

/* Returns the layer's softcap for scores in units of log2; 0: no softcap. */
INLINE float softcap_of(const struct skv_shape *sh)
{
	return sh->softcap * LOG2E;
}

/*
 * Returns cap tanh(score / cap). With x = score / cap and t = e^(-2|x|), tanh |x| is (1 - t) / (1 + t); if |x| is below
 * 0.3, where this difference would cancel digits, the series of tanh is used. A score of -infinity becomes -cap, so
 * masks must be applied after the softcap. A NaN stays a NaN.
 */
INLINE vf v_softcap(vf score, float cap)
{
	const vf x = score / cap, a = (vf)((vi)x & INT32_MAX), t = v_exp2(a * (-2 * LOG2E)), y = a * a;
	vf p = v_fma(y, v_set(-1382 / 155925.0f), v_set(62 / 2835.0f));

	p = v_fma(p, y, v_set(-17 / 315.0f));
	p = v_fma(p, y, v_set(2 / 15.0f));
	p = v_fma(p, y, v_set(-1 / 3.0f));
	p = v_fma(p * y, a, a);
	p = v_select(a < 0.3f, p, (1 - t) / (1 + t));
	return (vf)((vi)p | ((vi)x & INT32_MIN)) * cap;
}

/* Applies the softcap to n scores, and to the elements after them up to a whole vector. */
static inline void cap_scores(float *score, uint32_t n, float cap)
{
	for (uint32_t i = 0; i < n; i += VL)
		v_storef(score + i, v_softcap(v_loadf(score + i), cap));
}

/* Returns the term that a q head's sink adds to the head's sum of 2^(score - max); 0 in a layer without sinks. */
static inline float sink_term(const struct skv_shape *sh, uint32_t head, float max)
{
	return sh->sinks ? exp2f(sh->sinks[head] * LOG2E - max) : 0;
}
#endif
