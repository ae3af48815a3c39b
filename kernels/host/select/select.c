/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/select/select.c - which units a layer's evidence selects.
 *
 * A unit is a page or a token. An item is one list: the pinned units, the best of the middle, the recent
 * units; it ascends because these three follow each other. Units of evicted pages are in none of them.
 *
 * For a union of heads an item is a sequence, before that: the heads' best tokens get a score, the higher the sooner
 * one of them names it, and then the best by this score are selected.
 */
#include "kernels/host/runtime/host.h"
#include <math.h>
#include <string.h>

struct select {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const struct skv_evidence *ev;
	const struct skv_select *sel;
	const struct skv_list *list;
	bool tokens;
	uint32_t per_page; /* units */
	uint8_t *scratch;
	size_t scratch_stride;
};

/* Units [from, to) of evicted pages must not be chosen: the scores are ours to overwrite. */
static void mask_holes(const struct skv_shape *sh, const struct skv_kseq *s, uint32_t per_page, uint32_t from, uint32_t to,
                       float *score)
{
	for (uint32_t page = from / per_page; page * per_page < to; page++) {
		if (skv_page_there(sh, s, page))
			continue;
		uint32_t end = skv_min((page + 1) * per_page, to);
		for (uint32_t unit = skv_max(page * per_page, from); unit < end; unit++)
			score[unit] = -INFINITY;
	}
}

/* The units [from, to) that are there, behind the `count` ids so far; returns how many there are then. */
static uint32_t take(const struct select *x, const struct skv_kseq *s, uint32_t from, uint32_t to, uint32_t *ids,
                     uint32_t count)
{
	for (uint32_t unit = from; unit < to; unit++)
		if (skv_page_there(x->sh, s, unit / x->per_page))
			ids[count++] = unit;
	return count;
}

static void select_item(void *ctx, uint32_t item, int thread)
{
	const struct select *x = ctx;
	const struct skv_kseq *s = &x->batch->seq[item / x->ev->rows];
	float *score = x->tokens ? x->ev->token + (size_t)item * x->ev->token_stride
	                         : x->ev->page + (size_t)item * x->ev->page_stride;
	uint32_t *ids = x->list->ids + (size_t)item * x->list->stride;
	uint32_t *scratch = (uint32_t *)(x->scratch + thread * x->scratch_stride);
	const struct skv_choice c = skv_choice_of(x->sel, x->tokens ? s->len : skv_pages_of(s->len));
	const uint32_t end = c.n - c.recent;
	uint32_t count, best;

	count = take(x, s, 0, c.pin, ids, 0);
	mask_holes(x->sh, s, x->per_page, c.pin, end, score);
	best = ISA(topk)(score + c.pin, end - c.pin, c.want, ids + count, scratch);
	for (uint32_t j = 0; j < best; j++)
		ids[count + j] += c.pin;
	x->list->count[item] = take(x, s, end, c.n, ids, count + best);
}

static size_t scratch_of_thread(uint32_t max_len)
{
	return carve_size(max_len * sizeof(uint32_t));
}

size_t ISA(select_bytes)(uint32_t max_len, int threads)
{
	return (size_t)threads * scratch_of_thread(max_len);
}

void ISA(select)(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_evidence *ev,
                 bool tokens, const struct skv_select *sel, struct skv_list *list,
                 const struct skv_work *work)
{
	const uint32_t units = tokens ? batch->max_len : skv_pages_of(batch->max_len);
	struct carve c = carve_begin(work);
	struct select x = {.sh = sh, .batch = batch, .ev = ev, .sel = sel, .list = list, .tokens = tokens};
	list->most = skv_min(units, skv_budget_of(sel->budget, units, sel->floor) + skv_min(sel->pin, units));
	x.per_page = tokens ? SKV_PAGE_TOKENS : 1;
	x.scratch_stride = scratch_of_thread(batch->max_len);
	x.scratch = carve(&c, (size_t)work->threads * x.scratch_stride);
	skv_run(work->threads, batch->n * ev->rows, select_item, &x);
}

/* ---- a union of heads ------------------------------------------------------------------------ */

struct order {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const struct skv_evidence *ev;
	const struct skv_select *sel;
	float *score; /* [seq][stride]: what is made here */
	size_t stride;
	uint8_t *scratch;
	size_t scratch_stride;
};

/* A score for what is named at this place, one float lower at each next one. */
static float score_of_place(uint32_t place)
{
	uint32_t bits = 0x7f7fffff - place; /* the largest finite number */
	float x;
	memcpy(&x, &bits, sizeof x);
	return x;
}

static void order_item(void *ctx, uint32_t item, int thread)
{
	const struct order *x = ctx;
	const struct skv_kseq *s = &x->batch->seq[item];
	float *order = x->score + item * x->stride;
	uint32_t *ids = (uint32_t *)(x->scratch + thread * x->scratch_stride), *scratch = ids + x->batch->max_len;
	const struct skv_choice c = skv_choice_of(x->sel, s->len);
	const uint32_t end = c.n - c.recent;

	for (uint32_t t = 0; t < c.n; t++)
		order[t] = NAN; /* named by nobody: never chosen */
	for (uint32_t row = 0; row < x->ev->rows; row++) {
		float *score = x->ev->token + ((size_t)item * x->ev->rows + row) * x->ev->token_stride;
		mask_holes(x->sh, s, SKV_PAGE_TOKENS, c.pin, end, score);
		uint32_t best = ISA(topk)(score + c.pin, end - c.pin, c.want, ids, scratch);
		ISA(sort_ids)(score + c.pin, ids, best, scratch);
		for (uint32_t rank = 0; rank < best; rank++) {
			float place = score_of_place(rank * x->ev->rows + row), *was = &order[c.pin + ids[rank]];
			*was = *was > place ? *was : place;
		}
	}
}

size_t ISA(union_bytes)(uint32_t n_seqs, uint32_t max_len, int threads)
{
	return carve_size((size_t)n_seqs * max_len * sizeof(float)) + 2 * (size_t)threads * scratch_of_thread(max_len) +
	       ISA(select_bytes)(max_len, threads);
}

void ISA(select_union)(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_evidence *ev,
                       const struct skv_select *sel, struct skv_list *list, const struct skv_work *work)
{
	struct carve c = carve_begin(work);
	struct order x = {.sh = sh, .batch = batch, .ev = ev, .sel = sel, .stride = batch->max_len};
	x.score = carve(&c, batch->n * x.stride * sizeof *x.score);
	x.scratch_stride = 2 * scratch_of_thread(batch->max_len);
	x.scratch = carve(&c, (size_t)work->threads * x.scratch_stride);
	skv_run(work->threads, batch->n, order_item, &x);
	const struct skv_evidence order = {.rows = 1, .token_stride = batch->max_len, .token = x.score};
	const struct skv_work rest = {.mem = c.at, .bytes = (size_t)(c.end - c.at), .threads = work->threads};
	ISA(select)(sh, batch, &order, true, sel, list, &rest);
}
