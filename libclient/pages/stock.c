/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/pages/stock.c - a session's free list of leased pages, so that a step need not ask the daemon for pages.
 *
 *   - The session requests more pages while the stock still has enough for a step, and a later step takes the reply
 *     when it has arrived. A step waits only if the stock has too few pages, at most as long as skv_set_timeout() says.
 *   - Pages far beyond the need go back to the daemon. While the stock is between the low and the high mark, no message
 *     is sent.
 *   - `leased` counts all pages that may ever be pushed, and the stack has room for all of them. So returning the pages
 *     that a step frees needs no allocation.
 *
 * Pages for the rest of prompts that are being read are set aside: the stock has them from the first step of such a
 * prompt, and they do not go back to the daemon.
 *
 * The marks follow `demand`, the most pages that a step like the current one can take. A decoding sequence takes a page
 * of each layer every SKV_PAGE_TOKENS steps, so for decoding the low mark is that many steps ahead.
 */
#include "libclient/pages/stock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/sort.h"
#include "libclient/conn/conn.h"
#include "libclient/conn/pool.h"
#include "libclient/conn/reconnect.h"
#include "libclient/error.h"
#include "libclient/feature.h"
#include "libclient/seq.h"

#define LOW(demand) ((uint64_t)(demand))
#define FILL(demand) (2 * (uint64_t)(demand))
#define HIGH(demand) (4 * (uint64_t)(demand))
#define PAUSE_STEPS 16 /* steps without a request ahead of need, after a request that brought no pages */

static int stock_open(struct skv_session *s)
{
	s->stock.msg = malloc(sizeof(*s->stock.msg) + SKV_WIRE_MAX_RUNS * sizeof(struct skv_wire_run));
	return s->stock.msg ? 0 : error_set(-ENOMEM, "out of memory");
}

static void stock_close(struct skv_session *s)
{
	conn_orphan(s->client, s->stock.get);
	free(s->stock.ids);
	free(s->stock.msg);
	s->stock = (struct stock){0};
}

int stock_grow(struct skv_session *s, uint64_t n)
{
	struct stock *st = &s->stock;
	uint64_t leased = st->leased + n;

	if (leased > st->cap) {
		uint64_t cap = leased + leased / 2 + 64;
		uint32_t *ids = cap <= UINT32_MAX ? realloc(st->ids, cap * sizeof(*ids)) : NULL;

		if (!ids)
			return error_set(-ENOMEM, "out of memory for a stock of %llu pages",
			            (unsigned long long)leased);
		st->ids = ids;
		st->cap = (uint32_t)cap;
	}
	st->leased = leased;
	return 0;
}

/* ---- pages in -------------------------------------------------------------------------------- */

/* Put the pages of the daemon's reply into the stock. *ret_n: the number of pages put there. */
static int take(struct skv_session *s, const struct skv_msg_runs *m, uint64_t *ret_n)
{
	const struct skv_wire_run *run = (const void *)(m + 1);
	struct skv_client *c = s->client;
	uint64_t n = 0, most = (uint64_t)s->pool->max_segments * s->pool->pages_per_segment;
	bool all = true;
	int e;

	for (uint32_t i = 0; i < m->n_runs; i++)
		n += run[i].count;
	*ret_n = 0;
	if (m->session == s->id && n <= most) {
		e = stock_grow(s, n);
		if (e < 0)
			return e;
	} else {
		all = false;
		n = 0;
	}
	pthread_mutex_lock(&c->lock);
	for (uint32_t i = 0; i < m->n_runs && all; i++)
		for (uint32_t p = run[i].first + run[i].count; p-- > run[i].first && all;) {
			all = pool_hold(s->pool, p);
			if (all) {
				stock_push(&s->stock, p);
				(*ret_n)++;
			}
		}
	s->stock.leased -= n - *ret_n;
	if (!all) {
		conn_break_locked(c, -EPROTO,
		                  "the daemon leased pages that are not of this session or in no segment");
		e = error_set(c->broken, "%s", c->broken_text);
	} else {
		e = 0;
	}
	pthread_mutex_unlock(&c->lock);
	return e;
}

static int ask(struct skv_session *s, uint64_t least, uint64_t most)
{
	struct skv_msg_lease_get m = {
	        .session = s->id,
	        .least = least < SKV_PTE_ID_MASK ? (uint32_t)least : SKV_PTE_ID_MASK,
	        .most = most < SKV_PTE_ID_MASK ? (uint32_t)most : SKV_PTE_ID_MASK,
	};

	return conn_post(s->client, SKV_MSG_LEASE_GET, &m, sizeof(m), &s->stock.get);
}

