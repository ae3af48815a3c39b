/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases: gives free pages of a pool to clients and sequences in bulk, and takes pages back.
 *
 * A lease takes long runs before short runs: the first pass over the segments takes runs that hold all wanted pages or
 * at least 32 pages, and each further pass takes runs of half that length. Each pass begins at the lowest segment, so
 * that the highest segments become empty and can be withdrawn. Segments are found by an upper bound of their longest
 * free run. A search corrects the bound, so a segment without a run that is long enough is searched in vain only once.
 */
#include "daemon/core/memory/charge.h"
#include "daemon/core/memory/pages.h"
#include "daemon/core/memory/pools.h"
#include "daemon/core/memory/segment-sets.h"
#include "daemon/core/memory/segments.h"
#include "daemon/core/state/lookup.h"
#include "daemon/core/state/refuse.h"
#include "daemon/core/operations/age.h"
#include "daemon/core/operations/leases.h"
#include "daemon/core/operations/requests.h"

#include <stdlib.h>

struct taking {
	struct skv_core *core;
	uint32_t pool;
	skv_owner owner;
	uint64_t want;
	struct skv_wire_run *runs;
	uint32_t n, max;
};

/* Length of the run of FREE pages that begins at `page`, limited by `end` and by the number of pages still wanted. */
static uint32_t free_run(const struct taking *t, uint32_t page, uint32_t end)
{
	const skv_owner *word = skv_owner_word(&t->core->state, t->pool, page);
	uint32_t n = 0;

	while (page + n < end && n < t->want && skv_owner_kind(word[n]) == SKV_OWNER_FREE)
		n++;
	return n;
}

/* Takes n pages: adds a run to the result or extends its last run. False: the result has no room for another run. */
static bool add_run(struct taking *t, uint32_t page, uint32_t n)
{
	struct skv_wire_run *last = t->n ? &t->runs[t->n - 1] : NULL;

	if (last && last->first + last->count == page)
		last->count += n;
	else if (t->n < t->max)
		t->runs[t->n++] = (struct skv_wire_run){page, n};
	else
		return false;
	skv_pages_set(t->core, t->pool, page, n, t->owner);
	t->want -= n;
	return true;
}

/*
 * Takes FREE runs of at least `shortest` pages from the pages first … end - 1. *ret_longest: the longest run that was
 * not taken; written only if the whole range was searched. False: the result has no room for another run.
 */
static bool take_from(struct taking *t, uint32_t first, uint32_t end, uint32_t shortest, uint32_t *ret_longest)
{
	uint32_t longest = 0;

	for (uint32_t page = first; page < end && t->want; page++) {
		uint32_t n = free_run(t, page, end);
		bool taken = n && (n >= shortest || n == t->want);

		if (taken && !add_run(t, page, n))
			return false;
		if (!taken && n > longest)
			longest = n;
		page += n;
	}
	if (t->want)
		*ret_longest = longest;
	return true;
}

/* Takes runs of at least 2^class pages, or of all wanted pages, and corrects `longest` of each segment searched. */
static void take(struct taking *t, uint32_t class)
{
	const struct skv_pool_row *p = skv_pool_row(&t->core->state, t->pool);
	const struct skv_bitset *set = &t->core->pools[t->pool].runs[class];

	for (uint32_t s = skv_bitset_next(set, 0); s != SKV_BITSET_NONE && t->want; s = skv_bitset_next(set, s + 1)) {
		struct skv_segment_row *row = skv_write_segment(&t->core->state, t->pool, s);
		uint32_t first = s * p->pages_per_segment;
		bool room = take_from(t, first, first + p->pages_per_segment, 1u << class, &row->longest);

		skv_segment_file(t->core, t->pool, s);
		if (!room)
			return;
	}
}

/* The smallest class of runs that hold `want` pages, or the last class. */
static uint32_t class_of(uint64_t want)
{
	uint32_t class = 0;

	while (class + 1 < SKV_RUN_CLASSES && want > UINT64_C(1) << class)
		class++;
	return class;
}

