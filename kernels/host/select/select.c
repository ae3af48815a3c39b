/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/select/select.c - top-k selection of pages or tokens by a layer's attention scores.
 *
 * In this file an entry is a page or a token, and a work item is one list. A list has the pinned entries, which come
 * first in the sequence, then the best of the entries in the middle, then the most recent entries; so the list ascends.
 * A list does not contain evicted pages or their tokens. The best entries of the middle are chosen by one row of
 * scores, or are the union of those chosen by several rows.
 */
#include <math.h>
#include "kernels/compress.h"
#include "kernels/host/select/select.h"

struct select_params {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const struct skv_scores *scores;
	const struct skv_select *sel;
	const struct skv_index_list *list;
	bool tokens;
	uint32_t per_page; /* number of entries of a page */
	uint32_t united;   /* number of rows of scores whose selections one list unites */
	struct per_thread space; /* workspace of a top-k; if rows are united, also a byte for each entry */
};

void ISA(mask_holes)(const struct skv_shape *sh, const struct skv_kseq *s, uint32_t per_page, uint32_t from, uint32_t to,
                     float *score)
{
	for (uint32_t page = from / per_page; page * per_page < to; page++) {
		if (skv_page_present(sh, s, page))
			continue;
		uint32_t end = skv_min((page + 1) * per_page, to);
		for (uint32_t e = skv_max(page * per_page, from); e < end; e++)
			score[e] = -INFINITY;
	}
}

/*
 * Appends those of the entries [from, to) that are in pages that can be attended to, to the `count` ids so far; returns
 * the new count.
 */
static uint32_t take(const struct select_params *x, const struct skv_kseq *s, uint32_t from, uint32_t to, uint32_t *ids,
                     uint32_t count)
{
	for (uint32_t e = from; e < to; e++)
		if (skv_page_present(x->sh, s, e / x->per_page))
			ids[count++] = e;
	return count;
}

/* Lists the best entries of the middle by one row of scores in ids; returns their number. */
static uint32_t best_of(const struct select_params *x, const struct skv_kseq *s, const struct skv_topk_counts *c, size_t row,
                        uint32_t *ids, uint32_t *workspace)
{
	float *score = x->tokens ? x->scores->token + row * x->scores->token_stride
	                         : x->scores->page + row * x->scores->page_stride;
	const uint32_t end = c->n - c->recent;
	uint32_t best;

	ISA(mask_holes)(x->sh, s, x->per_page, c->pin, end, score);
	best = ISA(topk)(score + c->pin, end - c->pin, c->want, ids, workspace);
	for (uint32_t j = 0; j < best; j++)
		ids[j] += c->pin;
	return best;
}

/*
 * Lists the entries of the middle that are among the best by at least one of the list's rows of scores, from `row` on;
 * returns their number.
 */
static uint32_t best_of_any(const struct select_params *x, const struct skv_kseq *s, const struct skv_topk_counts *c,
                            size_t row, uint32_t *ids, uint32_t *workspace)
{
	uint8_t *selected = (uint8_t *)(workspace + x->batch->max_len);
	uint32_t count = 0;

	memset(selected, 0, c->n);
	for (uint32_t i = 0; i < x->united; i++) {
		const uint32_t best = best_of(x, s, c, row + i, ids, workspace);
		for (uint32_t j = 0; j < best; j++)
			selected[ids[j]] = 1;
	}
	for (uint32_t e = c->pin; e < c->n - c->recent; e++)
		if (selected[e])
			ids[count++] = e;
	return count;
}

static void select_item(void *ctx, uint32_t item, int thread)
{
	const struct select_params *x = ctx;
	const struct skv_kseq *s = &x->batch->seq[item / (x->scores->rows / x->united)];
	uint32_t *ids = x->list->ids + (size_t)item * x->list->stride;
	uint32_t *workspace = (uint32_t *)thread_begin(&x->space, thread).at;
	const struct skv_topk_counts c = skv_topk_counts_of(x->sel, x->tokens ? s->len : skv_pages_of(s->len));
	uint32_t count = take(x, s, 0, c.pin, ids, 0);

	count += (x->united > 1 ? best_of_any : best_of)(x, s, &c, (size_t)item * x->united, ids + count, workspace);
	x->list->count[item] = take(x, s, c.n - c.recent, c.n, ids, count);
}

static size_t thread_bytes(uint32_t max_len)
{
	return carve_size(max_len * (sizeof(uint32_t) + sizeof(uint8_t)));
}

size_t ISA(select_bytes)(uint32_t max_len, int threads)
{
	return (size_t)threads * thread_bytes(max_len);
}

void ISA(select)(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_scores *scores,
                 bool tokens, const struct skv_select *sel, struct skv_index_list *list,
                 const struct skv_workspace *work)
{
	const uint32_t entries = tokens ? batch->max_len : skv_pages_of(batch->max_len);
	struct carve c = carve_begin(work);
	struct select_params x = {.sh = sh, .batch = batch, .scores = scores, .sel = sel, .list = list,
	                          .tokens = tokens, .united = sel->unite ? sh->n_heads / sh->n_kv_heads : 1};
	list->max_count = skv_min(entries, x.united * skv_budget_of(sel->budget, entries, sel->floor) + skv_min(sel->pin, entries));
	x.per_page = tokens ? SKV_PAGE_TOKENS : 1;
	x.space = per_thread(&c, work->threads, thread_bytes(batch->max_len));
	skv_run(work->threads, batch->n * (scores->rows / x.united), select_item, &x);
}