/* Put the pages from the reply to the pending LEASE_GET into the stock. */
static int collect(struct skv_session *s, uint64_t *ret_n)
{
	struct request *r = s->stock.get;
	int e;

	*ret_n = 0;
	s->stock.get = NULL;
	/* the engine gets -ENOSPC whichever quota was exceeded; the text tells which */
	if (r->error)
		e = error_set(r->error == -EDQUOT ? -ENOSPC : r->error, "%s", r->text);
	else
		e = take(s, r->body, ret_n);
	request_free(r);
	return e;
}

static int late(struct skv_session *s, uint32_t need)
{
	char what[96];

	snprintf(what, sizeof(what), "LEASE_GET for a step that needs %u pages, with %u in stock,", need, s->stock.n);
	return conn_late(s->client, what);
}

int stock_reserve(struct skv_session *s, uint32_t need)
{
	struct skv_client *c = s->client;
	struct stock *st = &s->stock;
	int64_t deadline = conn_deadline(c);

	while (st->n < need) {
		bool ahead = st->get != NULL;
		uint64_t n;
		int e = ahead ? 0 : ask(s, need - st->n, need - st->n + FILL(st->demand));

		if (e < 0)
			return e;
		if (conn_wait(c, st->get, deadline) < 0)
			return late(s, need);
		e = collect(s, &n);
		if (ahead || n > 0)
			continue; /* a request made earlier was for fewer pages: check the stock again */
		if (e == 0)
			return error_set(-EPROTO,
			            "the daemon gave no pages and no error where at least %u were asked for",
			            need - st->n);
		if (e != -EAGAIN)
			return e;
		if (now_ms() >= deadline)
			return error_set(-ETIMEDOUT, "%s", skv_last_error());
		/* the daemon waits for other clients to release a segment's page numbers */
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	}
	return 0;
}

int stock_room(struct skv_session *s, uint64_t *ret_pages)
{
	const struct skv_msg_session m = {.session = s->id};
	struct stock *st = &s->stock;
	uint64_t aside = s->step.open ? stock_set_aside(s) : s->stock.set_aside, leased, n;
	struct request *r;
	int e = conn_call(s->client, SKV_MSG_LEASE_ROOM, &m, sizeof(m), &r);

	if (e < 0)
		return e;
	leased = ((const struct skv_msg_room *)r->body)->pages;
	request_free(r);
	if (st->get && request_done(s->client, st->get))
		/* the daemon's answer already counts pages of this request, granted or refused before */
		(void)collect(s, &n);
	n = st->n + leased;
	*ret_pages = n > aside ? n - aside : 0;
	return 0;
}

/* ---- pages out ------------------------------------------------------------------------------- */

/*
 * Write ascending ids as runs into the session's message. Returns the number of ids written: as many as fit and one
 * call may have.
 */
static uint32_t to_runs(struct skv_session *s, uint32_t seq, const uint32_t *ids, uint32_t n)
{
	struct skv_msg_runs *m = s->stock.msg;
	struct skv_wire_run *run = (void *)(m + 1);
	uint32_t i;

	*m = (struct skv_msg_runs){.session = s->id, .seq = seq};
	for (i = 0; i < n && i < SKV_CALL_PAGES; i++) {
		if (m->n_runs > 0 && ids[i] == run[m->n_runs - 1].first + run[m->n_runs - 1].count) {
			run[m->n_runs - 1].count++;
			continue;
		}
		if (m->n_runs == SKV_WIRE_MAX_RUNS)
			break;
		run[m->n_runs++] = (struct skv_wire_run){.first = ids[i], .count = 1};
	}
	return i;
}

uint32_t stock_post(struct skv_session *s, uint16_t type, uint32_t seq, uint32_t *ids, uint32_t n)
{
	uint32_t done = 0;

	skv_sort_u32(ids, n);
	while (done < n) {
		uint32_t some = to_runs(s, seq, ids + done, n - done);

		if (conn_post(s->client, type, s->stock.msg,
		              sizeof(*s->stock.msg) + s->stock.msg->n_runs * sizeof(struct skv_wire_run),
		              NULL) < 0)
			break;
		done += some;
	}
	return done;
}

