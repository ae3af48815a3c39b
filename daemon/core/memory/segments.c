/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/memory/segments.c - a pool gets and gives back memory in segments.
 *
 * The state of a segment goes from NONE to LIVE and back to NONE, with LEAVING between LIVE and NONE while its number
 * cannot be reused yet. A segment of host memory is a range of the pool's memfd, and is LEAVING until its memory has
 * been freed. A segment of a device has memory of its own, which is destroyed when LEAVING begins; the segment stays
 * LEAVING until the clients that were told of it have acknowledged its end (announce.c). Device segments are created
 * outside the core and are pending before they are LIVE (pending.c).
 */
#include "daemon/core/memory/announce.h"
#include "daemon/core/memory/memory.h"
#include "daemon/core/memory/pending.h"
#include "daemon/core/memory/segment-sets.h"
#include "daemon/core/memory/segments.h"
#include "daemon/core/state/fdstore.h"
#include "daemon/core/state/refuse.h"

void skv_segment_uncharge(struct skv_core *c, uint32_t pool)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);

	skv_write_header(&c->state)->segment_bytes[p->device] -= p->segment_bytes;
}

#define SWEEP_RANGES 1024u /* number of ranges of a memfd that one sweep frees, at most */

/* Frees the segment's memory. True: the memory is gone, and the segment's number can be reused at once. */
static bool withdraw_memory(struct skv_core *c, uint32_t pool, uint32_t segment)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);
	struct skv_segment_row *s = skv_write_segment(&c->state, pool, segment);
	const struct skv_mem_ops *mem = c->memory[p->device].mem;
	char kept[SKV_FDSTORE_NAME];

	if (skv_pool_is_whole(c, pool)) {
		const struct skv_mem_range range = {
			.pool = pool,
			.segment = segment,
			.serial = s->serial,
			.offset = segment * p->segment_bytes,
			.bytes = p->segment_bytes,
		};

		return mem->discard(mem, c->pools[pool].fd, &range);
	}
	skv_fdstore_segment_name(&c->state, pool, segment, kept);
	skv_fdstore_remove(c, kept);
	mem->destroy(mem, &c->pools[pool].handles[segment], p->segment_bytes);
	c->memory[p->device].full = false;
	c->pools[pool].handles[segment] = (struct skv_mem_handle)SKV_MEM_HANDLE_NULL;
	s->waiting = skv_announce_end(c, pool, segment);
	return s->waiting == 0;
}

/* Ends LEAVING: the segment's memory is gone, and its number can be reused. */
static void left(struct skv_core *c, uint32_t pool, uint32_t segment)
{
	skv_write_pool(&c->state, pool)->leaving -= skv_pool_is_whole(c, pool);
	skv_segment_vacate(c, pool, segment);
}

/* Withdraws an empty segment. */
static void withdraw(struct skv_core *c, uint32_t pool, uint32_t segment)
{
	struct skv_pool_row *p = skv_write_pool(&c->state, pool);
	struct skv_segment_row *s = skv_write_segment(&c->state, pool, segment);

	skv_segment_uncharge(c, pool);
	p->segments--;
	p->empty--;
	if (p->empty < c->pools[pool].least_empty)
		c->pools[pool].least_empty = p->empty;
	p->count[SKV_OWNER_FREE] -= p->pages_per_segment;
	s->free = 0;
	s->state = SKV_SEGMENT_LEAVING;
	p->leaving += skv_pool_is_whole(c, pool);
	if (withdraw_memory(c, pool, segment))
		left(c, pool, segment);
	else
		skv_segment_file(c, pool, segment);
}

void skv_segment_withdraw_last(struct skv_core *c, uint32_t pool)
{
	withdraw(c, pool, skv_bitset_last(&c->pools[pool].empty));
}

void skv_core_segment_discarded(struct skv_core *c, const struct skv_mem_range *range)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, range->pool);
	const struct skv_segment_row *s;

	/* the range may be of a pool that is gone; its successor in the row does not match: serials are never reused */
	if (p->row.live && p->sweeping && p->sweep_serial == range->serial)
		skv_write_pool(&c->state, range->pool)->sweeping--;
	if (!p->row.live || range->segment >= p->high)
		return;
	s = skv_segment_row(&c->state, range->pool, range->segment);
	if (s->state == SKV_SEGMENT_LEAVING && s->serial == range->serial)
		left(c, range->pool, range->segment);
}

