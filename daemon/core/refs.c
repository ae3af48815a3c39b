/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which sequence refers to which shared pages: a chain of blocks a sequence.
 *
 * Only the head of a chain may be partly filled, so that adding reads the head alone and removing
 * fills the gap from it. The count in a page's SHARED owner word is the number of chains that it is in.
 */
#include "daemon/core/pages.h"
#include "daemon/core/refs.h"
#include "daemon/core/validate.h"

#include <assert.h>

uint64_t skv_refs_blocks_for(const struct skv_core *c, uint32_t seq, uint64_t n)
{
	uint64_t room = 0;

	if (seq != SKV_NO_INDEX && skv_seq_row(&c->state, seq)->ref_head)
		room = SKV_REFS_IN_BLOCK -
		       skv_ref_block_row(&c->state, skv_seq_row(&c->state, seq)->ref_head - 1)->n;
	return n > room ? (n - room + SKV_REFS_IN_BLOCK - 1) / SKV_REFS_IN_BLOCK : 0;
}

uint64_t skv_refs_blocks_left(const struct skv_core *c)
{
	return c->state.header->geometry.max_ref_blocks - c->state.header->ref_used;
}

static uint32_t block_take(struct skv_core *c)
{
	struct skv_state_header *h = c->state.header;
	uint32_t at = h->ref_free;

	assert(h->ref_used < h->geometry.max_ref_blocks);
	if (at)
		h->ref_free = skv_ref_block_row(&c->state, at - 1)->next;
	else
		at = ++h->ref_high;
	h->ref_used++;
	return at;
}

static void block_give(struct skv_core *c, uint32_t at)
{
	struct skv_state_header *h = c->state.header;
	struct skv_ref_block *b = skv_ref_block_row(&c->state, at - 1);

	b->n = 0;
	b->next = h->ref_free;
	h->ref_free = at;
	h->ref_used--;
}

void skv_refs_add(struct skv_core *c, uint32_t seq, uint32_t page)
{
	struct skv_seq_row *q = skv_seq_row(&c->state, seq);
	struct skv_ref_block *b = q->ref_head ? skv_ref_block_row(&c->state, q->ref_head - 1) : NULL;
	skv_owner owner = *skv_owner_word(&c->state, q->pool, page);
	uint32_t count = skv_owner_kind(owner) == SKV_OWNER_SHARED ? skv_owner_value(owner) : 0;

	if (!b || b->n == SKV_REFS_IN_BLOCK) {
		uint32_t at = block_take(c);

		b = skv_ref_block_row(&c->state, at - 1);
		b->n = 0;
		b->next = q->ref_head;
		q->ref_head = at;
	}
	b->page[b->n++] = page;
	q->refs++;
	skv_page_set(c, q->pool, page, skv_owner_make(SKV_OWNER_SHARED, count + 1));
}

/* Take entry i out of a chain; the head's last one fills the gap. */
static void ref_remove(struct skv_core *c, struct skv_seq_row *q, struct skv_ref_block *b, uint32_t i)
{
	uint32_t page = b->page[i], at = q->ref_head;
	struct skv_ref_block *head = skv_ref_block_row(&c->state, at - 1);
	uint32_t count = skv_owner_value(*skv_owner_word(&c->state, q->pool, page));

	b->page[i] = head->page[--head->n];
	if (!head->n) {
		q->ref_head = head->next;
		block_give(c, at);
	}
	q->refs--;
	skv_page_set(c, q->pool, page, count > 1 ? skv_owner_make(SKV_OWNER_SHARED, count - 1) : 0);
}

bool skv_refs_mark(struct skv_core *c, uint32_t seq, uint8_t *marks, uint8_t mark, uint32_t *at, uint32_t *units)
{
	(void)seq;
	while (*at) {
		const struct skv_ref_block *b = skv_ref_block_row(&c->state, *at - 1);

		if (!skv_units_take(units, b->n))
			return false;
		for (uint32_t i = 0; i < b->n; i++)
			marks[b->page[i]] = mark;
		*at = b->next;
	}
	return true;
}

bool skv_refs_release(struct skv_core *c, uint32_t seq, uint8_t *marks, uint8_t mark, uint32_t *at, uint32_t *units)
{
	struct skv_seq_row *q = skv_seq_row(&c->state, seq);

	/* Blocks ahead of *at hold nothing to release any more, so a gap is filled with an entry that stays,
	 * or, within the head itself, with one that is looked at next. */
	while (*at) {
		struct skv_ref_block *b = skv_ref_block_row(&c->state, *at - 1);
		uint32_t next = b->next;

		if (!skv_units_take(units, 3 * b->n))
			return false;
		for (uint32_t i = 0; i < b->n;) {
			if (marks[b->page[i]] == mark) {
				marks[b->page[i]] = SKV_MARK_NONE;
				ref_remove(c, q, b, i);
			} else {
				i++;
			}
		}
		*at = next;
	}
	return true;
}

bool skv_refs_drop(struct skv_core *c, uint32_t seq, uint32_t *units)
{
	struct skv_seq_row *q = skv_seq_row(&c->state, seq);

	while (q->ref_head) {
		struct skv_ref_block *head = skv_ref_block_row(&c->state, q->ref_head - 1);

		if (!skv_units_take(units, 3))
			return false;
		ref_remove(c, q, head, head->n - 1);
	}
	return true;
}