/*
 * Tell the daemon that pages are free; returns the number of pages that were sent. Pages are unheld before the message
 * is sent, because the daemon may withdraw their segments as soon as it reads the message. Pages that could not be sent
 * are held again.
 */
static uint32_t give(struct skv_session *s, uint16_t type, uint32_t seq, uint32_t *ids, uint32_t n)
{
	uint32_t sent;

	reconnect_pin(s->client);
	pthread_mutex_lock(&s->client->lock);
	for (uint32_t i = 0; i < n; i++) {
		pool_unhold(s->pool, ids[i]);
		if (type == SKV_MSG_LEASE_PUT)
			pool_unlease(s->pool, ids[i]);
	}
	pthread_mutex_unlock(&s->client->lock);
	sent = stock_post(s, type, seq, ids, n);
	pthread_mutex_lock(&s->client->lock);
	for (uint32_t i = sent; i < n; i++) {
		pool_hold(s->pool, ids[i]);
		if (type == SKV_MSG_LEASE_PUT)
			pool_lease(s->pool, ids[i], 1);
	}
	pthread_mutex_unlock(&s->client->lock);
	reconnect_unpin(s->client);
	return sent;
}

/*
 * Give the n pages with the highest ids back to the daemon, so that whole segments become free. Afterwards the stock is
 * sorted, so that pages with the lowest ids are used first.
 */
static void put(struct skv_session *s, uint32_t n)
{
	struct stock *st = &s->stock;
	uint32_t *const last = st->ids + st->n - n;
	uint32_t sent;

	if (n == 0)
		return;
	skv_sort_u32(st->ids, st->n);
	sent = give(s, SKV_MSG_LEASE_PUT, 0, last, n);
	memmove(last, last + sent, (n - sent) * sizeof(*last));
	st->n -= sent;
	st->leased -= sent;
	for (uint32_t i = 0; i < st->n / 2; i++) {
		const uint32_t low = st->ids[i];

		st->ids[i] = st->ids[st->n - 1 - i];
		st->ids[st->n - 1 - i] = low;
	}
}

void stock_return(struct skv_session *s)
{
	put(s, s->stock.n);
}

bool stock_return_spare(struct skv_session *s)
{
	const uint64_t aside = stock_set_aside(s);
	const uint32_t before = s->stock.n;

	if (before > aside)
		put(s, before - (uint32_t)aside);
	return s->stock.n < before;
}

void stock_release(struct skv_seq *q, bool flush)
{
	struct skv_session *s = q->session;
	uint32_t sent;

	if (q->release.n == 0 || (!flush && !conn_all_sent(s->client)))
		return;
	sent = give(s, SKV_MSG_SEQ_RELEASE, q->id, q->release.pages, q->release.n);
	q->release.n -= sent;
	s->stock.n_release -= sent;
	memmove(q->release.pages, q->release.pages + sent, q->release.n * sizeof(*q->release.pages));
}

void stock_put_aside(struct skv_seq *q, uint64_t n)
{
	q->session->stock.set_aside += n - q->set_aside;
	q->set_aside = n;
}

uint64_t stock_set_aside(const struct skv_session *s)
{
	return s->stock.set_aside + s->step.pages.aside_change;
}

/*
 * At the beginning of a step: request pages ahead of need, give back surplus pages, and report released pages. Never
 * waits.
 */
static void stock_begin(struct skv_session *s)
{
	const uint32_t demand = s->step.pages.demand < UINT32_MAX / 8 ? (uint32_t)s->step.pages.demand : UINT32_MAX / 8;
	struct stock *st = &s->stock;
	uint64_t n, ahead = stock_set_aside(s);

	st->demand -= st->demand / 16;
	if (st->demand < demand)
		st->demand = demand;
	if (st->pause > 0)
		st->pause--;
	if (st->get && request_done(s->client, st->get) && (collect(s, &n) < 0 || n == 0))
		st->pause = PAUSE_STEPS;
	for (struct skv_seq *q = s->seqs; q && st->n_release > 0; q = q->next)
		stock_release(q, false);
	if (!conn_all_sent(s->client))
		return;
	if (!st->get && st->n < LOW(st->demand) && st->pause == 0)
		ask(s, 0, FILL(st->demand) - st->n);
	else if (st->n > HIGH(st->demand) + ahead)
		put(s, st->n - (uint32_t)(FILL(st->demand) + ahead));
}

const struct feature stock_feature = {.open = stock_open, .close = stock_close, .begin = stock_begin};
