/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/conn/owned.h"

#include <stdlib.h>

#include "common/wire.h"
#include "libclient/conn/pool.h"
#include "libclient/conn/request.h"

/* Returns the list with room for one more element, or NULL if memory is short; the list is then unchanged. */
static void *grown(void *list, size_t n, size_t *cap, size_t size)
{
	void *more;

	if (n < *cap)
		return list;
	more = realloc(list, (2 * *cap + 8) * size);
	if (more)
		*cap = 2 * *cap + 8;
	return more;
}

struct held_session *held_session(const struct held *h, uint32_t id)
{
	for (size_t i = 0; i < h->n_sessions; i++)
		if (h->sessions[i].id == id)
			return &h->sessions[i];
	return NULL;
}

static void forget_seq(struct held *h, uint32_t id)
{
	for (size_t i = 0; i < h->n_seqs; i++)
		if (h->seqs[i].id == id) {
			h->seqs[i] = h->seqs[--h->n_seqs];
			return;
		}
}

void held_close(struct held *h, uint32_t session)
{
	struct held_session *s = held_session(h, session);
	size_t n = 0;

	if (s)
		*s = h->sessions[--h->n_sessions];
	for (size_t i = 0; i < h->n_seqs; i++)
		if (h->seqs[i].session != session)
			h->seqs[n++] = h->seqs[i];
	h->n_seqs = n;
}

static bool add_session(struct held *h, const struct request *r)
{
	struct held_session *list = grown(h->sessions, h->n_sessions, &h->cap_sessions, sizeof(*list));

	if (!list)
		return false;
	h->sessions = list;
	h->sessions[h->n_sessions++] = (struct held_session){((const struct skv_msg_open_ok *)r->body)->session, r->pool};
	return true;
}

static bool add_seq(struct held *h, const struct request *r)
{
	struct held_seq *list = grown(h->seqs, h->n_seqs, &h->cap_seqs, sizeof(*list));

	if (!list)
		return false;
	h->seqs = list;
	h->seqs[h->n_seqs++] = (struct held_seq){r->session, ((const struct skv_msg_seq_ok *)r->body)->seq};
	return true;
}

static void add_pages(const struct held *h, const struct request *r)
{
	const struct held_session *s = held_session(h, r->session);
	const struct skv_msg_runs *m = r->body;
	const struct skv_wire_run *run = (const void *)(m + 1);

	for (uint32_t i = 0; s && i < m->n_runs; i++)
		pool_lease(s->pool, run[i].first, run[i].count);
}

bool held_update(struct held *h, const struct request *r)
{
	switch (r->type) {
	case SKV_MSG_OPEN: return r->error || add_session(h, r);
	case SKV_MSG_CLOSE: held_close(h, r->session); break;
	case SKV_MSG_SEQ_NEW:
	case SKV_MSG_PREFIX_NEW:
	case SKV_MSG_SEQ_FORK:
	case SKV_MSG_SEQ_ATTACH: return r->error || add_seq(h, r);
	case SKV_MSG_SEQ_DETACH:
	case SKV_MSG_SEQ_DROP: forget_seq(h, ((const struct skv_msg_seq *)(r->packet + 1))->seq); break;
	case SKV_MSG_LEASE_GET:
		if (!r->error)
			add_pages(h, r);
		break;
	default: break;
	}
	return true;
}

void held_free(struct held *h)
{
	free(h->sessions);
	free(h->seqs);
}
