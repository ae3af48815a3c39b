/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner words of pages: found and changed.
 *
 * Every change of an owner word goes through skv_pages_set(), which updates all counts that depend on owner words: the
 * pool's pages by kind of owner, the segment's free pages, the client's leased pages, the sequence's pages, the
 * account's bytes.
 */
#include "daemon/core/memory/pages.h"
#include "daemon/core/memory/segment-sets.h"
#include "daemon/core/state/units.h"

/* Cost of changing the owner of a run of pages: RUN_UNITS units of work, and one more for each PAGES_A_UNIT pages. */
#define RUN_UNITS 20u
#define PAGES_A_UNIT 4u
#define AT_A_TIME 4096u /* number of pages whose owner is changed at a time, at most */

bool skv_page_exists(const struct skv_core *c, uint32_t pool, uint32_t page)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);
	uint32_t segment = page / p->pages_per_segment;

	return segment < p->high && skv_segment_row(&c->state, pool, segment)->state == SKV_SEGMENT_LIVE;
}

uint32_t skv_pages_run(const struct skv_core *c, uint32_t pool, uint32_t page, uint32_t most, skv_owner owner)
{
	const uint32_t left = skv_pool_row(&c->state, pool)->pages_per_segment -
	                      page % skv_pool_row(&c->state, pool)->pages_per_segment;
	const skv_owner *word;
	uint32_t n = 0;

	if (!skv_page_exists(c, pool, page))
		return 0;
	most = most < left ? most : left;
	for (word = skv_owner_word(&c->state, pool, page); n < most && word[n] == owner; n++)
		;
	return n;
}

/* Adds n pages to the counts of pages with owner word `o` or, if `add` is false, subtracts them. */
static void count(struct skv_core *c, uint32_t pool, skv_owner o, uint32_t n, bool add)
{
	const enum skv_owner_kind kind = skv_owner_kind(o);
	const uint32_t delta = add ? n : -n;

	skv_write_pool(&c->state, pool)->count[kind] += add ? n : -(uint64_t)n;
	if (kind == SKV_OWNER_LEASE)
		skv_write_member(&c->state, pool, skv_owner_value(o))->lease += delta;
	else if (kind == SKV_OWNER_SEQ)
		skv_write_seq(&c->state, skv_owner_value(o))->pages += delta;
}

/* A number that says in which sets a segment is: the class of its longest free run, and whether all pages are free. */
static uint32_t found_by(const struct skv_segment_row *s, uint32_t pages)
{
	uint32_t class = s->free ? 32 - (uint32_t)__builtin_clz(s->longest) : 0;

	return (class < SKV_RUN_CLASSES ? class : SKV_RUN_CLASSES) << 1 | (s->free == pages);
}

/* Updates the counts of free pages and of the account's bytes for n pages that became FREE or, else, were taken. */
static void count_free(struct skv_core *c, uint32_t pool, uint32_t segment, uint32_t n, bool is_free)
{
	struct skv_pool_row *p = skv_write_pool(&c->state, pool);
	struct skv_segment_row *s = skv_write_segment(&c->state, pool, segment);
	struct skv_account_row *a = skv_write_account(&c->state, p->account);
	uint32_t was = found_by(s, p->pages_per_segment);

	p->empty -= s->free == p->pages_per_segment;
	if (is_free) {
		s->free += n;
		s->longest = s->free; /* an upper bound: the freed pages may have joined free runs next to them */
		a->page_bytes[p->device] -= n * p->page_bytes;
	} else {
		s->free -= n;
		a->page_bytes[p->device] += n * p->page_bytes;
	}
	p->empty += s->free == p->pages_per_segment;
	if (p->empty < c->pools[pool].least_empty)
		c->pools[pool].least_empty = p->empty;
	if (found_by(s, p->pages_per_segment) != was)
		skv_segment_file(c, pool, segment);
}

void skv_pages_set(struct skv_core *c, uint32_t pool, uint32_t page, uint32_t n, skv_owner to)
{
	skv_owner *word = skv_write_owners(&c->state, pool, page, n);
	const bool was_free = skv_owner_kind(*word) == SKV_OWNER_FREE, is_free = skv_owner_kind(to) == SKV_OWNER_FREE;

	count(c, pool, *word, n, false);
	count(c, pool, to, n, true);
	for (uint32_t i = 0; i < n; i++)
		word[i] = to;
	if (was_free != is_free)
		count_free(c, pool, page / skv_pool_row(&c->state, pool)->pages_per_segment, n, is_free);
}

/*
 * Changes the owner of up to *n pages in the segment of *page, from *page on. True: the segment is done, and *page is
 * the next segment's first page. False: *units are used up.
 */
static bool hand_over_of_segment(struct skv_core *c, uint32_t pool, skv_owner from, skv_owner to, uint64_t *n,
                                 uint32_t *page, uint32_t *units)
{
	const uint32_t pages = skv_pool_row(&c->state, pool)->pages_per_segment, end = (*page / pages + 1) * pages;
	const uint32_t most = end - *page < AT_A_TIME ? end - *page : AT_A_TIME;

	while (*n && *page < end) {
		const uint32_t run = skv_pages_run(c, pool, *page, most, from);

		if (!skv_units_take(units, run ? RUN_UNITS + run / PAGES_A_UNIT : 1))
			return false;
		if (run)
			skv_pages_set(c, pool, *page, run, to);
		*n -= run;
		*page += run ? run : 1;
	}
	*page = end;
	return true;
}

bool skv_pages_hand_over_some(struct skv_core *c, uint32_t pool, skv_owner from, skv_owner to, uint64_t n, uint32_t *at,
                              uint32_t *units)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);

	while (n && *at / p->pages_per_segment < p->high) {
		const struct skv_segment_row *row = skv_segment_row(&c->state, pool, *at / p->pages_per_segment);

		if (row->state == SKV_SEGMENT_LIVE && row->free < p->pages_per_segment) {
			if (!hand_over_of_segment(c, pool, from, to, &n, at, units))
				return false;
			continue;
		}
		if (!skv_units_take(units, 1))
			return false;
		*at = (*at / p->pages_per_segment + 1) * p->pages_per_segment;
	}
	return true;
}

void skv_pages_hand_over(struct skv_core *c, uint32_t pool, skv_owner from, skv_owner to, uint64_t n)
{
	uint32_t at = 0, units = UINT32_MAX;

	while (!skv_pages_hand_over_some(c, pool, from, to, n, &at, &units))
		units = UINT32_MAX;
}
