/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments: memory that comes and goes under a pool, and what clients have been told of it.
 *
 * NONE → LIVE (made; members are told) → NONE, or LEAVING while a client that was told has not
 * acknowledged the end. Memory is destroyed when LEAVING begins, not when it ends: acknowledgements
 * keep only the number back, so that a client never maps new memory where it still believes the old.
 * Segments that are made elsewhere are pending first: pending.c.
 *
 * A client's `notices` counts, over its pools, the LIVE segments that it was not told of and those
 * in GONE_DUE; `waiting` of a segment counts the clients in GONE_DUE or GONE.
 */
#include "daemon/core/lookup.h"
#include "daemon/core/pages.h"
#include "daemon/core/pending.h"
#include "daemon/core/refuse.h"
#include "daemon/core/segments.h"

/* For each client that is a member of the pool. */
#define EACH_MEMBER(client, c, pool)                     \
	SKV_EACH(client, &(c)->state, SKV_TABLE_CLIENTS) \
		if (skv_member_row(&(c)->state, pool, client)->sessions)

void skv_segment_uncharge(struct skv_core *c, uint32_t pool)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);

	c->state.header->segment_bytes[p->device] -= p->segment_bytes;
}

void skv_segment_withdraw(struct skv_core *c, uint32_t pool, uint32_t segment)
{
	struct skv_pool_row *p = skv_pool_row(&c->state, pool);
	struct skv_segment_row *s = skv_segment_row(&c->state, pool, segment);
	const struct skv_mem_ops *mem = c->memory[p->device].mem;

	mem->destroy(mem, &c->pools[pool].handles[segment], p->segment_bytes);
	c->pools[pool].handles[segment] = (struct skv_mem_handle)SKV_MEM_HANDLE_NULL;
	skv_segment_uncharge(c, pool);
	p->segments--;
	p->empty--;
	p->count[SKV_OWNER_FREE] -= p->pages_per_segment;
	s->free = 0;
	s->waiting = 0;
	EACH_MEMBER(client, c, pool) {
		uint8_t *told = skv_told(&c->state, pool, client, segment);

		skv_pool_hint(&skv_member_row(&c->state, pool, client)->first_untold, segment);
		if (*told == SKV_TOLD_LIVE) {
			*told = SKV_TOLD_GONE_DUE;
			s->waiting++;
			skv_client_row(&c->state, client)->notices++;
		} else {
			skv_client_row(&c->state, client)->notices--;
		}
	}
	s->state = s->waiting ? SKV_SEGMENT_LEAVING : SKV_SEGMENT_NONE;
	skv_pool_hint(&p->first_none, segment);
}

/* Do `bytes` more fit under the limit of all pools of a memory? */
static bool fits(const struct skv_core *c, uint32_t device, uint64_t bytes)
{
	return c->state.header->segment_bytes[device] + bytes <= c->memory[device].limits.pool_bytes;
}

/* Empty segments of other pools there go until a segment for this pool fits. */
static bool reclaim(struct skv_core *c, uint32_t for_pool)
{
	const struct skv_pool_row *to = skv_pool_row(&c->state, for_pool);

	SKV_EACH(pool, &c->state, SKV_TABLE_POOLS) {
		const struct skv_pool_row *p = skv_pool_row(&c->state, pool);
		/* what is empty while more is being made is waited for */
		bool from = pool != for_pool && p->device == to->device && !p->pending;

		for (uint32_t s = p->high; from && s-- && p->empty;) {
			const struct skv_segment_row *row = skv_segment_row(&c->state, pool, s);

			if (fits(c, to->device, to->segment_bytes))
				return true;
			if (row->state == SKV_SEGMENT_LIVE && row->free == p->pages_per_segment)
				skv_segment_withdraw(c, pool, s);
		}
	}
	return fits(c, to->device, to->segment_bytes);
}

/* The lowest number that can be used. */
static int find_number(struct skv_core *c, uint32_t pool, uint32_t *ret)
{
	struct skv_pool_row *p = skv_pool_row(&c->state, pool);
	bool leaving = false;

	for (uint32_t s = p->first_none; s < p->max_segments; s++) {
		uint32_t state = s < p->high ? skv_segment_row(&c->state, pool, s)->state : SKV_SEGMENT_NONE;

		if (state == SKV_SEGMENT_NONE) {
			*ret = s;
			return 0;
		}
		leaving |= state == SKV_SEGMENT_LEAVING;
		p->first_none += s == p->first_none && state != SKV_SEGMENT_LEAVING;
	}
	return leaving ? skv_core_refuse(c, SKV_CORE_E_BACKLOG,
	                            "segments of this pool wait for clients to acknowledge their end")
	               : skv_core_refuse(c, SKV_CORE_E_NOSPC, "the pool has all of its %u segments",
	                            p->max_segments);
}

