/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/select/merge-scores.c - scores of several rows of a sequence become one, as those of its heads do.
 *
 * An item is a row of scores. It is as many loads as there are tokens, and so plain.
 */
#include "kernels/host/select/select.h"

struct merge_params {
	const struct skv_batch *batch;
	const struct skv_scores *from, *into;
};

static void merge(const float *from, float *into, uint32_t n, bool sum)
{
	for (uint32_t i = 0; i < n; i++)
		into[i] = sum ? into[i] + from[i] : into[i] > from[i] ? into[i] : from[i];
}

static void merge_item(void *ctx, uint32_t item, int thread)
{
	const struct merge_params *x = ctx;
	const struct skv_scores *into = x->into;
	const uint32_t pages = skv_pages_of(x->batch->seq[item / into->rows].len);
	(void)thread;

	if (into->token)
		merge(x->from->token + (size_t)item * into->token_stride, into->token + (size_t)item * into->token_stride,
		      pages * SKV_PAGE_TOKENS, into->sum);
	if (into->page)
		merge(x->from->page + (size_t)item * into->page_stride, into->page + (size_t)item * into->page_stride, pages,
		      into->sum);
}

void ISA(merge_scores)(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_scores *from,
                       const struct skv_scores *into, const struct skv_workspace *work)
{
	struct merge_params x = {.batch = batch, .from = from, .into = into};
	(void)sh;

	skv_run(work->threads, batch->n * into->rows, merge_item, &x);
}
