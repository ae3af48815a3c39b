/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/reclaim.c - what a client gives up, a sequence, a session, or with its end all, goes in turns.
 *
 * Sequences are detached one by one; then a session, or all of them, their pages and the client itself end. Clients take
 * turns, so that none waits for another's million of tokens. A client has one thing under way at most: the caller
 * takes no request of it meanwhile, and its end includes what was. Until its end a client that is gone is fenced: who
 * wants one of its sequences is told to wait.
 */
#include "daemon/core/accounts.h"
#include "daemon/core/lookup.h"
#include "daemon/core/pages.h"
#include "daemon/core/refuse.h"
#include "daemon/core/reclaim.h"
#include "daemon/core/seqfile.h"
#include "daemon/core/sequences.h"
#include "daemon/core/sessions.h"
#include "daemon/core/detach.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define FIRST_TURN 20000u /* units that a request may take at once: most need no more */

struct skv_reclaim {
	struct skv_reclaim *next;
	uint32_t client, id;
	enum { RECLAIM_SEQ, RECLAIM_SESSION, RECLAIM_CLIENT } scope;
	uint32_t row; /* of the sequence, of the session */
	uint64_t since_ns;
	uint32_t seq; /* rows before are not, or no more, of it; SKV_NO_INDEX: all have been looked at */
	bool detaching, again; /* look at all rows once more after this one */
	struct skv_detach detach;
	uint32_t pool, at; /* pools before have no page on lease to it; the segment to look at */
	int result;        /* 0, or E_CORRUPT ... */
	char why[256];     /* ... and what skv_core_why() said */
};

/* ---- turns ----------------------------------------------------------------------------------- */

static bool concerns(const struct skv_core *c, const struct skv_reclaim *r, uint32_t seq)
{
	uint32_t session = skv_seq_row(&c->state, seq)->session;

	if (session == SKV_NO_INDEX)
		return false;
	switch (r->scope) {
	case RECLAIM_SEQ: return seq == r->row;
	case RECLAIM_SESSION: return session == r->row;
	case RECLAIM_CLIENT: break;
	}
	return skv_session_row(&c->state, session)->client == r->client;
}

static void detached(struct skv_core *c, struct skv_reclaim *r)
{
	r->detaching = false;
	if (r->scope == RECLAIM_SEQ)
		r->seq = SKV_NO_INDEX;
	if (r->again)
		r->seq = 0;
	r->again = false;
	if (r->detach.corrupt) {
		r->result = SKV_CORE_E_CORRUPT;
		snprintf(r->why, sizeof(r->why), "%s", c->why);
	}
}

/* The sequences that it concerns are detached. False: there are no units left. */
static bool detach_some(struct skv_core *c, struct skv_reclaim *r, uint32_t *units)
{
	while (*units && r->seq != SKV_NO_INDEX) {
		if (r->detaching && skv_detach_some(c, &r->detach, units) == SKV_GOES_ON)
			return false;
		if (r->detaching)
			detached(c, r);
		if (r->seq == SKV_NO_INDEX)
			break;
		r->seq = skv_state_next(&c->state, SKV_TABLE_SEQUENCES, r->seq);
		if (r->seq == SKV_NO_INDEX)
			break;
		(void)skv_units_take(units, 5);
		if (concerns(c, r, r->seq)) {
			r->detaching = skv_detach_begin(c, r->seq, r->client, &r->detach) == 0;
			if (!r->detaching)
				skv_seq_remove(c, r->seq); /* no memory to check it with: it is not believed */
		}
		r->seq++;
	}
	return r->seq == SKV_NO_INDEX;
}

/* Its pages on lease are freed. True: all are. */
static bool free_some(struct skv_core *c, struct skv_reclaim *r, uint32_t *units)
{
	for (; (r->pool = skv_state_next(&c->state, SKV_TABLE_POOLS, r->pool)) != SKV_NO_INDEX; r->pool++, r->at = 0) {
		const struct skv_member *m = skv_member_row(&c->state, r->pool, r->client);

		if (m->sessions && !skv_pages_hand_over_some(c, r->pool, skv_owner_make(SKV_OWNER_LEASE, r->client), 0,
		                                             m->lease, &r->at, units))
			return false;
	}
	return true;
}

static void end_client(struct skv_core *c, uint32_t client)
{
	uint32_t account = skv_client_row(&c->state, client)->account;

	SKV_EACH(i, &c->state, SKV_TABLE_SESSIONS)
		if (skv_session_row(&c->state, i)->client == client)
			skv_session_end(c, i);
	skv_state_give(&c->state, SKV_TABLE_CLIENTS, client);
	skv_account_row(&c->state, account)->clients--;
	skv_account_put(c, account);
}