void skv_segment_arrive(struct skv_core *c, uint32_t pool, uint32_t segment,
                        const struct skv_mem_handle *handle)
{
	struct skv_pool_row *p = skv_pool_row(&c->state, pool);
	struct skv_segment_row *row = skv_segment_row(&c->state, pool, segment);

	c->pools[pool].handles[segment] = *handle;
	row->state = SKV_SEGMENT_LIVE;
	row->free = row->longest = p->pages_per_segment;
	skv_pool_hint(&p->first_free, segment);
	p->segments++;
	p->empty++;
	p->count[SKV_OWNER_FREE] += p->pages_per_segment;
	EACH_MEMBER(client, c, pool) {
		*skv_told(&c->state, pool, client, segment) = SKV_TOLD_NOTHING;
		skv_pool_hint(&skv_member_row(&c->state, pool, client)->first_untold, segment);
		skv_client_row(&c->state, client)->notices++;
	}
}

static int segment_make(struct skv_core *c, uint32_t pool, bool reclaiming)
{
	struct skv_pool_row *p = skv_pool_row(&c->state, pool);
	const struct skv_memory *memory = &c->memory[p->device];
	struct skv_state_header *h = c->state.header;
	struct skv_mem_handle handle;
	uint32_t segment;
	int r = find_number(c, pool, &segment);

	if (r)
		return r;
	if (!fits(c, p->device, p->segment_bytes) && !(reclaiming && reclaim(c, pool)))
		return skv_core_refuse(c, SKV_CORE_E_NOSPC,
		                  "the pools are full: %llu of %llu bytes are in segments",
		                  (unsigned long long)h->segment_bytes[p->device],
		                  (unsigned long long)memory->limits.pool_bytes);
	if (memory->mem->create) {
		r = memory->mem->create(memory->mem, p->segment_bytes, &handle);
		if (r < 0)
			return skv_core_refuse_system(c, r, "memory for a segment");
		skv_segment_arrive(c, pool, segment, &handle);
	} else {
		skv_segment_request(c, pool, segment);
	}
	skv_segment_row(&c->state, pool, segment)->serial = ++h->segment_serial;
	h->segment_bytes[p->device] += p->segment_bytes;
	if (p->high <= segment)
		p->high = segment + 1;
	return 0;
}

/* Pages that are FREE, or will be when their segments are made. */
static uint64_t coming(const struct skv_pool_row *p)
{
	return p->count[SKV_OWNER_FREE] + (uint64_t)p->pending * p->pages_per_segment;
}

/*
 * At least `least` pages FREE or pending, or nothing changed; near `want` where that takes no other
 * pool's memory.
 */
int skv_pool_grow(struct skv_core *c, uint32_t pool, uint64_t least, uint64_t want)
{
	struct skv_pool_row *p = skv_pool_row(&c->state, pool);
	uint64_t serial = c->state.header->segment_serial;
	int r = 0;

	while (r == 0 && coming(p) < want)
		r = segment_make(c, pool, coming(p) < least);
	if (coming(p) >= least)
		return 0;
	for (uint32_t s = 0; s < p->high; s++) {
		const struct skv_segment_row *row = skv_segment_row(&c->state, pool, s);

		if (row->serial <= serial)
			continue;
		if (row->state == SKV_SEGMENT_LIVE)
			skv_segment_withdraw(c, pool, s);
		else if (row->state == SKV_SEGMENT_WANTED)
			skv_segment_cancel(c, pool, s);
	}
	return r;
}

void skv_member_join(struct skv_core *c, uint32_t pool, uint32_t client)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);

	if (skv_member_row(&c->state, pool, client)->sessions++)
		return;
	for (uint32_t s = 0; s < p->high; s++)
		*skv_told(&c->state, pool, client, s) = SKV_TOLD_NOTHING;
	skv_member_row(&c->state, pool, client)->first_untold = 0;
	skv_client_row(&c->state, client)->notices += p->segments;
}

static void acknowledged(struct skv_core *c, uint32_t pool, uint32_t segment)
{
	struct skv_segment_row *s = skv_segment_row(&c->state, pool, segment);

	if (--s->waiting == 0) {
		s->state = SKV_SEGMENT_NONE;
		skv_pool_hint(&skv_pool_row(&c->state, pool)->first_none, segment);
	}
}