static int by_first(const void *a, const void *b)
{
	uint32_t x = ((const struct skv_wire_run *)a)->first, y = ((const struct skv_wire_run *)b)->first;

	return (x > y) - (x < y);
}

/* Sorts the runs and joins adjacent runs. Returns the number of runs. */
static uint32_t tidy_runs(struct skv_wire_run *runs, uint32_t n)
{
	uint32_t to = 0;

	qsort(runs, n, sizeof(*runs), by_first);
	for (uint32_t i = 0; i < n; i++) {
		if (to && runs[to - 1].first + runs[to - 1].count == runs[i].first)
			runs[to - 1].count += runs[i].count;
		else
			runs[to++] = runs[i];
	}
	return to;
}

/* *ret_quota: the account's quota in bytes; *ret_room: number of pages for which the quota has room. 0 or an error. */
static int quota_room(struct skv_core *c, const struct skv_pool_row *p, uint64_t *ret_quota, uint64_t *ret_room)
{
	int r = p->device == SKV_DEVICE_HOST ? 0 : skv_charge_allows(c, p->account, 0);
	uint64_t used = p->device == SKV_DEVICE_HOST ? skv_charged(c, p->account)
	                                             : skv_account_row(&c->state, p->account)->page_bytes[p->device];

	*ret_quota = c->memory[p->device].limits.account_bytes;
	*ret_room = r == 0 && used < *ret_quota ? (*ret_quota - used) / p->page_bytes : 0;
	return r;
}

int skv_core_lease_room(struct skv_core *c, uint32_t client_id, uint32_t session_id, uint64_t *ret_pages)
{
	uint32_t client, session, pool;
	uint64_t quota, room, pages;
	int r = skv_find_session(c, client_id, session_id, &client, &session);

	if (r)
		return r;
	pool = skv_session_row(&c->state, session)->pool;
	pages = skv_pool_room(c, pool);
	(void)quota_room(c, skv_pool_row(&c->state, pool), &quota, &room); /* on an error, room is 0 */
	*ret_pages = room < pages ? room : pages;
	return 0;
}

int skv_lease_pages(struct skv_core *c, uint32_t pool, skv_owner owner, uint32_t least, uint32_t most, bool grow,
                    struct skv_wire_run *ret_runs, uint32_t max_runs, uint32_t *ret_n)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);
	uint64_t room, quota;
	struct taking t;
	int r = quota_room(c, p, &quota, &room);

	if ((r || room < least) && grow && skv_age_make_own_room(c, pool))
		return skv_core_refuse(c, SKV_CORE_E_WAIT,
		                       "the pages wait for the memory of sequences that are being parked");
	if (r)
		return r;
	if (room < least)
		return skv_core_refuse(c, SKV_CORE_E_QUOTA,
		                       "%u pages were requested, but the account's quota of %llu bytes leaves room for "
		                       "%llu",
		                       least, (unsigned long long)quota, (unsigned long long)room);
	if (most > SKV_CALL_PAGES)
		most = SKV_CALL_PAGES;
	if (least > most)
		least = most;
	if (room > most)
		room = most;
	r = grow ? skv_pool_grow(c, pool, least, room) : 0;
	if (r == SKV_CORE_E_NOSPC && skv_age_make_room(c, pool, least))
		return skv_core_refuse(c, SKV_CORE_E_WAIT,
		                       "the pages wait for the memory of sequences that no client holds");
	if (r)
		return r;
	if (p->pending && p->count[SKV_OWNER_FREE] < room)
		return skv_core_refuse(c, SKV_CORE_E_WAIT,
		                       "the pages wait for %u segments of the pool that are being created", p->pending);
	if (p->count[SKV_OWNER_FREE] < least)
		return skv_core_refuse(c, SKV_CORE_E_NOSPC, "%u pages were requested, but the pool has %llu", least,
		                  (unsigned long long)p->count[SKV_OWNER_FREE]);
	t = (struct taking){
		.core = c,
		.pool = pool,
		.owner = owner,
		.want = room,
		.runs = ret_runs,
		.max = max_runs,
	};
	for (uint32_t class = class_of(room) + 1; class-- > 0;)
		take(&t, class);
	*ret_n = tidy_runs(ret_runs, t.n);
	return 0;
}

