/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/decode/scores.c - what a decode pass saw, pooled over heads.
 *
 * Runs after the merge, when each head's log-sum-exp is known: a token's weight is then
 * 2^(score - lse), exact over the whole sequence. An item is one of decode's chunks. The scores
 * of a chunk lie without gaps, pages that were holes left out, in the order of decode's gather().
 */
#include "kernels/host/decode/decode.h"
#include "kernels/host/runtime/simd.h"
#include <math.h>

/* Weights of a page's tokens pooled over heads [head0, head1); `raw` is head 0's score of the first token. */
static void pool_page(const struct decode *d, uint32_t i, uint32_t head0, uint32_t head1, const float *raw,
                      float ret_weight[SKV_PAGE_TOKENS])
{
	for (uint32_t t = 0; t < SKV_PAGE_TOKENS; t += VL) {
		vf pooled = {0};
		for (uint32_t head = head0; head < head1; head++) {
			float lse = d->lse[(size_t)i * d->sh->n_heads + head];
			vf w = v_exp2(v_loadf(raw + head * d->raw_stride + t) - (lse == -INFINITY ? 0 : lse));
			pooled = d->ev->sum ? pooled + w : v_max(pooled, w);
		}
		v_storef(ret_weight + t, pooled);
	}
}

static void write_page(const struct decode *d, uint32_t i, uint32_t row, uint32_t page, const float *weight)
{
	const struct skv_evidence *ev = d->ev;
	size_t r = (size_t)i * ev->rows + row;
	if (ev->token)
		memcpy(ev->token + r * ev->token_stride + page * SKV_PAGE_TOKENS, weight,
		       SKV_PAGE_TOKENS * sizeof *weight);
	if (ev->page) {
		vf sum = {0};
		for (uint32_t t = 0; t < SKV_PAGE_TOKENS; t += VL)
			sum += v_loadf(weight + t);
		ev->page[r * ev->page_stride + page] = v_fold_runs(V_SUM, sum, VL)[0];
	}
}

static void evidence_item(void *ctx, uint32_t item, int thread)
{
	const struct decode *d = ctx;
	const struct skv_shape *sh = d->sh;
	const uint32_t i = skv_owner(d->first, d->n, item), heads = sh->n_heads / d->ev->rows;
	uint32_t from, to;
	(void)thread;

	decode_chunk(d, i, item - d->first[i], skv_pages_of(d->seq[i].len), &from, &to);
	const float *raw = d->raw + (size_t)i * sh->n_heads * d->raw_stride + (size_t)from * SKV_PAGE_TOKENS;
	for (uint32_t page = from; page < to; page++) {
		float weight[SKV_PAGE_TOKENS] = {0};
		bool there = skv_page_there(sh, &d->seq[i], page);
		for (uint32_t row = 0; row < d->ev->rows; row++) {
			if (there)
				pool_page(d, i, row * heads, (row + 1) * heads, raw, weight);
			write_page(d, i, row, page, weight);
		}
		if (there)
			raw += SKV_PAGE_TOKENS;
	}
}

void ISA(evidence)(struct decode *d, int threads)
{
	skv_run(threads, d->first[d->n], evidence_item, d);
}