void skv_segments_resume(struct skv_core *c, uint32_t pool)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);

	skv_pool_cancel_all(c, pool);
	if (p->sweeping)
		skv_write_pool(&c->state, pool)->sweeping = 0;
	for (uint32_t s = 0; p->leaving && s < p->high; s++)
		if (skv_segment_row(&c->state, pool, s)->state == SKV_SEGMENT_LEAVING && withdraw_memory(c, pool, s))
			left(c, pool, s);
}

/* Moves *first to the next segment that is not LIVE. Returns the length of the run of segments that are not LIVE. */
static uint32_t without_memory(const struct skv_core *c, uint32_t pool, uint32_t *first)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);
	uint32_t end;

	while (*first < p->high && skv_segment_row(&c->state, pool, *first)->state == SKV_SEGMENT_LIVE)
		++*first;
	for (end = *first; end < p->high && skv_segment_row(&c->state, pool, end)->state != SKV_SEGMENT_LIVE; end++)
		;
	return (end < p->high ? end : p->max_segments) - *first;
}

void skv_segments_sweep(struct skv_core *c, uint32_t pool)
{
	struct skv_pool_row *p = skv_write_pool(&c->state, pool);
	const struct skv_mem_ops *mem = c->memory[p->device].mem;
	struct skv_pool_local *l = &c->pools[pool];
	struct skv_mem_range range = {.pool = pool, .segment = SKV_NO_INDEX};

	if (p->sweeping)
		return;
	p->sweep_serial = range.serial = ++skv_write_header(&c->state)->segment_serial;
	for (uint32_t i = 0; i < SWEEP_RANGES; i++) {
		uint32_t n = without_memory(c, pool, &l->sweep_at);

		range.offset = l->sweep_at * p->segment_bytes;
		range.bytes = n * p->segment_bytes;
		l->sweep_at += n;
		p->sweeping++;
		if (n == 0 || mem->discard(mem, l->fd, &range))
			p->sweeping--;
		if (l->sweep_at >= p->high) {
			l->sweep_at = 0;
			break;
		}
	}
}

/* Do `bytes` more of segments fit under the limit that all pools of a memory share? */
static bool fits(const struct skv_core *c, uint32_t device, uint64_t bytes)
{
	return c->state.header->segment_bytes[device] + bytes <= c->memory[device].limits.pool_bytes;
}

/* May pool `from` lose its empty segments for pool `to`? Not while it has pending ones: leases that wait need both. */
static bool lends(const struct skv_core *c, uint32_t from, uint32_t to)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, from);

	return from != to && p->device == skv_pool_row(&c->state, to)->device && !p->pending;
}

/* Withdraws empty segments of other pools in the same memory until a segment for pool for_pool fits the limit. */
static bool reclaim(struct skv_core *c, uint32_t for_pool)
{
	const struct skv_pool_row *to = skv_pool_row(&c->state, for_pool);

	SKV_EACH(pool, &c->state, SKV_TABLE_POOLS) {
		const struct skv_pool_row *p = skv_pool_row(&c->state, pool);

		while (lends(c, pool, for_pool) && p->empty && !fits(c, to->device, to->segment_bytes))
			skv_segment_withdraw_last(c, pool);
	}
	return fits(c, to->device, to->segment_bytes);
}

void skv_segments_give_up(struct skv_core *c, uint32_t for_pool)
{
	SKV_EACH(pool, &c->state, SKV_TABLE_POOLS)
		while (lends(c, pool, for_pool) && skv_pool_row(&c->state, pool)->empty)
			skv_segment_withdraw_last(c, pool);
}

/* Finds the lowest segment number that can be used. */
static int find_number(struct skv_core *c, uint32_t pool, uint32_t *ret)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);
	uint32_t vacant = p->sweeping ? SKV_BITSET_NONE : skv_bitset_next(&c->pools[pool].vacant, 0);

	if (vacant == SKV_BITSET_NONE && !p->sweeping && p->high < p->max_segments)
		vacant = p->high;
	*ret = vacant;
	if (vacant != SKV_BITSET_NONE)
		return 0;
	return p->segments + p->pending < p->max_segments
	               ? skv_core_refuse(c, SKV_CORE_E_BACKLOG, "segments of this pool are still being reclaimed")
	               : skv_core_refuse(c, SKV_CORE_E_NOSPC, "the pool has all of its %u segments", p->max_segments);
}