static int lease(struct skv_core *c, uint32_t client_id, uint32_t session_id, uint32_t least, uint32_t most,
                 bool grow, struct skv_wire_run *ret_runs, uint32_t max_runs, uint32_t *ret_n)
{
	uint32_t client, session;
	int r = skv_find_session(c, client_id, session_id, &client, &session);

	if (r)
		return r;
	if (!most || least > most || !max_runs)
		return skv_core_refuse(c, SKV_CORE_E_INVALID,
		                       "got a lease of %u to %u pages, expected 1 or more, in ascending order", least,
		                       most);
	skv_charge_newest(c, session);
	return skv_lease_pages(c, skv_session_row(&c->state, session)->pool, skv_owner_make(SKV_OWNER_LEASE, client),
	                       least, most, grow, ret_runs, max_runs, ret_n);
}

int skv_core_lease_get(struct skv_core *c, uint32_t client, uint32_t session, uint32_t least, uint32_t most,
                       struct skv_wire_run *ret_runs, uint32_t max_runs, uint32_t *ret_n)
{
	return lease(c, client, session, least, most, true, ret_runs, max_runs, ret_n);
}

int skv_core_lease_rest(struct skv_core *c, uint32_t client, uint32_t session, uint32_t least, uint32_t most,
                        struct skv_wire_run *ret_runs, uint32_t max_runs, uint32_t *ret_n)
{
	return lease(c, client, session, least, most, false, ret_runs, max_runs, ret_n);
}

/*
 * Changes the owner word of the runs' pages from `from` to `to`, until *limit pages are changed or a page has another
 * owner than `from`. False: there was such a page. *limit becomes the number of pages changed.
 */
static bool set_runs(struct skv_core *c, uint32_t pool, const struct skv_wire_run *runs, uint32_t n,
                     skv_owner from, skv_owner to, uint64_t *limit)
{
	const uint64_t most = *limit;

	*limit = 0;
	for (uint32_t i = 0; i < n; i++) {
		const uint64_t end = (uint64_t)runs[i].first + runs[i].count;

		for (uint64_t page = runs[i].first, side; page < end && *limit < most; page += side) {
			const uint64_t want = end - page < most - *limit ? end - page : most - *limit;

			side = page <= SKV_PTE_ID_MASK ? skv_pages_run(c, pool, (uint32_t)page, (uint32_t)want, from)
			                               : 0;
			if (!side)
				return false;
			skv_pages_set(c, pool, (uint32_t)page, (uint32_t)side, to);
			*limit += side;
		}
	}
	return true;
}

bool skv_lease_put_runs(struct skv_core *c, uint32_t pool, const struct skv_wire_run *runs, uint32_t n, skv_owner owner)
{
	uint64_t done = UINT64_MAX;
	const bool all = set_runs(c, pool, runs, n, owner, 0, &done);

	skv_pool_shrink(c, pool);
	return all;
}

int skv_core_lease_put(struct skv_core *c, uint32_t client_id, uint32_t session_id,
                       const struct skv_wire_run *runs, uint32_t n)
{
	uint32_t client, session, pool;
	uint64_t done = UINT64_MAX;
	skv_owner lease;
	int r = skv_find_session(c, client_id, session_id, &client, &session);

	if (!r)
		r = skv_check_runs(c, runs, n);
	if (r)
		return r;
	pool = skv_session_row(&c->state, session)->pool;
	lease = skv_owner_make(SKV_OWNER_LEASE, client);
	if (!set_runs(c, pool, runs, n, lease, 0, &done)) {
		/* the pages that were freed before the invalid page was found go back on lease */
		set_runs(c, pool, runs, n, 0, lease, &done);
		return skv_core_refuse(c, SKV_CORE_E_INVALID,
		                  "a page that is given back is not on lease to this client, or is named twice");
	}
	skv_pool_shrink(c, pool);
	return 0;
}
