/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/select/recall.c - attention recall: the share of the softmax weight that is on the tokens or pages that
 * a layer attended to.
 *
 * The weights come from a dense decode pass, summed over heads; a work item is a sequence. Only few steps compute
 * recall, so this code is not optimized.
 */
#include "kernels/host/select/select.h"

struct recall_params {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const struct skv_attended *attended;
	const struct skv_scores *scores;
	float *ret;
};

static double sum(const float *weight, uint32_t from, uint32_t to)
{
	double x = 0;
	for (uint32_t t = from; t < to; t++)
		x += weight[t];
	return x;
}

static double window_sum(const struct recall_params *x, uint32_t i, const float *weight)
{
	const struct skv_window *w = x->attended->window;
	const uint32_t len = x->batch->seq[i].len, sinks = skv_min(w->sinks, len);
	return sum(weight, 0, sinks) + sum(weight, skv_max(sinks, skv_window_start(w, len)), len);
}

static double list_sum(const struct recall_params *x, uint32_t i, uint32_t row, const float *weight)
{
	const struct skv_index_list *l = x->attended->list;
	const size_t at = (size_t)i * l->rows + skv_index_list_row(l, row);
	const uint32_t *ids = l->ids + at * l->stride;
	double s = 0;
	for (uint32_t j = 0; j < l->count[at]; j++)
		s += weight[ids[j]];
	return s;
}

static void recall_item(void *ctx, uint32_t i, int thread)
{
	const struct recall_params *x = ctx;
	const struct skv_scores *scores = x->scores;
	const bool tokens = x->attended->window || x->attended->tokens;
	double s = 0;
	(void)thread;

	for (uint32_t row = 0; row < scores->rows; row++) {
		const uint32_t item = i * scores->rows + row;
		const float *weight = tokens ? scores->token + (size_t)item * scores->token_stride
		                             : scores->page + (size_t)item * scores->page_stride;
		s += x->attended->window ? window_sum(x, i, weight) : list_sum(x, i, row, weight);
	}
	x->ret[i] = (float)(s / x->sh->n_heads);
}

void ISA(recall)(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_scores *scores,
                 const struct skv_attended *attended, float *ret, const struct skv_workspace *work)
{
	struct recall_params x = {.sh = sh, .batch = batch, .attended = attended, .scores = scores, .ret = ret};
	skv_run(work->threads, batch->n, recall_item, &x);
}
