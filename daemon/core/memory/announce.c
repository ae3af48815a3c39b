/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/memory/announce.c - tells clients of the memory of their pools: memfds, and segments that come and go.
 *
 * A pool of host memory is one memfd, which a client is told of once. Memory of a device is announced segment by
 * segment. The end of a device's segment is announced, too, and the client acknowledges it. The segment's number is not
 * reused before the acknowledgement, so that a client never maps a new segment where it still uses the old one.
 *
 * A client's `notices` is the number of announcements that are due to it over all its pools: memfds and LIVE segments
 * in state NOTHING, and segments in state GONE_DUE or AGAIN (enum skv_told). A segment's `waiting` is the number of
 * clients for which it is in state GONE_DUE or GONE.
 */
#include "daemon/core/memory/announce.h"
#include "daemon/core/memory/memory.h"
#include "daemon/core/memory/pages.h"
#include "daemon/core/memory/segment-sets.h"
#include "daemon/core/state/lookup.h"

#include <string.h>

/* Loops over the clients that have a session on the pool. */
#define EACH_MEMBER(client, c, pool)                     \
	SKV_EACH(client, &(c)->state, SKV_TABLE_CLIENTS) \
		if (skv_member_row(&(c)->state, pool, client)->sessions)

/* Makes the next search for announcements of the client begin at this segment or before it. */
static void look_again(struct skv_core *c, uint32_t pool, uint32_t client, uint32_t segment)
{
	uint32_t *first = &skv_write_member(&c->state, pool, client)->first_untold;

	if (*first > segment)
		*first = segment;
}

void skv_announce_arrival(struct skv_core *c, uint32_t pool, uint32_t segment)
{
	EACH_MEMBER(client, c, pool) {
		*skv_write_told(&c->state, pool, client, segment, 1) = SKV_TOLD_NOTHING;
		look_again(c, pool, client, segment);
		skv_write_client(&c->state, client)->notices++;
	}
}

uint32_t skv_announce_end(struct skv_core *c, uint32_t pool, uint32_t segment)
{
	uint32_t waiting = 0;

	EACH_MEMBER(client, c, pool) {
		uint8_t *told = skv_write_told(&c->state, pool, client, segment, 1);

		look_again(c, pool, client, segment);
		if (*told == SKV_TOLD_LIVE || *told == SKV_TOLD_AGAIN) {
			skv_write_client(&c->state, client)->notices += *told == SKV_TOLD_LIVE;
			*told = SKV_TOLD_GONE_DUE;
			waiting++;
		} else {
			skv_write_client(&c->state, client)->notices--;
		}
	}
	return waiting;
}

/* End of the segment numbers that can be announced: 1 for a pool that is one memfd. */
static uint32_t announced(const struct skv_core *c, uint32_t pool)
{
	return skv_pool_is_whole(c, pool) ? 1 : skv_pool_row(&c->state, pool)->high;
}

static bool is_there(const struct skv_core *c, uint32_t pool, uint32_t segment)
{
	return skv_pool_is_whole(c, pool) || skv_segment_row(&c->state, pool, segment)->state == SKV_SEGMENT_LIVE;
}

/* Is an announcement due for a segment, given what the client was told of it and whether it is live? */
static bool is_due(uint8_t told, bool live)
{
	return told == SKV_TOLD_GONE_DUE || told == SKV_TOLD_AGAIN || (live && told == SKV_TOLD_NOTHING);
}

void skv_member_join(struct skv_core *c, uint32_t pool, uint32_t client)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);

	if (skv_write_member(&c->state, pool, client)->sessions++)
		return;
	memset(skv_write_told(&c->state, pool, client, 0, announced(c, pool)), SKV_TOLD_NOTHING, announced(c, pool));
	skv_write_member(&c->state, pool, client)->first_untold = 0;
	skv_write_client(&c->state, client)->notices += skv_pool_is_whole(c, pool) ? 1 : p->segments;
}

