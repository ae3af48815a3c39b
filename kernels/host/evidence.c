/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/evidence.c - what a decode pass saw, pooled over heads.
 *
 * Runs after the merge, when each head's log-sum-exp is known: a token's weight is then
 * 2^(score - lse), exact over the whole sequence. An item is one chunk of one sequence. The scores
 * of a chunk lie without gaps, pages that were holes left out, in the order of decode's gather().
 */
#include "kernels/host/decode.h"
#include "kernels/host/simd.h"
#include <math.h>

/* Weights of the page's 16 tokens pooled over heads [head0, head1); `raw` is head 0's score of the page's first token. */
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
		float sum = 0;
		for (uint32_t t = 0; t < SKV_PAGE_TOKENS; t += VL)
			sum += v_sum(v_loadf(weight + t));
		ev->page[r * ev->page_stride + page] = sum;
	}
}

static void evidence_item(void *ctx, uint32_t item, int thread)
{
	const struct decode *d = ctx;
	const struct skv_shape *sh = d->sh;
	const uint32_t per_seq = (uint32_t)(d->raw_stride / CHUNK_TOKENS) + 1;
	const uint32_t i = item / per_seq, chunk = item % per_seq, heads = sh->n_heads / d->ev->rows;
	const uint32_t end = skv_min((chunk + 1) * CHUNK_PAGES, skv_pages_of(d->seq[i].len));
	const float *raw = d->raw + (size_t)i * sh->n_heads * d->raw_stride + chunk * CHUNK_TOKENS;
	(void)thread;

	for (uint32_t page = chunk * CHUNK_PAGES; page < end; page++) {
		float weight[SKV_PAGE_TOKENS] = {0};
		bool resident = skv_pte_resident(d->seq[i].table[page]);
		for (uint32_t row = 0; row < d->ev->rows; row++) {
			if (resident)
				pool_page(d, i, row * heads, (row + 1) * heads, raw, weight);
			write_page(d, i, row, page, weight);
		}
		if (resident)
			raw += SKV_PAGE_TOKENS;
	}
}

void ISA(evidence)(struct decode *d, int threads)
{
	uint32_t per_seq = (uint32_t)(d->raw_stride / CHUNK_TOKENS) + 1;
	skv_run(threads, d->n * per_seq, evidence_item, d);
}
