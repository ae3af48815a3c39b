/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/step/steady.c - steps that differ from the last one in lengths alone.
 *
 * Most steps of an engine have the sequences of the step before, in the same order, with one row each. Policy batches,
 * classes of layers and the places of sequences in batches are then unchanged, and most sequences need no page. For
 * such a sequence one cache line is read and written, and nothing is done for each of its layers.
 *
 *   - skv_seq.steady says that a sequence's last step was a plain one: one row, slots as the length says, no prompt,
 *     nothing compressed. Anything else that is done to the sequence clears it: a fork, a truncation, another policy, a
 *     maintenance transaction, an abort, rows that do not count.
 *   - Below skv_seq.quiet_len tokens it needs no page. Other sequences are due, and are handled in full.
 *   - skv_step_begin leaves what layout_step() would have left: test-client-steady compares.
 */
#include "libclient/step/steady.h"

#include "libclient/device/device.h"
#include "libclient/pages/pages.h"
#include "libclient/prefill/schedule.h"
#include "libclient/seq.h"
#include "libclient/step/layout.h"

/* The length up to which the sequence has pages, after a step of one row that makes it n tokens long. */
static uint32_t quiet_len(const struct skv_seq *q, uint32_t n)
{
	uint32_t full = skv_pages_of(n) * SKV_PAGE_TOKENS;

	return full < q->layout.max_tokens ? full : q->layout.max_tokens;
}

static bool plain(const struct skv_seq *q)
{
	return q->n_rows == 1 && !seq_by_layer(q) && !(q->next_about & ~(SKV_ABOUT_PROMPT | SKV_ABOUT_DECOMPRESSED)) && q->prompt.n_remaining == 0 &&
	       q->compress.known && !q->compress.on && !q->fork && seq_policy(q)->n_evicting == 0;
}

void steady_mark(struct skv_session *s)
{
	struct step *st = &s->step;
	bool all = st->n == st->n_decode && st->n_classes == 1;

	for (uint32_t i = 0; i < st->n; i++) {
		struct skv_seq *q = st->seqs[i];

		q->steady = plain(q);
		q->quiet_len = quiet_len(q, q->len + q->n_new);
		all &= q->steady;
	}
	st->steady.follows = all;
}

bool steady_fits(struct skv_session *s, const struct skv_step_item *items, uint32_t n)
{
	struct step *st = &s->step;

	st->steady.on = false;
	if (!st->steady.follows || n != st->n)
		return false;
	st->steady.n_due = 0;
	for (uint32_t i = 0; i < n; i++) {
		const struct skv_step_item *it = &items[i];
		const struct skv_seq *q = st->seqs[st->index[i]];

		/* the sequence may be gone, and its memory reused for another session's */
		if (it->seq != q || q->session != s || !q->steady || it->n_tokens != 1 || it->flags || it->n_prompt_remaining)
			return false;
		if (q->len >= q->quiet_len)
			st->steady.due[st->steady.n_due++] = i;
	}
	st->steady.on = true;
	return true;
}

/* Lay out the sequences that need a page; a device's tables may have moved. */
static int lay_out_due(struct skv_session *s, struct pages *ret)
{
	struct step *st = &s->step;
	int e = 0;

	for (uint32_t i = 0; i < st->steady.n_due && e == 0; i++) {
		const uint32_t at = st->index[st->steady.due[i]];
		struct skv_seq *q = st->seqs[at];

		q->quiet_len = quiet_len(q, q->len + 1);
		if (s->device) {
			st->kseq[st->at_kseq[at]].table = q->on_device.table;
			st->kseq[st->at_kseq[at]].layer_stride = q->on_device.capacity;
		}
		e = pages_count(q, ret);
	}
	return e;
}

static void lay_out_tails(struct step *st, const struct policy_batch *pb)
{
	for (uint32_t at = pb->first; at < pb->first + pb->n; at++) {
		st->seqs[at]->prompt.next.begin = st->seqs[at]->len;
		prefill_schedule(st->seqs[at], &st->kseq[st->at_kseq[at]]);
	}
}

int steady_lay_out(struct skv_session *s, struct pages *ret)
{
	struct step *st = &s->step;
	struct layer_class *c = &st->class[0];
	uint32_t longest = 0;
	int e;

	for (uint32_t i = 0; i < st->n; i++) {
		struct skv_seq *q = st->seqs[i];
		struct skv_kseq *ks = &st->kseq[st->at_kseq[i]];

		q->in_step = true;
		q->takes = false;
		ks->slot_end = ks->prompt_start = q->len;
		ks->len = ks->n_tokens = q->len + 1;
		ks->n_state = 1;
		ks->set = (q->epoch + 1) & 1;
		longest = ks->len > longest ? ks->len : longest;
	}
	for (uint32_t i = 0; i < st->n_batches && !skv_model_window(&s->model, c->layer); i++)
		if (prefill_has_tail(st->batch[i].policy))
			lay_out_tails(st, &st->batch[i]);
	c->all.max_len = layout_bound(s, longest);
	c->all.max_state = 1;
	c->decoding = c->all;
	st->pages.aside_change = 0;
	e = lay_out_due(s, ret);
	ret->demand = st->pages.demand;
	return e;
}
