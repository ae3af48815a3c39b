/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/rows.c - sequences that decode several rows in a step, as a speculative decoder verifies its candidates.
 *
 * All rows are appended before any attends. Then each row is to the kernels a sequence of its own that ends with it
 * (layout.c), so nothing of later rows is read, and a dense row has the bits of a step of its own. There is one selection
 * for the sequence, up to its last row: of the scores that the rows have one by one, the maximum or the sum. A list may
 * name what is beyond a row: kernels leave that out. Single-row sequences are in policy batches without such rows.
 *
 * How many rows count is known at the step's end. What was made of the others lies beyond the commit, like all that a step
 * writes, and the next step writes it anew: rows, page bounds, codes. Only the pages that the others alone needed have to
 * be found. What a row left in accumulated scores could not be taken back: policies that evict by such decode one row.
 */
#include "libclient/rows.h"

#include <errno.h>
#include <string.h>

#include "libclient/compress/schedule.h"
#include "libclient/error.h"
#include "libclient/policy.h"
#include "libclient/seq.h"
#include "libclient/session.h"

#define PAGES_OF_ROWS 2u /* that so many rows may lie in: (SKV_STEP_ROWS - 1) / SKV_PAGE_TOKENS + 2 */

_Static_assert(SKV_STEP_ROWS <= SKV_PAGE_TOKENS + 1, "rows of a step lie in two pages at most");

const char *rows_refused(const struct policy *p)
{
	if (p->n_evicting > 0)
		return "evicts by scores that a rejected row would have added to";
	return p->block->seq_state_bytes > 0 ? "keeps a state that knows of no rejected rows" : NULL;
}

/* ---- selection ------------------------------------------------------------------------------- */

struct skv_select rows_select(const struct skv_select *sel, uint32_t rows, bool tokens)
{
	const uint32_t own = tokens ? rows : PAGES_OF_ROWS;
	struct skv_select x = *sel;

	if (rows == 1)
		return x;
	if (x.no_recent) {
		x.no_recent = 0;
		x.recent = own;
	}
	if (x.recent_floor < own)
		x.recent_floor = own;
	if (x.floor < own)
		x.floor = own;
	return x;
}

/* `like`, in the room for one row at a time. */
static struct skv_scores one_row(const struct policy_batch *pb, const struct skv_scores *like)
{
	struct skv_scores x = *like;

	x.token = like->token ? pb->row_scores.token : NULL;
	x.page = like->page ? pb->row_scores.page : NULL;
	return x;
}

void rows_score_pages(struct skv_session *s, const struct policy_batch *pb, uint32_t layer)
{
	const struct skv_shape shape = layer_shape(s, layer);
	const struct skv_batch each = batch_rows(s, pb, layer);
	const uint32_t reduce = pb->policy->plan[layer].reduce;
	struct skv_scores into = pb->selection[layer].scores, one = one_row(pb, &into);

	into.token = NULL;
	into.sum = reduce != SKV_REDUCE_MAX;
	for (uint32_t row = pb->rows; row-- > 0;) { /* the last one has all pages */
		const struct skv_batch b = batch_row(each, pb, row);
		bool last = row == pb->rows - 1;

		s->kernels->score_pages(&shape, &b, s->step.q, reduce, last ? &into : &one, &s->step.work);
		if (!last)
			s->kernels->merge_scores(&shape, &b, &one, &into, &s->step.work);
	}
}

/* ---- attention ------------------------------------------------------------------------------- */

void rows_decode_dense(const struct layer *l, void *out, const struct skv_scores *scores)
{
	const struct policy_batch *pb = l->batch;
	struct skv_scores one;

	if (!scores || pb->rows == 1) {
		l->kernels->decode_dense(&l->shape, &l->each, l->attn->q, out, scores, l->work);
		return;
	}
	one = one_row(pb, scores);
	for (uint32_t row = pb->rows; row-- > 0;) { /* the last one has all tokens */
		const struct skv_batch b = batch_row(l->each, pb, row);
		bool last = row == pb->rows - 1;

		l->kernels->decode_dense(&l->shape, &b, l->attn->q, out, last ? scores : &one, l->work);
		if (!last)
			l->kernels->merge_scores(&l->shape, &b, &one, scores, l->work);
	}
}

void rows_decode_pages(const struct layer *l, const struct skv_index_list *list)
{
	for (uint32_t row = 0; row < l->batch->rows; row++) {
		const struct skv_batch b = batch_row(l->each, l->batch, row);

		l->kernels->decode_pages(&l->shape, &b, l->attn->q, l->attn->out, list, l->work);
	}
}

void rows_decode_tokens(const struct layer *l, const struct skv_index_list *list)
{
	for (uint32_t row = 0; row < l->batch->rows; row++) {
		const struct skv_batch b = batch_row(l->each, l->batch, row);

		l->kernels->decode_tokens(&l->shape, &b, l->attn->q, l->attn->out, list, l->work);
	}
}

/* What decode_topk() is equal to: all rows are scored before one attends, for `out` may be q. */
void rows_decode_topk(const struct layer *l)
{
	struct selection *x = l->own;
	struct skv_scores tokens = x->scores;

	tokens.page = NULL;
	rows_decode_dense(l, NULL, &tokens);
	l->kernels->select(&l->shape, &l->decode, &tokens, true, &x->select, &x->list, l->work);
	rows_decode_tokens(l, &x->list);
}

/* ---- acceptance ------------------------------------------------------------------------------ */

int rows_check_accepted(const struct step *st, const uint32_t *n_accepted)
{
	for (uint32_t i = 0; n_accepted && i < st->n; i++) {
		uint32_t n = n_accepted[st->item[i]], rows = st->seqs[i]->n_rows;

		if (n > rows)
			return error_set(-EINVAL, "n_accepted of item %u is %u, expected at most its %u rows", st->item[i], n, rows);
		if (n > 0 && n < rows && i >= st->n_decode)
			return error_set(-EINVAL, "n_accepted of item %u is %u, expected 0 or all %u rows of a prompt", st->item[i],
			                 n, rows);
	}
	return 0;
}

/* What the commit says of its layers, with fewer rows than the step was laid out for. */
static void cut(struct skv_seq *q)
{
	const uint32_t less = q->n_rows - q->n_new;

	for (uint32_t layer = 0; seq_by_layer(q) && layer < q->layout.n_layers; layer++) {
		struct skv_layer_slots *next = &q->next_slots[layer];

		next->live -= less;
		next->slot_end -= less;
		next->n_active -= less;
		compress_next(q, layer, true, next);
	}
}

bool rows_accept(struct skv_session *s, const uint32_t *n_accepted)
{
	struct step *st = &s->step;
	bool rejected = false;

	for (uint32_t i = 0; n_accepted && i < st->n; i++) {
		struct skv_seq *q = st->seqs[i];

		q->n_new = n_accepted[st->item[i]];
		rejected |= q->n_new < q->n_rows;
		if (q->n_new == 0 && i < st->recall.n)
			st->recall.layers[i] = (struct skv_layer_set){0};
		else if (q->n_new > 0 && q->n_new < q->n_rows)
			cut(q);
	}
	return rejected;
}
