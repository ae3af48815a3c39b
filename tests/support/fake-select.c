/* SPDX-License-Identifier: Apache-2.0 */
/* The fake device's kernels of selection: queued as in fake-backend.c, and run by the host's kernels. */
#include <stdlib.h>

#include "tests/support/fake-backend.h"

static void run_score_pages(const struct skv_kernels *host, const struct op *o)
{
	host->score_pages(&o->shape, &o->batch, o->in[0], o->n, &o->scores, &o->work);
}

static void score_pages(const struct skv_shape *sh, const struct skv_batch *b, const void *q, uint32_t reduce,
                        const struct skv_scores *scores, const struct skv_workspace *w)
{
	struct op *o = fake_kernel(run_score_pages, sh, b, q, NULL, w);

	o->n = reduce;
	o->scores = *scores;
}

static void with_selection(struct op *o, const struct skv_scores *scores, const struct skv_select *select,
                           struct skv_index_list *list)
{
	o->scores = *scores;
	o->select = *select;
	list->max_count = list->stride; /* the actual count is not known yet */
	o->list = *list;
}

static void run_topk(const struct skv_kernels *host, const struct op *o)
{
	struct skv_index_list list = o->list;

	host->decode_topk(&o->shape, &o->batch, o->in[0], o->out, &o->scores, &o->select, &list, &o->work);
}

static void decode_topk(const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                        const struct skv_scores *scores, const struct skv_select *select, struct skv_index_list *list,
                        const struct skv_workspace *w)
{
	with_selection(fake_kernel(run_topk, sh, b, q, out, w), scores, select, list);
}

static void run_select(const struct skv_kernels *host, const struct op *o)
{
	struct skv_index_list list = o->list;

	host->select(&o->shape, &o->batch, &o->scores, o->tokens, &o->select, &list, &o->work);
}

static void select_topk(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_scores *scores, bool tokens,
                        const struct skv_select *select, struct skv_index_list *list, const struct skv_workspace *w)
{
	struct op *o = fake_kernel(run_select, sh, b, NULL, NULL, w);

	o->tokens = tokens;
	with_selection(o, scores, select, list);
}

static void run_sum_pages(const struct skv_kernels *host, const struct op *o)
{
	host->sum_pages(&o->batch, &o->scores, &o->work);
}

static void sum_pages(const struct skv_batch *b, const struct skv_scores *scores, const struct skv_workspace *w)
{
	static const struct skv_shape none;

	fake_kernel(run_sum_pages, &none, b, NULL, NULL, w)->scores = *scores;
}

static void run_union(const struct skv_kernels *host, const struct op *o)
{
	struct skv_index_list list = o->list;

	host->select_union(&o->shape, &o->batch, &o->scores, &o->select, &list, &o->work);
}

static void select_union(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_scores *scores,
                         const struct skv_select *select, struct skv_index_list *list, const struct skv_workspace *w)
{
	with_selection(fake_kernel(run_union, sh, b, NULL, NULL, w), scores, select, list);
}

static void run_update_sketches(const struct skv_kernels *host, const struct op *o)
{
	host->update_sketches(&o->shape, &o->batch, &o->work);
}

static void update_sketches(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_workspace *w)
{
	fake_kernel(run_update_sketches, sh, b, NULL, NULL, w);
}

static void run_score_sketches(const struct skv_kernels *host, const struct op *o)
{
	host->score_sketches(&o->shape, &o->batch, o->in[0], &o->scores, &o->work);
}

static void score_sketches(const struct skv_shape *sh, const struct skv_batch *b, const void *q, const struct skv_scores *scores,
                           const struct skv_workspace *w)
{
	fake_kernel(run_score_sketches, sh, b, q, NULL, w)->scores = *scores;
}

/* The host has no such kernel: two of its kernels do the same, with the weights in memory. */
static void run_select_sketches(const struct skv_kernels *host, const struct op *o)
{
	struct skv_scores scores = o->scores;
	struct skv_index_list list = o->list;

	scores.token_stride = skv_pages_of(o->batch.max_len) * SKV_PAGE_TOKENS;
	scores.token = calloc((size_t)o->batch.n * scores.rows * scores.token_stride + 1, sizeof(float));
	if (!scores.token)
		abort();
	host->score_sketches(&o->shape, &o->batch, o->in[0], &scores, &o->work);
	host->select(&o->shape, &o->batch, &scores, true, &o->select, &list, &o->work);
	free(scores.token);
}

static void select_sketches(const struct skv_shape *sh, const struct skv_batch *b, const void *q, bool sum,
                            const struct skv_select *select, struct skv_index_list *list, const struct skv_workspace *w)
{
	const struct skv_scores scores = {.rows = sh->n_kv_heads, .sum = sum};

	with_selection(fake_kernel(run_select_sketches, sh, b, q, NULL, w), &scores, select, list);
}

static void run_recall(const struct skv_kernels *host, const struct op *o)
{
	host->recall(&o->shape, &o->batch, &o->scores, &o->attended, o->out, &o->work);
}

static void recall(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_scores *scores,
                   const struct skv_attended *attended, float *ret, const struct skv_workspace *w)
{
	struct op *o = fake_kernel(run_recall, sh, b, NULL, ret, w);

	o->scores = *scores;
	if (attended->window) {
		o->window = *attended->window;
		o->attended.window = &o->window;
	} else {
		o->list = *attended->list;
		o->attended.list = &o->list;
	}
	o->attended.tokens = attended->tokens;
}

void fake_select(struct skv_kernels *k)
{
	k->score_pages = score_pages;
	k->update_sketches = update_sketches;
	k->score_sketches = score_sketches;
	k->select_sketches = select_sketches;
	k->decode_topk = decode_topk;
	k->sum_pages = sum_pages;
	k->select = select_topk;
	k->select_union = select_union;
	k->recall = recall;
}
