/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/step/items.c - the items of a step. An item is a sequence with rows of a prompt, or with rows that decode.
 *
 * A decode item has several rows if a speculative decoder verifies candidate tokens with it. All rows are appended
 * before any row attends. Kernels and the policy's selections then see each row as a sequence of its own that ends with
 * this row (layout.c). So the row scores, selects and attends as in a step of its own, and speculation changes no
 * result. Sequences with a single row are in other policy batches.
 *
 * The number of accepted rows is known at the end of the step. K and V rows, page bounds, sketches and codes of
 * rejected rows lie beyond the committed length, and the next step overwrites them. Only pages that no accepted row
 * needs must be found and put back. A row's addition to accumulated scores could not be undone, so sequences decode one
 * row a step under policies that evict by these scores.
 */
#include "libclient/step/items.h"

#include <errno.h>
#include <stdio.h>

#include "libclient/compress/schedule.h"
#include "libclient/error.h"
#include "libclient/policy.h"
#include "libclient/seq.h"
#include "libclient/step/layout.h"
#include "libclient/struct-size.h"

/* ---- at the beginning ------------------------------------------------------------------------ */

/* items->size, the first item's size, is the distance in bytes from one of the caller's items to the next. */
int items_take(struct skv_session *s, const struct skv_step_item *items, uint32_t n)
{
	const uint8_t *from = (const uint8_t *)items;
	struct step *st = &s->step;
	char name[24];
	int e = layout_grow(s, n);

	for (uint32_t i = 0; i < n && e == 0; i++) {
		const struct skv_step_item *at = (const void *)(from + (size_t)i * items->size);

		if (at->size == sizeof(st->items[i])) { /* the usual case */
			st->items[i] = *at;
			continue;
		}
		snprintf(name, sizeof(name), "item %u", i);
		e = sized_get(&st->items[i], sizeof(st->items[i]), at, sizeof(struct skv_step_item), name);
	}
	return e;
}

/* Why sequences under the policy must decode one row a step, or NULL if they may decode several. */
static const char *rows_refused(const struct policy *p)
{
	if (p->n_evicting > 0)
		return "evicts by scores that a rejected row would have added to";
	return p->block->seq_state_bytes > 0 ? "keeps a state that knows of no rejected rows" : NULL;
}

int items_check(const struct skv_session *s, uint32_t i)
{
	const struct skv_step_item *it = &s->step.items[i];
	struct skv_seq *q = it->seq;

	if (!q || q->session != s)
		return error_set(-EINVAL, "item %u: seq is %s, expected a sequence of this session", i,
		            q ? "of another session" : "NULL");
	if (it->flags & ~(uint32_t)SKV_STEP_PROMPT)
		return error_set(-EINVAL, "item %u: flags are %#x, expected 0 or SKV_STEP_PROMPT", i, it->flags);
	if (it->n_tokens == 0 || (it->n_tokens > SKV_STEP_ROWS && !(it->flags & SKV_STEP_PROMPT)))
		return error_set(-EINVAL, "item %u: n_tokens is %u, expected %s", i, it->n_tokens,
		            it->flags & SKV_STEP_PROMPT ? "at least 1" : "1 to 16 without SKV_STEP_PROMPT");
	if (it->n_tokens > 1 && !(it->flags & SKV_STEP_PROMPT) && rows_refused(seq_policy(q)))
		return error_set(-ENOTSUP, "item %u: n_tokens is %u, expected 1: policy %s %s", i, it->n_tokens,
		                 seq_policy(q)->block->name, rows_refused(seq_policy(q)));
	if (it->n_prompt_remaining > 0 && !(it->flags & SKV_STEP_PROMPT))
		return error_set(-EINVAL, "item %u: n_prompt_remaining is %u, expected 0 without SKV_STEP_PROMPT", i,
		                 it->n_prompt_remaining);
	if ((uint64_t)it->n_tokens + it->n_prompt_remaining > q->layout.max_tokens - q->len)
		return error_set(-E2BIG, "item %u: %u tokens and %llu more, but the sequence was made for %u", i,
		            q->len, (unsigned long long)it->n_tokens + it->n_prompt_remaining, q->layout.max_tokens);
	return 0;
}

/* ---- at the end ------------------------------------------------------------------------------ */

int items_check_accepted(const struct step *st, const uint32_t *n_accepted)
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

/*
 * Reduce the slots and compressed tokens that the commit records for each layer, since fewer rows are accepted than the
 * step was laid out for.
 */
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

bool items_accept(struct skv_session *s, const uint32_t *n_accepted)
{
	struct step *st = &s->step;
	bool rejected = false;

	for (uint32_t i = 0; n_accepted && i < st->n; i++) {
		struct skv_seq *q = st->seqs[i];

		q->n_new = n_accepted[st->item[i]];
		rejected |= q->n_new < q->n_rows;
		q->steady &= q->n_new == q->n_rows;
		if (q->n_new == 0 && i < st->recall.n)
			st->recall.layers[i] = (struct skv_layer_set){0};
		else if (q->n_new > 0 && q->n_new < q->n_rows)
			cut(q);
	}
	return rejected;
}