/* True: it is through. */
static bool turn(struct skv_core *c, struct skv_reclaim *r, uint32_t *units)
{
	if (!detach_some(c, r, units) || (r->scope == RECLAIM_CLIENT && !free_some(c, r, units)))
		return false;
	if (r->scope == RECLAIM_SESSION)
		skv_session_end(c, r->row);
	else if (r->scope == RECLAIM_CLIENT)
		end_client(c, r->client);
	return true;
}

/* ---- beginning ------------------------------------------------------------------------------- */

static struct skv_reclaim *reclaim_new(const struct skv_core *c, uint32_t client, int scope, uint32_t row)
{
	struct skv_reclaim *r = calloc(1, sizeof(*r));

	if (r) {
		r->client = client;
		r->id = skv_state_id(&c->state, SKV_TABLE_CLIENTS, client);
		r->scope = scope;
		r->row = row;
		r->seq = scope == RECLAIM_SEQ ? row : 0;
	}
	return r;
}

static void append(struct skv_core *c, struct skv_reclaim *r)
{
	struct skv_reclaim **end = &c->reclaims;

	while (*end)
		end = &(*end)->next;
	r->next = NULL;
	*end = r;
}

static int begin(struct skv_core *c, uint32_t client, int scope, uint32_t row)
{
	struct skv_reclaim *r = reclaim_new(c, client, scope, row);
	uint32_t units = FIRST_TURN;
	int result;

	if (!r)
		return -ENOMEM;
	if (!turn(c, r, &units)) {
		append(c, r);
		return skv_core_refuse(c, SKV_CORE_E_TURNS, "it takes more than a turn");
	}
	result = r->result;
	if (result)
		skv_set_why(c, "%s", r->why);
	free(r);
	return result;
}

int skv_reclaim_seq(struct skv_core *c, uint32_t client, uint32_t seq)
{
	return begin(c, client, RECLAIM_SEQ, seq);
}

int skv_core_session_close(struct skv_core *c, uint32_t client_id, uint32_t session_id)
{
	uint32_t client, session;
	int r = skv_find_session(c, client_id, session_id, &client, &session);

	if (r)
		return r;
	r = begin(c, client, RECLAIM_SESSION, session);
	return r == SKV_CORE_E_CORRUPT ? 0 : r; /* the corrupt ones have been reported */
}

int skv_core_client_gone(struct skv_core *c, uint32_t client_id, uint64_t since_ns)
{
	struct skv_reclaim *r = c->reclaims;
	uint32_t client;
	int e = skv_find_client(c, client_id, &client);

	if (e)
		return e;
	while (r && r->client != client)
		r = r->next;
	if (!r) {
		r = reclaim_new(c, client, RECLAIM_CLIENT, 0);
		if (!r)
			return -ENOMEM;
		append(c, r);
	} else if (r->scope == RECLAIM_CLIENT) {
		return 0; /* it is on its way already */
	} else if (!r->detaching) {
		r->seq = 0;
	} else {
		r->again = true; /* after the sequence that it is at */
	}
	r->scope = RECLAIM_CLIENT;
	r->since_ns = since_ns;
	(void)skv_core_client_fence(c, client_id);
	return 0;
}

/* ---- working --------------------------------------------------------------------------------- */

void skv_core_work(struct skv_core *c, uint32_t units, struct skv_core_done *ret)
{
	struct skv_reclaim *r = c->reclaims;

	*ret = (struct skv_core_done){.more = r != NULL};
	if (!r)
		return;
	c->reclaims = r->next;
	if (!turn(c, r, &units)) {
		append(c, r);
		return;
	}
	ret->more = c->reclaims != NULL;
	ret->client = r->id;
	ret->gone = r->scope == RECLAIM_CLIENT;
	ret->since_ns = r->since_ns;
	ret->result = r->scope == RECLAIM_SEQ ? r->result : 0;
	snprintf(ret->why, sizeof(ret->why), "%s", r->why);
	free(r);
}

void skv_core_work_all(struct skv_core *c)
{
	struct skv_core_done done;

	do
		skv_core_work(c, UINT32_MAX, &done);
	while (done.more);
}

bool skv_reclaims_client(const struct skv_core *c, uint32_t client)
{
	const struct skv_reclaim *r = c->reclaims;

	while (r && r->client != client)
		r = r->next;
	return r && r->scope == RECLAIM_CLIENT;
}

void skv_reclaims_lose(struct skv_core *c, uint32_t device)
{
	for (struct skv_reclaim *r = c->reclaims; r; r = r->next)
		if (r->detaching && skv_pool_row(&c->state, skv_seq_row(&c->state, r->detach.walk.seq)->pool)->device == device) {
			skv_detach_end(&r->detach);
			r->detaching = false;
		}
}

void skv_reclaims_free(struct skv_core *c)
{
	while (c->reclaims) {
		struct skv_reclaim *r = c->reclaims;

		c->reclaims = r->next;
		if (r->detaching)
			skv_detach_end(&r->detach);
		free(r);
	}
}