void skv_segment_arrive(struct skv_core *c, uint32_t pool, uint32_t segment)
{
	struct skv_pool_row *p = skv_write_pool(&c->state, pool);
	struct skv_segment_row *row = skv_write_segment(&c->state, pool, segment);

	row->state = SKV_SEGMENT_LIVE;
	row->free = row->longest = p->pages_per_segment;
	p->segments++;
	p->empty++;
	p->count[SKV_OWNER_FREE] += p->pages_per_segment;
	skv_segment_file(c, pool, segment);
}

static int segment_make(struct skv_core *c, uint32_t pool, bool reclaiming)
{
	struct skv_pool_row *p = skv_write_pool(&c->state, pool);
	struct skv_state_header *h = skv_write_header(&c->state);
	uint32_t segment;
	int r = find_number(c, pool, &segment);

	if (r)
		return r;
	if (!fits(c, p->device, p->segment_bytes) && !(reclaiming && reclaim(c, pool)))
		return skv_core_refuse(c, SKV_CORE_E_NOSPC,
		                       "the pools are full: all users' segments may have %llu bytes, and there is no "
		                       "room for one of %llu more",
		                       (unsigned long long)c->memory[p->device].limits.pool_bytes,
		                       (unsigned long long)p->segment_bytes);
	if (p->high <= segment)
		p->high = segment + 1;
	skv_write_segment(&c->state, pool, segment)->serial = ++h->segment_serial;
	h->segment_bytes[p->device] += p->segment_bytes;
	if (skv_pool_is_whole(c, pool))
		skv_segment_arrive(c, pool, segment);
	else
		skv_segment_request(c, pool, segment);
	return 0;
}

/* Number of the pool's pages that are FREE, or will be FREE when pending segments have been created. */
static uint64_t coming(const struct skv_pool_row *p)
{
	return p->count[SKV_OWNER_FREE] + (uint64_t)p->pending * p->pages_per_segment;
}

/* Takes back what a failed skv_pool_grow() has done: withdraws or cancels the segments with serials above `serial`. */
static void undo_since(struct skv_core *c, uint32_t pool, uint64_t serial)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);
	const struct skv_bitset *empty = &c->pools[pool].empty;

	for (uint32_t s = skv_bitset_next(empty, 0); s != SKV_BITSET_NONE; s = skv_bitset_next(empty, s + 1))
		if (skv_segment_row(&c->state, pool, s)->serial > serial)
			withdraw(c, pool, s);
	for (uint32_t s = 0; p->wanted && s < p->high; s++) {
		const struct skv_segment_row *row = skv_segment_row(&c->state, pool, s);

		if (row->state == SKV_SEGMENT_WANTED && row->serial > serial)
			skv_segment_cancel(c, pool, s);
	}
}

int skv_pool_grow(struct skv_core *c, uint32_t pool, uint64_t least, uint64_t want)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);
	uint64_t serial = c->state.header->segment_serial;
	int r = 0;

	while (r == 0 && coming(p) < want)
		r = segment_make(c, pool, coming(p) < least);
	if (coming(p) >= least)
		return 0;
	undo_since(c, pool, serial);
	return r;
}

uint64_t skv_pool_room(const struct skv_core *c, uint32_t pool)
{
	const struct skv_pool_row *to = skv_pool_row(&c->state, pool);
	uint64_t limit = c->memory[to->device].limits.pool_bytes, used = c->state.header->segment_bytes[to->device];
	uint64_t numbers = to->max_segments - to->segments - to->pending, segments;

	SKV_EACH(i, &c->state, SKV_TABLE_POOLS) {
		const struct skv_pool_row *p = skv_pool_row(&c->state, i);

		if (i != pool && p->device == to->device && !p->pending)
			used -= p->empty * p->segment_bytes;
	}
	segments = used < limit && !c->memory[to->device].full ? (limit - used) / to->segment_bytes : 0;
	return coming(to) + (segments < numbers ? segments : numbers) * to->pages_per_segment;
}
