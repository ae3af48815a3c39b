/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/host/select/sum-pages.c - sums the scores of tokens over each page. */
#include "kernels/host/runtime/simd.h"
#include "kernels/host/select/select.h"

struct sum_params {
	const struct skv_batch *batch;
	const struct skv_scores *scores;
};

/* A work item: sums one row of scores of a sequence. */
static void sum_item(void *ctx, uint32_t item, int thread)
{
	const struct sum_params *x = ctx;
	const uint32_t pages = skv_pages_of(x->batch->seq[item / x->scores->rows].len);
	const float *token = x->scores->token + (size_t)item * x->scores->token_stride;
	float *page = x->scores->page + (size_t)item * x->scores->page_stride;
	(void)thread;

	for (uint32_t p = 0; p < pages; p++)
		page[p] = v_sum_row(token + p * SKV_PAGE_TOKENS, SKV_PAGE_TOKENS);
}

void ISA(sum_pages)(const struct skv_batch *batch, const struct skv_scores *scores, const struct skv_workspace *work)
{
	struct sum_params x = {batch, scores};

	skv_run(work->threads, batch->n * scores->rows, sum_item, &x);
}
