/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/operations/reconnect.c - lets a client of the previous daemon continue with this one.
 *
 * Changes are committed before a client is told of them (undo.h). So the state has every object that the client knows
 * of. The state may also have objects of which the client does not know: a session, a sequence or pages whose reply was
 * lost with the connection. Only the client can tell which objects it knows of. So the client names the objects that it
 * has, and then the core releases all other objects of the client, in turns.
 *
 * What was named is only in process memory: if this daemon dies as well, the client names everything again for the
 * next.
 */
#include "daemon/core/operations/reconnect.h"

#include <errno.h>
#include <stdlib.h>
#include "daemon/core/memory/pages.h"
#include "daemon/core/memory/pools.h"
#include "daemon/core/state/lookup.h"
#include "daemon/core/state/refuse.h"
#include "daemon/core/state/units.h"
#include "daemon/core/operations/clients.h"
#include "daemon/core/operations/sessions.h"

/* ---- naming ----------------------------------------------------------------------------------- */

static struct skv_reconnect *find(const struct skv_core *c, uint32_t client)
{
	struct skv_reconnect *r = c->reconnects;

	while (r && r->client != client)
		r = r->next;
	return r;
}

struct skv_reconnect *skv_reconnect_take(struct skv_core *c, uint32_t client)
{
	struct skv_reconnect *r = find(c, client), **at = &c->reconnects;

	if (!r)
		return NULL;
	while (*at != r)
		at = &(*at)->next;
	*at = r->next;
	return r;
}

void skv_reconnect_free(struct skv_reconnect *r)
{
	if (!r)
		return;
	if (r->detaching)
		skv_detach_end(&r->detach);
	for (uint32_t i = 0; r->pages && i < r->n_pools; i++)
		free(r->pages[i]);
	free(r->pages);
	free(r->sessions);
	free(r->sequences);
	free(r);
}

void skv_reconnect_free_all(struct skv_core *c)
{
	while (c->reconnects)
		skv_reconnect_free(skv_reconnect_take(c, c->reconnects->client));
}

int skv_reconnect_begin(struct skv_core *c, uint32_t client)
{
	const struct skv_geometry *g = &c->state.header->geometry;
	struct skv_reconnect *r = calloc(1, sizeof(*r));

	if (!r)
		return -ENOMEM;
	r->client = client;
	r->sessions = calloc(g->max_sessions, 1);
	r->sequences = calloc(g->max_sequences, 1);
	r->pages = calloc(g->max_pools, sizeof(*r->pages));
	r->n_pools = g->max_pools;
	if (!r->sessions || !r->sequences || !r->pages) {
		skv_reconnect_free(r);
		return -ENOMEM;
	}
	r->next = c->reconnects;
	c->reconnects = r;
	return 0;
}

bool skv_core_is_reconnecting(const struct skv_core *c, uint32_t client_id)
{
	uint32_t client = skv_state_find(&c->state, SKV_TABLE_CLIENTS, client_id);

	return client != SKV_NO_INDEX && find(c, client);
}

/* Finds a session of a client, and the client's reconnect. */
static int find_session(struct skv_core *c, uint32_t client_id, uint32_t session_id, uint32_t *ret_session,
                        struct skv_reconnect **ret)
{
	uint32_t client;
	int e = skv_find_session(c, client_id, session_id, &client, ret_session);

	if (e)
		return e;
	*ret = find(c, client);
	return *ret ? 0
	            : skv_core_refuse(c, SKV_CORE_E_INVALID,
	                              "this client does not reconnect: expected RECONNECT first");
}

int skv_core_reconnect_session(struct skv_core *c, uint32_t client, uint32_t session_id)
{
	struct skv_reconnect *r;
	uint32_t session;
	int e = find_session(c, client, session_id, &session, &r);

	if (e)
		return e;
	r->sessions[session] = 1;
	return 0;
}

int skv_core_reconnect_seq(struct skv_core *c, uint32_t client_id, uint32_t session_id, uint32_t seq_id)
{
	uint32_t client, seq, session;
	struct skv_reconnect *r;
	int e = find_session(c, client_id, session_id, &session, &r);

	if (!e)
		e = skv_find_held(c, client_id, session_id, seq_id, &client, &seq);
	if (e)
		return e;
	r->sequences[seq] = 1;
	return 0;
}

static bool is_on_lease(const struct skv_core *c, uint32_t pool, uint64_t page, uint32_t client)
{
	return page <= SKV_PTE_ID_MASK && skv_page_exists(c, pool, (uint32_t)page) &&
	       *skv_owner_word(&c->state, pool, (uint32_t)page) == skv_owner_make(SKV_OWNER_LEASE, client);
}

/*
 * Is the page SHARED? A client may name such a page: a fork whose reply was lost has made pages SHARED that the client
 * still takes for its own; the client will ask for the fork again and then read the tables. Naming a SHARED page has no
 * effect, so it is not checked which sequences refer to the page. All pages of a pool belong to one user.
 */
static bool is_shared(const struct skv_core *c, uint32_t pool, uint64_t page)
{
	return page <= SKV_PTE_ID_MASK && skv_page_exists(c, pool, (uint32_t)page) &&
	       skv_owner_kind(*skv_owner_word(&c->state, pool, (uint32_t)page)) == SKV_OWNER_SHARED;
}

