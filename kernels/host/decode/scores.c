/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/decode/scores.c - computes the attention scores of a decode pass, reduced over heads.
 *
 * This pass runs after the merge of partial results, when each head's log-sum-exp over the whole sequence is known: a
 * token's weight is 2^(score - lse). A work item is one of the chunks of decode.c. The raw scores of a chunk are
 * contiguous, in the order of gather(), without scores of holes.
 */
#include "kernels/host/decode/params.h"
#include "kernels/host/runtime/simd.h"
#include <math.h>

/*
 * Computes the weights of a page's tokens, reduced over q heads [head0, head1); `raw` is the score of q head 0 for the
 * page's first token.
 */
static void reduce_page(const struct decode_params *d, uint32_t i, uint32_t head0, uint32_t head1, const float *raw,
                      float ret_weight[SKV_PAGE_TOKENS])
{
	for (uint32_t t = 0; t < SKV_PAGE_TOKENS; t += VL) {
		vf reduced = {0};
		for (uint32_t head = head0; head < head1; head++) {
			float lse = d->lse[(size_t)i * d->sh->n_heads + head];
			vf w = v_exp2(v_loadf(raw + head * d->raw_stride + t) - (lse == -INFINITY ? 0 : lse));
			reduced = d->scores->sum ? reduced + w : v_max(reduced, w);
		}
		v_storef(ret_weight + t, reduced);
	}
}

static void write_page(const struct decode_params *d, uint32_t i, uint32_t row, uint32_t page, const float *weight)
{
	const struct skv_scores *scores = d->scores;
	size_t r = (size_t)i * scores->rows + row;
	if (scores->token)
		memcpy(scores->token + r * scores->token_stride + page * SKV_PAGE_TOKENS, weight,
		       SKV_PAGE_TOKENS * sizeof *weight);
	if (scores->page)
		scores->page[r * scores->page_stride + page] = v_sum_row(weight, SKV_PAGE_TOKENS);
}

static void scores_item(void *ctx, uint32_t item, int thread)
{
	const struct decode_params *d = ctx;
	const struct skv_shape *sh = d->sh;
	const uint32_t i = skv_range_of(d->first, d->n, item), heads = sh->n_heads / d->scores->rows;
	uint32_t from, to;
	(void)thread;

	decode_chunk(d, i, item - d->first[i], skv_pages_of(d->seq[i].len), &from, &to);
	const float *raw = d->raw + (size_t)i * sh->n_heads * d->raw_stride + (size_t)from * SKV_PAGE_TOKENS;
	for (uint32_t page = from; page < to; page++) {
		float weight[SKV_PAGE_TOKENS] = {0};
		bool present = skv_page_present(sh, &d->seq[i], page);
		for (uint32_t row = 0; row < d->scores->rows; row++) {
			if (present)
				reduce_page(d, i, row * heads, (row + 1) * heads, raw, weight);
			write_page(d, i, row, page, weight);
		}
		if (present)
			raw += SKV_PAGE_TOKENS;
	}
}

void ISA(reduce_scores)(struct decode_params *d, int threads)
{
	skv_run(threads, d->first[d->n], scores_item, d);
}
