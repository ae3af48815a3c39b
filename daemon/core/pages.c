/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner words of pages.
 *
 * Every change of an owner word goes through skv_page_set(), which keeps what follows from it: the pool's
 * counts by kind, the segment's free pages, the client's leases, the sequence's pages, the account's bytes.
 */
#include "daemon/core/pages.h"
#include "daemon/core/segment-sets.h"
#include "daemon/core/units.h"

bool skv_page_exists(const struct skv_core *c, uint32_t pool, uint32_t page)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);
	uint32_t segment = page / p->pages_per_segment;

	return segment < p->high && skv_segment_row(&c->state, pool, segment)->state == SKV_SEGMENT_LIVE;
}

static void count(struct skv_core *c, uint32_t pool, skv_owner o, int delta)
{
	enum skv_owner_kind kind = skv_owner_kind(o);

	skv_write_pool(&c->state, pool)->count[kind] += delta;
	if (kind == SKV_OWNER_LEASE)
		skv_write_member(&c->state, pool, skv_owner_value(o))->lease += delta;
	else if (kind == SKV_OWNER_SEQ)
		skv_write_seq(&c->state, skv_owner_value(o))->pages += delta;
}

/* What a segment is found by: how long its runs may be, and whether all of it is free. */
static uint32_t found_by(const struct skv_segment_row *s, uint32_t pages)
{
	uint32_t class = s->free ? 32 - (uint32_t)__builtin_clz(s->longest) : 0;

	return (class < SKV_RUN_CLASSES ? class : SKV_RUN_CLASSES) << 1 | (s->free == pages);
}

/* A page of the segment has become FREE, or is FREE no more. */
static void count_free(struct skv_core *c, uint32_t pool, uint32_t segment, bool is_free)
{
	struct skv_pool_row *p = skv_write_pool(&c->state, pool);
	struct skv_segment_row *s = skv_write_segment(&c->state, pool, segment);
	struct skv_account_row *a = skv_write_account(&c->state, p->account);
	uint32_t was = found_by(s, p->pages_per_segment);

	p->empty -= s->free == p->pages_per_segment;
	if (is_free) {
		s->free++;
		s->longest = s->free; /* it may have joined others */
		a->page_bytes[p->device] -= p->page_bytes;
	} else {
		s->free--;
		a->page_bytes[p->device] += p->page_bytes;
	}
	p->empty += s->free == p->pages_per_segment;
	if (found_by(s, p->pages_per_segment) != was)
		skv_segment_file(c, pool, segment);
}

void skv_page_set(struct skv_core *c, uint32_t pool, uint32_t page, skv_owner to)
{
	skv_owner *word = skv_write_owner(&c->state, pool, page);
	bool was_free = skv_owner_kind(*word) == SKV_OWNER_FREE,
	     is_free = skv_owner_kind(to) == SKV_OWNER_FREE;

	count(c, pool, *word, -1);
	count(c, pool, to, 1);
	*word = to;
	if (was_free != is_free)
		count_free(c, pool, page / skv_pool_row(&c->state, pool)->pages_per_segment, is_free);
}

bool skv_pages_hand_over_some(struct skv_core *c, uint32_t pool, skv_owner from, skv_owner to, uint64_t n, uint32_t *at,
                              uint32_t *units)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);

	for (; n && *at < p->high; (*at)++) {
		const struct skv_segment_row *row = skv_segment_row(&c->state, pool, *at);
		uint32_t first = *at * p->pages_per_segment;

		bool some = row->state == SKV_SEGMENT_LIVE && row->free < p->pages_per_segment;

		if (!skv_units_take(units, some ? p->pages_per_segment : 1))
			return false;
		if (!some)
			continue;
		for (uint32_t i = 0; n && i < p->pages_per_segment; i++)
			if (*skv_owner_word(&c->state, pool, first + i) == from) {
				skv_page_set(c, pool, first + i, to);
				n--;
			}
	}
	return true;
}

void skv_pages_hand_over(struct skv_core *c, uint32_t pool, skv_owner from, skv_owner to, uint64_t n)
{
	uint32_t at = 0, units = UINT32_MAX;

	while (!skv_pages_hand_over_some(c, pool, from, to, n, &at, &units))
		units = UINT32_MAX;
}