int skv_core_reconnect_pages(struct skv_core *c, uint32_t client_id, uint32_t session_id,
                             const struct skv_wire_run *runs, uint32_t n)
{
	const struct skv_pool_row *p;
	struct skv_reconnect *r;
	uint32_t session, pool;
	int e = find_session(c, client_id, session_id, &session, &r);

	if (!e)
		e = skv_check_runs(c, runs, n);
	if (e)
		return e;
	if (!r->sessions[session])
		return skv_core_refuse(c, SKV_CORE_E_INVALID, "got pages of session %#x, which was not named before",
		                       session_id);
	pool = skv_session_row(&c->state, session)->pool;
	p = skv_pool_row(&c->state, pool);
	if (!r->pages[pool])
		/* calloc() of a large block takes memory only where bits are set later */
		r->pages[pool] = calloc((size_t)p->max_segments * p->pages_per_segment / 8 + 1, 1);
	if (!r->pages[pool])
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++)
		for (uint64_t page = runs[i].first; page < (uint64_t)runs[i].first + runs[i].count; page++) {
			if (!is_on_lease(c, pool, page, r->client) && !is_shared(c, pool, page))
				return skv_core_refuse(c, SKV_CORE_E_INVALID, "page %llu is not on lease to client %#x",
				                       (unsigned long long)page, client_id);
			r->pages[pool][page / 8] |= (uint8_t)(1u << page % 8);
		}
	return 0;
}

/* ---- releasing the rest ---------------------------------------------------------------------- */

/* Does the client hold this sequence without having named the sequence and its session? */
static bool is_unnamed(const struct skv_core *c, const struct skv_reconnect *r, uint32_t seq)
{
	uint32_t session = skv_seq_row(&c->state, seq)->session;

	return session != SKV_NO_INDEX && skv_session_row(&c->state, session)->client == r->client &&
	       !(r->sequences[seq] && r->sessions[session]);
}

/* Begins to detach a sequence. If the sequence is fresh, the client never learned that it was made: it is removed. */
static int begin_detaching(struct skv_core *c, struct skv_reconnect *r, uint32_t seq)
{
	int e = skv_detach_begin(c, seq, r->client, &r->detach);

	r->detaching = e == 0;
	if (e == 0 && skv_seq_row(&c->state, seq)->fresh)
		r->detach.phase = SKV_DETACH_REMOVE;
	return e;
}

static enum skv_progress sequences_some(struct skv_core *c, struct skv_reconnect *r, uint32_t *units)
{
	while (r->seq != SKV_NO_INDEX) {
		enum skv_progress p = r->detaching ? skv_detach_some(c, &r->detach, units) : SKV_DONE;
		int e = 0;

		if (p != SKV_DONE)
			return p;
		r->detaching = false;
		if (!skv_units_take(units, 5))
			return SKV_GOES_ON;
		r->seq = skv_state_next(&c->state, SKV_TABLE_SEQUENCES, r->seq);
		if (r->seq == SKV_NO_INDEX)
			break;
		if (is_unnamed(c, r, r->seq))
			e = begin_detaching(c, r, r->seq);
		if (e < 0)
			return skv_failed(c, e);
		r->seq++;
	}
	return SKV_DONE;
}

/* Frees the pages of a segment that are on lease to the client and that the client did not name. */
static void free_unnamed(struct skv_core *c, const struct skv_reconnect *r, uint32_t pool, uint32_t segment)
{
	const uint32_t n = skv_pool_row(&c->state, pool)->pages_per_segment;
	const uint8_t *named = r->pages[pool];

	for (uint32_t page = segment * n; page < segment * n + n; page++)
		if (!(named && named[page / 8] & 1u << page % 8) && is_on_lease(c, pool, page, r->client))
			skv_page_set(c, pool, page, 0);
}

static bool pages_some(struct skv_core *c, struct skv_reconnect *r, uint32_t *units)
{
	for (; (r->pool = skv_state_next(&c->state, SKV_TABLE_POOLS, r->pool)) != SKV_NO_INDEX;
	     r->pool++, r->segment = 0) {
		const struct skv_pool_row *p = skv_pool_row(&c->state, r->pool);

		if (!skv_member_row(&c->state, r->pool, r->client)->sessions)
			continue;
		for (; r->segment < p->high; r->segment++) {
			const bool live = skv_segment_row(&c->state, r->pool, r->segment)->state == SKV_SEGMENT_LIVE;

			if (!skv_units_take(units, live ? p->pages_per_segment : 1))
				return false;
			if (live)
				free_unnamed(c, r, r->pool, r->segment);
		}
		skv_pool_shrink(c, r->pool);
	}
	return true;
}

enum skv_progress skv_reconnect_some(struct skv_core *c, struct skv_reconnect *r, uint32_t *units)
{
	enum skv_progress p = sequences_some(c, r, units);

	if (p != SKV_DONE)
		return p;
	if (!pages_some(c, r, units))
		return SKV_GOES_ON;
	SKV_EACH(i, &c->state, SKV_TABLE_SESSIONS)
		if (skv_session_row(&c->state, i)->client == r->client && !r->sessions[i])
			skv_session_end(c, i);
	return SKV_DONE;
}

void skv_reconnect_lose(struct skv_core *c, struct skv_reconnect *r, uint32_t device)
{
	if (!r->detaching ||
	    skv_pool_row(&c->state, skv_seq_row(&c->state, r->detach.walk.seq)->pool)->device != device)
		return;
	skv_detach_end(&r->detach);
	r->detaching = false;
}
