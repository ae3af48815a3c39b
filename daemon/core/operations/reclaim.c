/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/operations/reclaim.c - closes a session or ends a client: detaches the sequences one by one, then frees
 * the pages on lease, then ends the session, or all sessions and the client.
 *
 * A client that is gone stays fenced until this work is complete. Until then a request for a sequence of the dead
 * client gets E_LEAVING, and the requesting client tries again later.
 */
#include "daemon/core/memory/accounts.h"
#include "daemon/core/memory/charge.h"
#include "daemon/core/memory/pages.h"
#include "daemon/core/state/fdstore.h"
#include "daemon/core/state/units.h"
#include "daemon/core/operations/reclaim.h"
#include "daemon/core/operations/sessions.h"

void skv_reclaim_begin(uint32_t client, uint32_t session, struct skv_reclaim *r)
{
	*r = (struct skv_reclaim){.client = client, .session = session};
}

void skv_reclaim_end(struct skv_reclaim *r)
{
	if (r->detaching)
		skv_detach_end(&r->detach);
	r->detaching = false;
}

void skv_reclaim_lose(struct skv_core *c, struct skv_reclaim *r, uint32_t device)
{
	if (r->detaching && skv_pool_row(&c->state, skv_seq_row(&c->state, r->detach.walk.seq)->pool)->device == device)
		skv_reclaim_end(r);
}

static bool concerns(const struct skv_core *c, const struct skv_reclaim *r, uint32_t seq)
{
	uint32_t session = skv_seq_row(&c->state, seq)->session;

	if (session == SKV_NO_INDEX)
		return false;
	return r->session == SKV_NO_INDEX ? skv_session_row(&c->state, session)->client == r->client
	                                  : session == r->session;
}

/* Detaches the sequences that the session or client holds, as far as *units go. */
static enum skv_progress detach_some(struct skv_core *c, struct skv_reclaim *r, uint32_t *units)
{
	while (r->seq != SKV_NO_INDEX) {
		enum skv_progress p = r->detaching ? skv_detach_some(c, &r->detach, units) : SKV_DONE;

		if (p != SKV_DONE)
			return p;
		r->detaching = false;
		if (!skv_units_take(units, 5))
			return SKV_GOES_ON;
		r->seq = skv_state_next(&c->state, SKV_TABLE_SEQUENCES, r->seq);
		if (r->seq == SKV_NO_INDEX)
			break;
		if (concerns(c, r, r->seq)) {
			int e = skv_detach_begin(c, r->seq, r->client, &r->detach);

			if (e < 0)
				return skv_failed(c, e);
			r->detaching = true;
			r->detach.gone = r->session == SKV_NO_INDEX;
		}
		r->seq++;
	}
	return SKV_DONE;
}

/*
 * Frees the pages of a pool that are on lease to the client, because the client ends or its last session on the pool
 * does. True: all are freed. False: *units are used up.
 */
static bool free_of_pool(struct skv_core *c, struct skv_reclaim *r, uint32_t pool, uint32_t *units)
{
	const struct skv_member *m = skv_member_row(&c->state, pool, r->client);

	return !m->sessions || skv_pages_hand_over_some(c, pool, skv_owner_make(SKV_OWNER_LEASE, r->client), 0,
	                                                m->lease, &r->at, units);
}

static bool free_some(struct skv_core *c, struct skv_reclaim *r, uint32_t *units)
{
	if (r->session != SKV_NO_INDEX) {
		uint32_t pool = skv_session_row(&c->state, r->session)->pool;

		return skv_member_row(&c->state, pool, r->client)->sessions > 1 || free_of_pool(c, r, pool, units);
	}
	for (; (r->pool = skv_state_next(&c->state, SKV_TABLE_POOLS, r->pool)) != SKV_NO_INDEX; r->pool++, r->at = 0)
		if (!free_of_pool(c, r, r->pool, units))
			return false;
	return true;
}

static void end_client(struct skv_core *c, uint32_t client)
{
	uint32_t account = skv_client_row(&c->state, client)->account;
	char kept[SKV_FDSTORE_NAME];

	SKV_EACH(i, &c->state, SKV_TABLE_SESSIONS)
		if (skv_session_row(&c->state, i)->client == client)
			skv_session_end(c, i);
	skv_charge(c, account, &skv_write_client(&c->state, client)->bytes, 0);
	skv_fdstore_name(&c->state, SKV_TABLE_CLIENTS, client, kept);
	if (skv_client_row(&c->state, client)->kept)
		skv_fdstore_remove(c, kept);
	skv_state_give(&c->state, SKV_TABLE_CLIENTS, client);
	skv_write_account(&c->state, account)->clients--;
	skv_account_put(c, account);
}

enum skv_progress skv_reclaim_some(struct skv_core *c, struct skv_reclaim *r, uint32_t *units)
{
	enum skv_progress p = detach_some(c, r, units);

	if (p != SKV_DONE)
		return p;
	if (!free_some(c, r, units))
		return SKV_GOES_ON;
	if (r->session == SKV_NO_INDEX)
		end_client(c, r->client);
	else
		skv_session_end(c, r->session);
	return SKV_DONE;
}