/*
 * The previous daemon's announcements may not have reached the client, and the client's acknowledgements may not have
 * reached that daemon. So live segments and ends of segments are announced again.
 */
void skv_announce_anew(struct skv_core *c, uint32_t client)
{
	SKV_EACH(pool, &c->state, SKV_TABLE_POOLS) {
		uint32_t n = announced(c, pool), due = 0;
		uint8_t *told;

		if (!skv_member_row(&c->state, pool, client)->sessions)
			continue;
		told = skv_write_told(&c->state, pool, client, 0, n);
		for (uint32_t s = 0; s < n; s++)
			if (told[s] == SKV_TOLD_LIVE || told[s] == SKV_TOLD_GONE) {
				told[s] = told[s] == SKV_TOLD_LIVE ? SKV_TOLD_AGAIN : SKV_TOLD_GONE_DUE;
				due++;
			}
		skv_write_client(&c->state, client)->notices += due;
		skv_write_member(&c->state, pool, client)->first_untold = 0;
	}
}

static void acknowledged(struct skv_core *c, uint32_t pool, uint32_t segment)
{
	struct skv_segment_row *s = skv_write_segment(&c->state, pool, segment);

	if (--s->waiting == 0)
		skv_segment_vacate(c, pool, segment);
}

void skv_member_leave(struct skv_core *c, uint32_t pool, uint32_t client)
{
	struct skv_member *m = skv_write_member(&c->state, pool, client);
	struct skv_client_row *row = skv_write_client(&c->state, client);
	uint8_t *all;

	if (--m->sessions)
		return;
	skv_pages_hand_over(c, pool, skv_owner_make(SKV_OWNER_LEASE, client), 0, m->lease);
	all = skv_write_told(&c->state, pool, client, 0, announced(c, pool));
	for (uint32_t s = 0; s < announced(c, pool); s++) {
		uint8_t *told = &all[s];
		bool live = is_there(c, pool, s);

		row->notices -= is_due(*told, live);
		if (*told == SKV_TOLD_GONE_DUE || *told == SKV_TOLD_GONE)
			acknowledged(c, pool, s);
		*told = SKV_TOLD_NOTHING;
	}
}

static bool next_of_pool(struct skv_core *c, uint32_t pool, uint32_t client, struct skv_core_segment *ret)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);
	struct skv_member *m = skv_write_member(&c->state, pool, client);

	for (uint32_t s = m->first_untold; s < announced(c, pool); s++) {
		const uint8_t told = *skv_told(&c->state, pool, client, s);
		bool live = is_there(c, pool, s);

		m->first_untold = s + 1;
		if (!is_due(told, live))
			continue;
		*skv_write_told(&c->state, pool, client, s, 1) = live ? SKV_TOLD_LIVE : SKV_TOLD_GONE;
		*ret = (struct skv_core_segment){
			.pool = pool,
			.segment = s,
			.bytes = p->segment_bytes,
			.gone = !live,
			.kind = c->memory[p->device].mem->handle_kind,
			.fd = c->pools[pool].fd,
		};
		if (skv_pool_is_whole(c, pool)) {
			ret->bytes *= p->max_segments;
		} else {
			ret->fd = c->pools[pool].handles[s].fd;
			ret->ipc = c->pools[pool].handles[s].ipc;
		}
		skv_write_client(&c->state, client)->notices--;
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
	uint32_t client;
	int r = skv_find_client(c, client_id, &client);

	if (!r)
		r = skv_check_segment(c, pool, segment);
	if (r)
		return r;
	/* the client may have closed its last session on the pool since, and the pool may no longer exist */
	if (!skv_member_row(&c->state, pool, client)->sessions)
		return 0;
	if (*skv_told(&c->state, pool, client, segment) == SKV_TOLD_GONE) {
		*skv_write_told(&c->state, pool, client, segment, 1) = SKV_TOLD_NOTHING;
		acknowledged(c, pool, segment);
	}
	return 0;
}
