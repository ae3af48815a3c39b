/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/decode/merge.c - split-KV merge: combines the partial results of a request's chunks into the request's
 * output.
 */
#include "kernels/host/decode/params.h"
#include "kernels/host/runtime/logits.h"
#include "kernels/host/runtime/simd.h"
#include <math.h>

/*
 * Computes the output of q head `head`, which is number `local` of its request, if out is not NULL. Returns log2 of the
 * softmax denominator; *ret_tokens gets the same without the sink's term. Both are -infinity if the request attended to
 * no token.
 */
static float merge_head(const struct decode_params *d, uint32_t request, uint32_t local, uint32_t head, float *out,
                        float *ret_tokens)
{
	const uint32_t dim = d->sh->head_dim, item0 = d->first[request], item1 = d->first[request + 1];
	float max = -INFINITY, sum = 0;

	for (uint32_t it = item0; it < item1; it++)
		max = fmaxf(max, partial_of(d, it).max[local]);
	if (out)
		memset(out, 0, dim * sizeof *out);
	for (uint32_t it = item0; it < item1; it++) {
		struct partial p = partial_of(d, it);
		/* the chunk has no token, or only NaN scores: there is no maximum to rescale from */
		float fix = p.max[local] == -INFINITY ? 1 : v_exp2(v_set(p.max[local] - max))[0];
		sum += p.sum[local] * fix;
		for (uint32_t x = 0; out && x < dim; x += VL)
			v_storef(out + x, v_fma(v_loadf(p.acc + (size_t)local * dim + x), v_set(fix),
			                        v_loadf(out + x)));
	}
	*ret_tokens = -INFINITY;
	if (sum == 0)
		return -INFINITY;
	*ret_tokens = max + log2f(sum);
	sum += sink_term(d->sh, head, max);
	for (uint32_t x = 0; out && x < dim; x += VL)
		v_storef(out + x, v_loadf(out + x) / sum);
	return max + log2f(sum);
}

/* A work item: merges the partial results of the q heads of one kv head of a request. */
static void merge_item(void *ctx, uint32_t item, int thread)
{
	const struct decode_params *d = ctx;
	const struct skv_shape *sh = d->sh;
	const uint32_t i = item / (d->splits * d->span), h = item % (d->splits * d->span);
	const uint32_t request = i * d->splits + h / d->span;
	(void)thread;
	if (d->seq[i].n_q == 0) /* an empty sequence, which pads the batch */
		return;
	for (uint32_t g = 0; g < d->group; g++) {
		uint32_t head = h * d->group + g;
		size_t at = ((size_t)d->seq[i].row * sh->n_heads + head) * sh->head_dim;
		float tokens, all = merge_head(d, request, h % d->span * d->group + g, head, d->keys ? NULL : d->out + at, &tokens);
		if (d->lse)
			d->lse[(size_t)i * sh->n_heads + head] = all;
		if (d->scores && d->scores->lse)
			d->scores->lse[(size_t)i * sh->n_heads + head] = tokens * LN2;
		if (sh->lse && !d->keys)
			sh->lse[(size_t)d->seq[i].row * sh->n_heads + head] = tokens * LN2;
	}
}

void ISA(merge_partials)(struct decode_params *d, int threads)
{
	skv_run(threads, d->n * d->splits * d->span, merge_item, d);
}