void skv_member_leave(struct skv_core *c, uint32_t pool, uint32_t client)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);
	struct skv_member *m = skv_member_row(&c->state, pool, client);
	struct skv_client_row *row = skv_client_row(&c->state, client);

	if (--m->sessions)
		return;
	skv_pages_hand_over(c, pool, skv_owner_make(SKV_OWNER_LEASE, client), 0, m->lease);
	for (uint32_t s = 0; s < p->high; s++) {
		uint8_t *told = skv_told(&c->state, pool, client, s);
		bool live = skv_segment_row(&c->state, pool, s)->state == SKV_SEGMENT_LIVE;

		row->notices -= *told == SKV_TOLD_GONE_DUE || (live && *told == SKV_TOLD_NOTHING);
		if (*told == SKV_TOLD_GONE_DUE || *told == SKV_TOLD_GONE)
			acknowledged(c, pool, s);
		*told = SKV_TOLD_NOTHING;
	}
}

static bool next_of_pool(struct skv_core *c, uint32_t pool, uint32_t client, struct skv_core_segment *ret)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);
	struct skv_member *m = skv_member_row(&c->state, pool, client);

	for (uint32_t s = m->first_untold; s < p->high; s++) {
		uint8_t *told = skv_told(&c->state, pool, client, s);
		bool live = skv_segment_row(&c->state, pool, s)->state == SKV_SEGMENT_LIVE;

		m->first_untold = s + 1;
		if (*told == SKV_TOLD_GONE_DUE)
			*told = SKV_TOLD_GONE;
		else if (live && *told == SKV_TOLD_NOTHING)
			*told = SKV_TOLD_LIVE;
		else
			continue;
		*ret = (struct skv_core_segment){
			.pool = pool,
			.segment = s,
			.bytes = p->segment_bytes,
			.gone = !live,
			.kind = c->memory[p->device].mem->handle_kind,
			.fd = c->pools[pool].handles[s].fd,
			.ipc = c->pools[pool].handles[s].ipc,
		};
		skv_client_row(&c->state, client)->notices--;
		return true;
	}
	return false;
}

bool skv_core_is_untold(const struct skv_core *c, uint32_t client_id)
{
	uint32_t client = skv_state_find(&c->state, SKV_TABLE_CLIENTS, client_id);

	return client != SKV_NO_INDEX && skv_client_row(&c->state, client)->notices > 0;
}

bool skv_core_next_segment(struct skv_core *c, uint32_t client_id, struct skv_core_segment *ret)
{
	uint32_t client = skv_state_find(&c->state, SKV_TABLE_CLIENTS, client_id);

	if (client == SKV_NO_INDEX || !skv_client_row(&c->state, client)->notices)
		return false;
	SKV_EACH(pool, &c->state, SKV_TABLE_POOLS)
		if (skv_member_row(&c->state, pool, client)->sessions && next_of_pool(c, pool, client, ret))
			return true;
	return false;
}

bool skv_core_next_waiting(const struct skv_core *c, uint32_t *cursor, uint32_t *ret_client)
{
	uint32_t i = *cursor;

	while ((i = skv_state_next(&c->state, SKV_TABLE_CLIENTS, i)) != SKV_NO_INDEX) {
		*cursor = i + 1;
		if (skv_client_row(&c->state, i)->notices && !skv_client_row(&c->state, i)->fenced) {
			*ret_client = skv_state_id(&c->state, SKV_TABLE_CLIENTS, i);
			return true;
		}
		i++;
	}
	return false;
}

int skv_core_segment_ack(struct skv_core *c, uint32_t client_id, uint32_t pool, uint32_t segment)
{
	const struct skv_geometry *g = &c->state.header->geometry;
	uint32_t client;
	uint8_t *told;
	int r = skv_find_client(c, client_id, &client);

	if (r)
		return r;
	if (pool >= g->max_pools || segment >= g->max_segments)
		return skv_core_refuse(c, SKV_CORE_E_INVALID, "there is no segment %u of a pool %u", segment,
		                  pool);
	/* the client may have left the pool, and the pool be gone, while this was under way */
	if (!skv_member_row(&c->state, pool, client)->sessions)
		return 0;
	told = skv_told(&c->state, pool, client, segment);
	if (*told == SKV_TOLD_GONE) {
		*told = SKV_TOLD_NOTHING;
		acknowledged(c, pool, segment);
	}
	return 0;
}
